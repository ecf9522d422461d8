// Local response normalisation. With D = bias + alpha / size (sum of x^2 over the window), y = x
// D^-beta and dx_c = dy_c D_c^-beta - 2 alpha beta / size x_c (sum of dy_n y_n / D_n over the
// channels n whose window has c). A block of positions is taken through all channels at once, with
// what it needs of D in a buffer that stays in the cache.

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/planes.h"

namespace windlass {
namespace {

constexpr int64_t kBlock = 256;  // positions

template <class S>
struct Formula {
  int64_t before, after;  // channels of a window around its own
  S bias, share, beta;

  explicit Formula(const LrnAttrs& attrs)
      : before((attrs.size - 1) / 2),
        after(attrs.size - 1 - (attrs.size - 1) / 2),
        bias(static_cast<S>(attrs.bias)),
        share(static_cast<S>(attrs.alpha / static_cast<double>(attrs.size))),
        beta(static_cast<S>(attrs.beta)) {}

  // D^-beta; the usual exponent without a logarithm.
  S power(S d) const {
    if (beta == S(0.75)) return 1 / (std::sqrt(d) * std::sqrt(std::sqrt(d)));
    return std::pow(d, -beta);
  }
};

// Channels of the input that have an output here, which counts its channels from the first of them.
Range outputs_of(const PieceFacts& facts, int64_t channels) {
  return facts.channels.size() == 0 ? Range{0, channels} : facts.channels;
}

// Positions [begin, begin + count) of all channels of one sample.
template <class T>
struct NormBlock {
  int64_t channels, inner, begin, count;

  const T* row(const T* sample, int64_t channel) const { return sample + channel * inner + begin; }
  T* row(T* sample, int64_t channel) const { return sample + channel * inner + begin; }

  // D of one channel.
  void denominators(const Formula<Sum<T>>& formula, const T* x, int64_t channel,
                    Sum<T>* out) const {
    std::fill(out, out + count, Sum<T>(0));
    const int64_t first = std::max<int64_t>(0, channel - formula.before);
    const int64_t last = std::min(channels - 1, channel + formula.after);
    for (int64_t n = first; n <= last; ++n) {
      const T* values = row(x, n);
      for (int64_t i = 0; i < count; ++i) {
        const auto value = static_cast<Sum<T>>(values[i]);
        out[i] += value * value;
      }
    }
    for (int64_t i = 0; i < count; ++i) out[i] = formula.bias + formula.share * out[i];
  }
};

// Calls run(sample, block) for blocks that cover x, on several threads.
template <class T, class Run>
void for_each_block(at::IntArrayRef x, Run&& run) {
  int64_t inner = 1;
  for (size_t i = 2; i < x.size(); ++i) inner *= x[i];
  const int64_t blocks = (inner + kBlock - 1) / kBlock;
  for_each_plane(x[0] * blocks, x[1] * kBlock, [&](int64_t i) {
    const int64_t begin = i % blocks * kBlock;
    const NormBlock<T> block{x[1], inner, begin, std::min(kBlock, inner - begin)};
    run(i / blocks, block);
  });
}

template <class T>
void respond(const LrnAttrs& attrs, const Range& outputs, const at::Tensor& x, at::Tensor& y) {
  using S = Sum<T>;
  const Formula<S> formula(attrs);
  for_each_block<T>(x.sizes(), [&](int64_t sample, const NormBlock<T>& block) {
    const T* input = x.data_ptr<T>() + sample * block.channels * block.inner;
    T* output = y.data_ptr<T>() + sample * outputs.size() * block.inner;
    S d[kBlock];
    for (int64_t c = outputs.begin; c < outputs.end; ++c) {
      block.denominators(formula, input, c, d);
      const T* from = block.row(input, c);
      T* to = block.row(output, c - outputs.begin);
      for (int64_t i = 0; i < block.count; ++i)
        to[i] = static_cast<T>(static_cast<S>(from[i]) * formula.power(d[i]));
    }
  });
}

template <class T>
at::Tensor response_gradient(const LrnAttrs& attrs, const Range& outputs, const at::Tensor& g,
                             const at::Tensor& x, const at::Tensor& y) {
  using S = Sum<T>;
  const Formula<S> formula(attrs);
  const S factor = 2 * formula.share * formula.beta;
  at::Tensor dx = at::empty(x.sizes(), x.scalar_type());
  for_each_block<T>(x.sizes(), [&](int64_t sample, const NormBlock<T>& block) {
    const int64_t offset = sample * block.channels * block.inner;
    const int64_t output_offset = sample * outputs.size() * block.inner;
    const T *input = x.data_ptr<T>() + offset, *output = y.data_ptr<T>() + output_offset;
    const T* gradient = g.data_ptr<T>() + output_offset;
    T* result = dx.data_ptr<T>() + offset;
    // By channel: dy y / D and dy D^-beta; 0 for channels whose output is elsewhere.
    const auto size = static_cast<size_t>(block.channels * kBlock);
    std::vector<S> ratio(size, 0), direct(size, 0);
    S d[kBlock];
    for (int64_t c = outputs.begin; c < outputs.end; ++c) {
      block.denominators(formula, input, c, d);
      const T* dy = block.row(gradient, c - outputs.begin);
      const T* out = block.row(output, c - outputs.begin);
      for (int64_t i = 0; i < block.count; ++i) {
        const auto value = static_cast<S>(dy[i]);
        const auto at = static_cast<size_t>(c * kBlock + i);
        ratio[at] = value * static_cast<S>(out[i]) / d[i];
        direct[at] = value * formula.power(d[i]);
      }
    }
    for (int64_t c = 0; c < block.channels; ++c) {
      // Channel c lies in the windows of the channels from c - after to c + before.
      const int64_t first = std::max<int64_t>(0, c - formula.after);
      const int64_t last = std::min(block.channels - 1, c + formula.before);
      std::fill(d, d + block.count, S(0));
      for (int64_t n = first; n <= last; ++n)
        for (int64_t i = 0; i < block.count; ++i)
          d[i] += ratio[static_cast<size_t>(n * kBlock + i)];
      const T* from = block.row(input, c);
      T* to = block.row(result, c);
      for (int64_t i = 0; i < block.count; ++i)
        to[i] = static_cast<T>(direct[static_cast<size_t>(c * kBlock + i)] -
                               factor * static_cast<S>(from[i]) * d[i]);
    }
  });
  return dx;
}

}  // namespace

void local_response_norm_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  const Range outputs = outputs_of(call.facts, x.size(1));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "lrn", [&] {
    respond<scalar_t>(call.attrs<LrnAttrs>(), outputs, x, y);
  });
}

void local_response_norm_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const at::Tensor& x = call.input(0);
  const Range outputs = outputs_of(call.facts, x.size(1));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "lrn", [&] {
    call.results[0].set(response_gradient<scalar_t>(call.attrs<LrnAttrs>(), outputs,
                                                    call.gradient(), x, call.output(0)));
  });
}

}  // namespace windlass

// Softmax and rotary position embedding.

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>

#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// Cosine and sine of every position and pair: [positions, pairs] each.
template <class T>
struct Angles {
  std::vector<T> cosine, sine;

  Angles(const RotaryAttrs& attrs, int64_t positions) {
    const int64_t pairs = attrs.dims / 2;
    cosine.resize(static_cast<size_t>(positions * pairs));
    sine.resize(cosine.size());
    std::vector<double> frequency(static_cast<size_t>(pairs));
    for (size_t i = 0; i < frequency.size(); ++i)
      frequency[i] =
          std::pow(attrs.theta, -2 * static_cast<double>(i) / static_cast<double>(attrs.dims));
    at::parallel_for(0, positions, 16, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t i = 0; i < pairs; ++i) {
          const double angle = static_cast<double>(p) * frequency[static_cast<size_t>(i)];
          cosine[static_cast<size_t>(p * pairs + i)] = static_cast<T>(std::cos(angle));
          sine[static_cast<size_t>(p * pairs + i)] = static_cast<T>(std::sin(angle));
        }
      }
    });
  }
};

// Rotates the pairs by their angles (direction 1) or back (-1), writing or adding to y.
template <class E>
void rotate(const RotaryAttrs& attrs, const at::Tensor& x, double direction, bool add,
            at::Tensor& y) {
  using T = wide_t<E>;
  const int64_t depth = x.size(-1), positions = x.size(-2), pairs = attrs.dims / 2;
  const int64_t rows = depth == 0 ? 0 : x.numel() / depth;
  const Angles<T> angles(attrs, positions);
  const auto turn = static_cast<T>(direction);
  const int64_t apart = attrs.interleaved ? 1 : pairs, step = attrs.interleaved ? 2 : 1;
  const E* from = x.data_ptr<E>();
  E* to = y.data_ptr<E>();
  at::parallel_for(0, rows, std::max<int64_t>(1, 8192 / depth), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* cosine = angles.cosine.data() + r % positions * pairs;
      const T* sine = angles.sine.data() + r % positions * pairs;
      const E* in = from + r * depth;
      E* out = to + r * depth;
      const auto put = [add](E& place, T value) {
        place = static_cast<E>(add ? static_cast<T>(place) + value : value);
      };
#pragma omp simd
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t at = i * step;
        const auto a = static_cast<T>(in[at]), b = static_cast<T>(in[at + apart]);
        put(out[at], a * cosine[i] - turn * b * sine[i]);
        put(out[at + apart], b * cosine[i] + turn * a * sine[i]);
      }
      for (int64_t i = attrs.dims; i < depth; ++i) put(out[i], static_cast<T>(in[i]));
    }
  });
}

}  // namespace

// fp16, for which ATen has no softmax, goes through fp32 as a whole.
void softmax_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  const bool narrow = x.scalar_type() == at::kHalf;
  const at::Tensor from = narrow ? x.to(at::kFloat) : x;
  at::Tensor to = narrow ? at::empty(x.sizes(), at::kFloat) : y;
  if (attrs.log)
    at::_log_softmax_out(to, from, attrs.axis, false);
  else
    at::_softmax_out(to, from, attrs.axis, false);
  if (narrow) y.copy_(to);
}

void softmax_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  Result& result = call.results[0];
  const bool narrow = call.gradient().scalar_type() == at::kHalf;
  const at::Tensor g = narrow ? call.gradient().to(at::kFloat) : call.gradient();
  const at::Tensor y = narrow ? call.output(0).to(at::kFloat) : call.output(0);
  const at::ScalarType type = g.scalar_type();
  if (result.adds() || narrow)
    result.set(attrs.log ? at::_log_softmax_backward_data(g, y, attrs.axis, type)
                         : at::_softmax_backward_data(g, y, attrs.axis, type));
  else if (attrs.log)
    at::_log_softmax_backward_data_out(result.allocate(), g, y, attrs.axis, type);
  else
    at::_softmax_backward_data_out(result.allocate(), g, y, attrs.axis, type);
}

void rotary_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  with_float_type(x.scalar_type(), [&](auto zero) {
    rotate<decltype(zero)>(call.attrs<RotaryAttrs>(), x, 1, false, y);
  });
}

void rotary_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  Result& result = call.results[0];
  const bool add = result.adds();
  at::Tensor& dx = add ? result.sum() : result.allocate();
  with_float_type(dx.scalar_type(), [&](auto zero) {
    rotate<decltype(zero)>(call.attrs<RotaryAttrs>(), call.gradient(), -1, add, dx);
  });
}

}  // namespace windlass

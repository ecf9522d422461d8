// Rotary position embedding.

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>

#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// Cosine and sine of every position and pair: [positions, pairs] each.
template <class T>
struct Angles {
  std::vector<T> cosine, sine;

  // Of so many positions, those `here` of the whole op.
  Angles(const RotaryAttrs& attrs, const AxisPart& here, int64_t positions) {
    const int64_t pairs = attrs.dims / 2;
    cosine.resize(static_cast<size_t>(positions * pairs));
    sine.resize(cosine.size());
    std::vector<double> frequency(static_cast<size_t>(pairs));
    for (size_t i = 0; i < frequency.size(); ++i)
      frequency[i] =
          std::pow(attrs.theta, -2 * static_cast<double>(i) / static_cast<double>(attrs.dims));
    at::parallel_for(0, positions, 16, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const auto place = static_cast<double>(here.to_whole(p));
        for (int64_t i = 0; i < pairs; ++i) {
          const double angle = place * frequency[static_cast<size_t>(i)];
          cosine[static_cast<size_t>(p * pairs + i)] = static_cast<T>(std::cos(angle));
          sine[static_cast<size_t>(p * pairs + i)] = static_cast<T>(std::sin(angle));
        }
      }
    });
  }
};

// Rotates the pairs by their angles (direction 1) or back (-1), writing or adding to y.
template <class E>
void rotate(const RotaryAttrs& attrs, const AxisPart& here, const at::Tensor& x, double direction,
            bool add, at::Tensor& y) {
  using T = wide_t<E>;
  const int64_t depth = x.size(-1), positions = x.size(-2), pairs = attrs.dims / 2;
  const int64_t rows = depth == 0 ? 0 : x.numel() / depth;
  const Angles<T> angles(attrs, here, positions);
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

void rotary_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  with_float_type(x.scalar_type(), [&](auto zero) {
    rotate<decltype(zero)>(call.attrs<RotaryAttrs>(), call.facts.positions, x, 1, false, y);
  });
}

void rotary_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  Result& result = call.results[0];
  const bool add = result.adds();
  at::Tensor& dx = add ? result.sum() : result.allocate();
  with_float_type(dx.scalar_type(), [&](auto zero) {
    rotate<decltype(zero)>(call.attrs<RotaryAttrs>(), call.facts.positions, call.gradient(), -1,
                           add, dx);
  });
}

}  // namespace windlass

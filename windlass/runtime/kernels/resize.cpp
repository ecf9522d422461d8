// Resampling. Written out, since ATen computes source positions in fp32 and has no aligned nearest
// nor asymmetric linear form; the positions here are those of the op's definition, exactly.

#include <cmath>

#include <ATen/Dispatch.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/planes.h"

namespace windlass {
namespace {

// An output position of an axis is a weighted sum of two input positions.
struct Tap {
  int64_t low = 0, high = 0;
  double high_weight = 0;
};

Tap nearest_tap(ResizeCoordinates coordinates, int64_t i, int64_t in, int64_t out) {
  int64_t at = 0;
  switch (coordinates) {
    case ResizeCoordinates::Asymmetric: at = i * in / out; break;
    case ResizeCoordinates::HalfPixel: at = (2 * i + 1) * in / (2 * out); break;
    case ResizeCoordinates::AlignCorners:
      at = out == 1 ? 0 : (2 * i * (in - 1) + out - 1) / (2 * (out - 1));
      break;
  }
  at = std::min(at, in - 1);
  return {at, at, 0};
}

Tap linear_tap(ResizeCoordinates coordinates, int64_t i, int64_t in, int64_t out) {
  const auto place = static_cast<double>(i);
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  double u = 0;
  switch (coordinates) {
    case ResizeCoordinates::Asymmetric: u = place * scale; break;
    case ResizeCoordinates::HalfPixel: u = (place + 0.5) * scale - 0.5; break;
    case ResizeCoordinates::AlignCorners:
      u = out == 1 ? 0 : place * static_cast<double>(in - 1) / static_cast<double>(out - 1);
      break;
  }
  u = std::clamp(u, 0.0, static_cast<double>(in - 1));
  const auto low = static_cast<int64_t>(std::floor(u));
  return {low, std::min(low + 1, in - 1), u - static_cast<double>(low)};
}

// Weights along one axis of which those that are 0 are left out.
struct Samples {
  std::array<int64_t, 2> at{};
  std::array<double, 2> weight{};
  size_t count = 0;

  explicit Samples(const Tap& tap) {
    if (tap.high_weight < 1) add(tap.low, 1 - tap.high_weight);
    if (tap.high_weight > 0) add(tap.high, tap.high_weight);
  }
  void add(int64_t position, double share) {
    at[count] = position;
    weight[count++] = share;
  }
};

struct Geometry {
  Triple in{}, out{};
  std::array<std::vector<Samples>, 3> samples;
  int64_t taps = 1;

  Geometry(const ResizeAttrs& attrs, at::IntArrayRef x, at::IntArrayRef y)
      : in(spatial_sizes(x)), out(spatial_sizes(y)) {
    const bool nearest = attrs.mode == ResizeMode::Nearest;
    for (size_t axis = 0; axis < 3; ++axis) {
      for (int64_t o = 0; o < out[axis]; ++o) {
        samples[axis].emplace_back(nearest ? nearest_tap(attrs.coordinates, o, in[axis], out[axis])
                                           : linear_tap(attrs.coordinates, o, in[axis], out[axis]));
      }
    }
    if (!nearest) taps = int64_t{1} << attrs.size.size();
  }

  int64_t work() const { return volume(out) * taps; }

  // Calls visit(y, x, weight) for every weighted pair of positions in the planes, y ascending.
  template <class W, class Visit>
  void for_each_sample(Visit&& visit) const {
    int64_t o = 0;
    for (const Samples& d : samples[0]) {
      for (const Samples& r : samples[1]) {
        for (const Samples& c : samples[2]) {
          for (size_t i = 0; i < d.count; ++i) {
            for (size_t j = 0; j < r.count; ++j) {
              const int64_t line = (d.at[i] * in[1] + r.at[j]) * in[2];
              const double weight = d.weight[i] * r.weight[j];
              for (size_t k = 0; k < c.count; ++k)
                visit(o, line + c.at[k], static_cast<W>(weight * c.weight[k]));
            }
          }
          ++o;
        }
      }
    }
  }
};

template <class T>
void resize_planes(const Geometry& geometry, const at::Tensor& x, at::Tensor& y) {
  const int64_t x_size = volume(geometry.in), y_size = volume(geometry.out);
  const T* input = x.data_ptr<T>();
  T* output = y.data_ptr<T>();
  for_each_plane(x.size(0) * x.size(1), geometry.work(), [&](int64_t plane) {
    const T* from = input + plane * x_size;
    T* to = output + plane * y_size;
    int64_t current = 0;
    Sum<T> sum = 0;
    geometry.template for_each_sample<Sum<T>>([&](int64_t o, int64_t i, Sum<T> weight) {
      if (o != current) {
        to[current] = static_cast<T>(sum);
        current = o;
        sum = 0;
      }
      sum += weight * static_cast<Sum<T>>(from[i]);
    });
    to[current] = static_cast<T>(sum);
  });
}

template <class T>
void resize_gradient(const Geometry& geometry, const at::Tensor& g, Result& result) {
  const int64_t y_size = volume(geometry.out);
  const T* gradients = g.data_ptr<T>();
  scatter_planes<T>(result, geometry.work(), [&](int64_t plane, Sum<T>* sums) {
    const T* from = gradients + plane * y_size;
    geometry.template for_each_sample<Sum<T>>([&](int64_t o, int64_t i, Sum<T> weight) {
      sums[i] += weight * static_cast<Sum<T>>(from[o]);
    });
  });
}

}  // namespace

void resize_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  if (y.numel() == 0) return;
  const Geometry geometry(call.attrs<ResizeAttrs>(), x.sizes(), y.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "resize",
                                  [&] { resize_planes<scalar_t>(geometry, x, y); });
}

void resize_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const at::Tensor& g = call.gradient();
  const Geometry geometry(call.attrs<ResizeAttrs>(), call.shape(0), g.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, g.scalar_type(), "resize",
                                  [&] { resize_gradient<scalar_t>(geometry, g, call.results[0]); });
}

}  // namespace windlass

// Resampling. Written out, since ATen computes source positions in fp32 and has no aligned nearest
// nor asymmetric linear form; the positions here are those of the op's definition, exactly.

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

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

struct ResizeGeometry {
  Triple in{}, out{};
  bool nearest;
  std::array<std::vector<Tap>, 3> taps;

  ResizeGeometry(const ResizeAttrs& attrs, at::IntArrayRef x, at::IntArrayRef y)
      : in(spatial_sizes(x)), out(spatial_sizes(y)), nearest(attrs.mode == ResizeMode::Nearest) {
    for (size_t axis = 0; axis < 3; ++axis) {
      for (int64_t o = 0; o < out[axis]; ++o) {
        taps[axis].push_back(nearest ? nearest_tap(attrs.coordinates, o, in[axis], out[axis])
                                     : linear_tap(attrs.coordinates, o, in[axis], out[axis]));
      }
    }
  }

  int64_t work() const { return volume(out) * (nearest ? 1 : 4); }

  // Calls visit(line) for each output line and, before it, add(offset, weight) for each line of the
  // input that it is a sum of, `offset` in the plane.
  template <class Add, class Visit>
  void for_each_line(Add&& add, Visit&& visit) const {
    int64_t line = 0;
    for (const Tap& depth : taps[0]) {
      for (const Tap& row : taps[1]) {
        const auto add_row = [&](int64_t plane, double weight) {
          if (row.high_weight < 1) add((plane + row.low) * in[2], weight * (1 - row.high_weight));
          if (row.high_weight > 0) add((plane + row.high) * in[2], weight * row.high_weight);
        };
        if (depth.high_weight < 1) add_row(depth.low * in[1], 1 - depth.high_weight);
        if (depth.high_weight > 0) add_row(depth.high * in[1], depth.high_weight);
        visit(line++);
      }
    }
  }
};

// A line of the input is mixed from up to four lines first, then resampled along itself.
template <class T>
void resize_plane(const ResizeGeometry& geometry, const T* from, T* to,
                  std::vector<Sum<T>>& mixed) {
  using S = Sum<T>;
  const int64_t width = geometry.in[2];
  const std::vector<Tap>& columns = geometry.taps[2];
  const T* only = nullptr;  // the line itself if it is one
  geometry.for_each_line(
      [&](int64_t offset, double weight) {
        if (geometry.nearest) {
          only = from + offset;
          return;
        }
        const auto share = static_cast<S>(weight);
        for (int64_t i = 0; i < width; ++i)
          mixed[static_cast<size_t>(i)] += share * static_cast<S>(from[offset + i]);
      },
      [&](int64_t) {
        if (geometry.nearest) {
          for (const Tap& tap : columns) *to++ = only[tap.low];
          return;
        }
        for (const Tap& tap : columns) {
          const S low = mixed[static_cast<size_t>(tap.low)];
          const S high = mixed[static_cast<size_t>(tap.high)];
          *to++ = static_cast<T>(low + static_cast<S>(tap.high_weight) * (high - low));
        }
        std::fill(mixed.begin(), mixed.end(), S(0));
      });
}

template <class T>
void resize_planes(const ResizeGeometry& geometry, const at::Tensor& x, at::Tensor& y) {
  const int64_t x_size = volume(geometry.in), y_size = volume(geometry.out);
  const T* input = x.data_ptr<T>();
  T* output = y.data_ptr<T>();
  for_each_plane(x.size(0) * x.size(1), geometry.work(), [&](int64_t plane) {
    std::vector<Sum<T>> mixed(static_cast<size_t>(geometry.in[2]), 0);
    resize_plane(geometry, input + plane * x_size, output + plane * y_size, mixed);
  });
}

// The same backwards: a line of gradients is gathered along itself, then given to the lines it was
// mixed from.
template <class T>
void resize_gradient(const ResizeGeometry& geometry, const at::Tensor& g, Result& result) {
  using S = Sum<T>;
  const int64_t y_size = volume(geometry.out), width = geometry.in[2];
  const std::vector<Tap>& columns = geometry.taps[2];
  const T* gradients = g.data_ptr<T>();
  scatter_planes<T>(result, geometry.work(), [&](int64_t plane, S* sums) {
    const T* from = gradients + plane * y_size;
    std::vector<S> gathered(static_cast<size_t>(width));
    std::vector<std::pair<int64_t, S>> lines;
    geometry.for_each_line(
        [&](int64_t offset, double weight) { lines.emplace_back(offset, static_cast<S>(weight)); },
        [&](int64_t) {
          if (geometry.nearest) {
            S* line = sums + lines[0].first;
            for (const Tap& tap : columns) line[tap.low] += static_cast<S>(*from++);
            lines.clear();
            return;
          }
          std::fill(gathered.begin(), gathered.end(), S(0));
          for (const Tap& tap : columns) {
            const auto value = static_cast<S>(*from++);
            const S high = static_cast<S>(tap.high_weight) * value;
            gathered[static_cast<size_t>(tap.low)] += value - high;
            gathered[static_cast<size_t>(tap.high)] += high;
          }
          for (const auto& [offset, weight] : lines)
            for (int64_t i = 0; i < width; ++i)
              sums[offset + i] += weight * gathered[static_cast<size_t>(i)];
          lines.clear();
        });
  });
}

}  // namespace

void resize_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  if (y.numel() == 0) return;
  const ResizeGeometry geometry(call.attrs<ResizeAttrs>(), x.sizes(), y.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "resize",
                                  [&] { resize_planes<scalar_t>(geometry, x, y); });
}

void resize_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const at::Tensor& g = call.gradient();
  const ResizeGeometry geometry(call.attrs<ResizeAttrs>(), call.shape(0), g.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, g.scalar_type(), "resize",
                                  [&] { resize_gradient<scalar_t>(geometry, g, call.results[0]); });
}

}  // namespace windlass

// Pooling and resampling over the spatial axes of x [b, c, ...].
//
// Resampling reads input position u = (i + 1/2) in / out - 1/2 (half pixel), i (in - 1) / (out - 1)
// (align corners) or i in / out (asymmetric) for output position i. Linear weighs the two
// neighbours of u, cut to the axis. Nearest takes the closest whole position, the upper one of two
// equally close (PyTorch's "nearest-exact" for half pixel); asymmetric takes the one below u
// (PyTorch's "nearest").

#include <algorithm>
#include <cmath>
#include <limits>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Number of windows along an axis. With ceil_mode a last, incomplete window counts if it begins
// inside the input or the padding before it, even if it is the only one.
int64_t window_count(const PoolAttrs& attrs, size_t i, int64_t size) {
  const int64_t extent = attrs.dilation[i] * (attrs.kernel[i] - 1) + 1;
  const int64_t room = size + attrs.pad_begin[i] + attrs.pad_end[i] - extent;
  if (attrs.ceil_mode && room < 0 && -room < attrs.stride[i]) return 1;
  ensure(room >= 0, "Pool window does not fit");
  if (!attrs.ceil_mode) return room / attrs.stride[i] + 1;
  const int64_t count = ceil_div(room, attrs.stride[i]) + 1;
  return (count - 1) * attrs.stride[i] >= size + attrs.pad_begin[i] ? count - 1 : count;
}

Shape pooled_shape(const PoolAttrs& attrs, const Shape& x) {
  Shape shape = {x[0], x[1]};
  for (size_t i = 0; i + 2 < x.size(); ++i) shape.push_back(window_count(attrs, i, x[i + 2]));
  return shape;
}

// Where a place of a window lies.
struct Place {
  bool inside = true;  // the input
  bool padded = true;  // the input or its padding
  int64_t offset = 0;  // in one channel of the input, if inside
};

// Calls visit(y, k, place) for each spatial output position y and each place k of its window, both
// counted row-major, k fastest.
template <class Visit>
void for_each_place(const PoolAttrs& attrs, const Shape& x, const Shape& y, Visit&& visit) {
  const size_t rank = x.size() - 2;
  const Shape outputs(y.begin() + 2, y.end());
  const Strides output_strides = row_major_strides(outputs),
                place_strides = row_major_strides(attrs.kernel);
  const int64_t output_count = element_count(outputs), place_count = element_count(attrs.kernel);
  for (int64_t o = 0; o < output_count; ++o) {
    for (int64_t k = 0; k < place_count; ++k) {
      Place place;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t at = o / output_strides[i] % outputs[i] * attrs.stride[i] -
                           attrs.pad_begin[i] +
                           k / place_strides[i] % attrs.kernel[i] * attrs.dilation[i];
        place.inside &= at >= 0 && at < x[i + 2];
        place.padded &= at >= -attrs.pad_begin[i] && at < x[i + 2] + attrs.pad_end[i];
        place.offset = place.offset * x[i + 2] + at;
      }
      visit(o, k, place);
    }
  }
}

// Number each average is divided by, per spatial output position.
std::vector<double> divisors(PoolAttrs attrs, const Shape& x, const Shape& y,
                             const PieceFacts& facts) {
  for (size_t i = 0; i < facts.uncounted_padding.size(); ++i)
    attrs.pad_end[i] -= facts.uncounted_padding[i];
  std::vector<double> result(static_cast<size_t>(product(y, 2, y.size())), 0);
  for_each_place(attrs, x, y, [&](int64_t o, int64_t, const Place& place) {
    if (attrs.count_include_pad ? place.padded : place.inside) result[o] += 1;
  });
  return result;
}

// An output position of a resampled axis is a weighted sum of two input positions.
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
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  double u = 0;
  switch (coordinates) {
    case ResizeCoordinates::Asymmetric: u = static_cast<double>(i) * scale; break;
    case ResizeCoordinates::HalfPixel: u = (static_cast<double>(i) + 0.5) * scale - 0.5; break;
    case ResizeCoordinates::AlignCorners:
      u = out == 1
              ? 0
              : static_cast<double>(i) * static_cast<double>(in - 1) / static_cast<double>(out - 1);
      break;
  }
  u = std::clamp(u, 0.0, static_cast<double>(in - 1));
  const auto low = static_cast<int64_t>(std::floor(u));
  return {low, std::min(low + 1, in - 1), u - static_cast<double>(low)};
}

// Calls visit(y, x, weight) for every weighted pair of spatial positions of output and input.
template <class Visit>
void for_each_sample(const ResizeAttrs& attrs, const Shape& x, Visit&& visit) {
  const size_t rank = attrs.size.size();
  std::vector<std::vector<Tap>> taps(rank);
  for (size_t i = 0; i < rank; ++i) {
    for (int64_t o = 0; o < attrs.size[i]; ++o) {
      taps[i].push_back(attrs.mode == ResizeMode::Nearest
                            ? nearest_tap(attrs.coordinates, o, x[i + 2], attrs.size[i])
                            : linear_tap(attrs.coordinates, o, x[i + 2], attrs.size[i]));
    }
  }
  const Strides strides = row_major_strides(attrs.size);
  const int64_t count = element_count(attrs.size);
  for (int64_t o = 0; o < count; ++o) {
    for (uint32_t corner = 0; corner < (1U << rank); ++corner) {
      int64_t offset = 0;
      double weight = 1;
      for (size_t i = 0; i < rank; ++i) {
        const Tap& tap = taps[i][o / strides[i] % attrs.size[i]];
        const bool high = (corner >> i & 1U) != 0;
        offset = offset * x[i + 2] + (high ? tap.high : tap.low);
        weight *= high ? tap.high_weight : 1 - tap.high_weight;
      }
      if (weight != 0) visit(o, offset, weight);
    }
  }
}

int64_t spatial_size(const Shape& shape) { return product(shape, 2, shape.size()); }

}  // namespace

ForwardResult pool_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<PoolAttrs>();
  const Array& x = call.input(0);
  const Shape shape = pooled_shape(attrs, x.shape);
  const int64_t channels = shape[0] * shape[1];
  const int64_t x_size = spatial_size(x.shape), y_size = spatial_size(shape);
  if (attrs.fn == PoolFn::Average) {
    Array y(shape);
    const std::vector<double> divisor = divisors(attrs, x.shape, shape, call.facts);
    for_each_place(attrs, x.shape, shape, [&](int64_t o, int64_t, const Place& place) {
      if (!place.inside) return;
      for (int64_t c = 0; c < channels; ++c)
        y.values[c * y_size + o] += x.values[c * x_size + place.offset] / divisor[o];
    });
    return {{y}, {}};
  }
  Array y(shape, -std::numeric_limits<double>::infinity());
  Array where(shape);
  for_each_place(attrs, x.shape, shape, [&](int64_t o, int64_t k, const Place& place) {
    if (!place.inside) return;
    for (int64_t c = 0; c < channels; ++c) {
      const double value = x.values[c * x_size + place.offset];
      double& best = y.values[c * y_size + o];
      if (!(value > best || std::isnan(value))) continue;
      best = value;
      where.values[c * y_size + o] = static_cast<double>(k);
    }
  });
  return {{y}, {where}};
}

std::vector<Array> pool_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<PoolAttrs>();
  const Array& g = call.gradient();
  Array gx = call.zeros_if_wanted(0);
  if (!call.wants(0)) return {gx};
  const int64_t channels = g.shape[0] * g.shape[1];
  const int64_t x_size = spatial_size(gx.shape), y_size = spatial_size(g.shape);
  const bool average = attrs.fn == PoolFn::Average;
  const std::vector<double> divisor =
      average ? divisors(attrs, gx.shape, g.shape, call.facts()) : std::vector<double>();
  const Array* where = average ? nullptr : &call.auxiliary(0);
  for_each_place(attrs, gx.shape, g.shape, [&](int64_t o, int64_t k, const Place& place) {
    if (!place.inside) return;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t from = c * y_size + o;
      if (average) {
        gx.values[c * x_size + place.offset] += g.values[from] / divisor[o];
      } else if (where->values[from] == static_cast<double>(k)) {
        gx.values[c * x_size + place.offset] += g.values[from];
      }
    }
  });
  return {gx};
}

ForwardResult resize_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<ResizeAttrs>();
  const Array& x = call.input(0);
  Shape shape = {x.shape[0], x.shape[1]};
  shape.insert(shape.end(), attrs.size.begin(), attrs.size.end());
  Array y(shape);
  const int64_t channels = shape[0] * shape[1];
  const int64_t x_size = spatial_size(x.shape), y_size = spatial_size(shape);
  for_each_sample(attrs, x.shape, [&](int64_t o, int64_t i, double weight) {
    for (int64_t c = 0; c < channels; ++c)
      y.values[c * y_size + o] += weight * x.values[c * x_size + i];
  });
  return {{y}, {}};
}

std::vector<Array> resize_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<ResizeAttrs>();
  const Array& g = call.gradient();
  Array gx = call.zeros_if_wanted(0);
  if (!call.wants(0)) return {gx};
  const int64_t channels = g.shape[0] * g.shape[1];
  const int64_t x_size = spatial_size(gx.shape), y_size = spatial_size(g.shape);
  for_each_sample(attrs, gx.shape, [&](int64_t o, int64_t i, double weight) {
    for (int64_t c = 0; c < channels; ++c)
      gx.values[c * x_size + i] += weight * g.values[c * y_size + o];
  });
  return {gx};
}

}  // namespace windlass::reference

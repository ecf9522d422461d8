// Convolution. A convolution relates a large side (its input) to a small side (its output); a
// transposed one goes the other way over the same terms. So one loop over all terms
// large[p] * weight[k] * small[q], p = q * stride - pad + k * dilation, serves the forward pass and
// both gradients of either kind.

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

constexpr size_t kMaxSpatial = 3;
using Triple = std::array<int64_t, kMaxSpatial>;

// Sizes with the spatial axes filled up to three by leading axes of 1.
struct Geometry {
  int64_t batch = 1, groups = 1;
  int64_t large_channels = 1, small_channels = 1;  // of one group
  Triple large{1, 1, 1}, small{1, 1, 1}, kernel{1, 1, 1};
  Triple stride{1, 1, 1}, dilation{1, 1, 1}, pad{0, 0, 0};
};

Geometry geometry_of(const ConvAttrs& attrs, const Shape& x, const Shape& w, const Shape& y) {
  const Shape& large = attrs.transposed ? y : x;
  const Shape& small = attrs.transposed ? x : y;
  Geometry g;
  g.batch = x[0];
  g.groups = attrs.groups;
  g.large_channels = large[1] / attrs.groups;
  g.small_channels = small[1] / attrs.groups;
  const size_t rank = x.size() - 2;
  for (size_t i = 0; i < rank; ++i) {
    const size_t to = kMaxSpatial - rank + i;
    g.large[to] = large[i + 2];
    g.small[to] = small[i + 2];
    g.kernel[to] = w[i + 2];
    g.stride[to] = attrs.stride[i];
    g.dilation[to] = attrs.dilation[i];
    g.pad[to] = attrs.pad_begin[i];
  }
  return g;
}

Shape output_shape(const ConvAttrs& attrs, const Shape& x, const Shape& w) {
  ensure(x.size() >= 3 && x.size() <= kMaxSpatial + 2 && w.size() == x.size(),
         "Conv operand ranks");
  Shape shape = {x[0], attrs.transposed ? w[1] * attrs.groups : w[0]};
  for (size_t i = 0; i + 2 < x.size(); ++i) {
    const int64_t extent = attrs.dilation[i] * (w[i + 2] - 1) + 1;
    const int64_t pads = attrs.pad_begin[i] + attrs.pad_end[i];
    shape.push_back(attrs.transposed
                        ? (x[i + 2] - 1) * attrs.stride[i] - pads + extent + attrs.output_padding[i]
                        : (x[i + 2] + pads - extent) / attrs.stride[i] + 1);
  }
  return shape;
}

// Calls visit(small, large, weight) with the offsets of every term along the spatial axes:
// positions in one channel of the two sides and in one kernel.
template <class Visit>
void for_each_tap(const Geometry& g, Visit&& visit) {
  const auto at = [](const Triple& size, const Triple& index) {
    return (index[0] * size[1] + index[1]) * size[2] + index[2];
  };
  const Shape space = {g.small[0], g.small[1], g.small[2], g.kernel[0], g.kernel[1], g.kernel[2]};
  walk<6>(
      space,
      {Strides{1, 0, 0, 0, 0, 0}, Strides{0, 1, 0, 0, 0, 0}, Strides{0, 0, 1, 0, 0, 0},
       Strides{0, 0, 0, 1, 0, 0}, Strides{0, 0, 0, 0, 1, 0}, Strides{0, 0, 0, 0, 0, 1}},
      [&](int64_t, const auto& i) {
        Triple p{};
        for (size_t axis = 0; axis < kMaxSpatial; ++axis) {
          p[axis] = i[axis] * g.stride[axis] - g.pad[axis] + i[axis + 3] * g.dilation[axis];
          if (p[axis] < 0 || p[axis] >= g.large[axis]) return;
        }
        visit(at(g.small, {i[0], i[1], i[2]}), at(g.large, p), at(g.kernel, {i[3], i[4], i[5]}));
      });
}

// Calls visit(large, weight, small) with the element offsets of every term of the convolution.
template <class Visit>
void for_each_term(const Geometry& g, Visit&& visit) {
  const auto volume = [](const Triple& size) { return size[0] * size[1] * size[2]; };
  const int64_t large_size = volume(g.large), small_size = volume(g.small);
  const int64_t kernel_size = volume(g.kernel);
  for_each_tap(g, [&](int64_t small_at, int64_t large_at, int64_t kernel_at) {
    for (int64_t b = 0; b < g.batch; ++b) {
      for (int64_t group = 0; group < g.groups; ++group) {
        for (int64_t s = 0; s < g.small_channels; ++s) {
          const int64_t small = group * g.small_channels + s;
          for (int64_t l = 0; l < g.large_channels; ++l) {
            const int64_t large = group * g.large_channels + l;
            visit((b * g.groups * g.large_channels + large) * large_size + large_at,
                  (small * g.large_channels + l) * kernel_size + kernel_at,
                  (b * g.groups * g.small_channels + small) * small_size + small_at);
          }
        }
      }
    }
  });
}

}  // namespace

ForwardResult conv_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<ConvAttrs>();
  const Array& x = call.input(0);
  const Array& w = call.input(1);
  const Shape shape = output_shape(attrs, x.shape, w.shape);
  Array y(shape);
  if (call.has(2) && call.facts.adds_bias) {
    const AxisView view = view_axis(shape, 1);
    for (size_t i = 0; i < y.values.size(); ++i)
      y.values[i] = call.input(2).values[static_cast<int64_t>(i) / view.inner % view.size];
  }
  const Geometry geometry = geometry_of(attrs, x.shape, w.shape, shape);
  if (attrs.transposed) {
    for_each_term(geometry, [&](int64_t large, int64_t weight, int64_t small) {
      y.values[large] += x.values[small] * w.values[weight];
    });
  } else {
    for_each_term(geometry, [&](int64_t large, int64_t weight, int64_t small) {
      y.values[small] += x.values[large] * w.values[weight];
    });
  }
  return {{y}, {}};
}

std::vector<Array> conv_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<ConvAttrs>();
  const Array& g = call.gradient();
  const Geometry geometry = geometry_of(attrs, call.shape(0), call.shape(1), g.shape);
  const auto x_of = [&](int64_t large, int64_t small) { return attrs.transposed ? small : large; };
  const auto y_of = [&](int64_t large, int64_t small) { return attrs.transposed ? large : small; };
  Array gx = call.zeros_if_wanted(0), gw = call.zeros_if_wanted(1), gb = call.zeros_if_wanted(2);
  if (call.wants(0)) {
    const Array& w = call.input(1);
    for_each_term(geometry, [&](int64_t large, int64_t weight, int64_t small) {
      gx.values[x_of(large, small)] += g.values[y_of(large, small)] * w.values[weight];
    });
  }
  if (call.wants(1)) {
    const Array& x = call.input(0);
    for_each_term(geometry, [&](int64_t large, int64_t weight, int64_t small) {
      gw.values[weight] += g.values[y_of(large, small)] * x.values[x_of(large, small)];
    });
  }
  if (call.wants(2)) {
    const AxisView view = view_axis(g.shape, 1);
    for (size_t i = 0; i < g.values.size(); ++i)
      gb.values[static_cast<int64_t>(i) / view.inner % view.size] += g.values[i];
  }
  return {gx, gw, gb};
}

}  // namespace windlass::reference

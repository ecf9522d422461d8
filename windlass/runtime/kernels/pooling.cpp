// Max and average pooling. Written out, since ATen has neither unequal padding nor dilated averages
// and keeps eight bytes for each maximum, where the op table keeps its place in the window in one.

#include <algorithm>
#include <limits>

#include <ATen/Dispatch.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/planes.h"

namespace windlass {
namespace {

// A window along one axis: its places [begin, end) are inside the input, place k at start + k
// dilation.
struct Window {
  int64_t start = 0, begin = 0, end = 1;
  int64_t divisor = 1;  // places that an average counts
};

// One place of the windows of a line of outputs [begin, end), those for which it is inside the
// input: output o reads the element at offset + o column_stride of the plane.
struct Run {
  int64_t begin = 0, end = 0, offset = 0;
};

struct Geometry {
  Triple in{}, out{}, kernel{1, 1, 1}, dilation{1, 1, 1};
  int64_t column_stride = 1;
  std::array<std::vector<Window>, 3> windows;
  std::vector<Run> columns;  // by place along the last axis, of line 0

  Geometry(const PoolAttrs& attrs, const PieceFacts& facts, at::IntArrayRef x, at::IntArrayRef y)
      : in(spatial_sizes(x)), out(spatial_sizes(y)) {
    const size_t rank = attrs.kernel.size();
    for (size_t axis = 0; axis < 3 - rank; ++axis) windows[axis].resize(1);
    for (size_t i = 0; i < rank; ++i) {
      const size_t axis = 3 - rank + i;
      kernel[axis] = attrs.kernel[i];
      dilation[axis] = attrs.dilation[i];
      for (int64_t o = 0; o < out[axis]; ++o) windows[axis].push_back(window(attrs, facts, i, o));
    }
    column_stride = attrs.stride.back();
    for (int64_t k = 0; k < kernel[2]; ++k) {
      const auto inside = [&](const Window& w) { return k >= w.begin && k < w.end; };
      const auto& line = windows[2];
      const auto first = std::find_if(line.begin(), line.end(), inside);
      const auto last = std::find_if_not(first, line.end(), inside);
      columns.push_back(
          {first - line.begin(), last - line.begin(), k * dilation[2] - attrs.pad_begin.back()});
    }
  }

  int64_t work() const { return volume(out) * volume(kernel); }

  template <class Visit>
  void for_each_line(Visit&& visit) const {
    for (const Window& depth : windows[0])
      for (const Window& row : windows[1]) visit(depth, row);
  }

  // Calls visit(run, k) for each place k of the windows of one line of outputs.
  template <class Visit>
  void for_each_run(const Window& depth, const Window& row, Visit&& visit) const {
    for (int64_t i = depth.begin; i < depth.end; ++i) {
      for (int64_t j = row.begin; j < row.end; ++j) {
        const int64_t line =
            ((depth.start + i * dilation[0]) * in[1] + row.start + j * dilation[1]) * in[2];
        for (int64_t k = 0; k < kernel[2]; ++k) {
          Run run = columns[static_cast<size_t>(k)];
          run.offset += line;
          visit(run, (i * kernel[1] + j) * kernel[2] + k);
        }
      }
    }
  }

  // Calls visit(o, depth, row, column) for each output position in order.
  template <class Visit>
  void for_each_output(Visit&& visit) const {
    int64_t o = 0;
    for (const Window& depth : windows[0])
      for (const Window& row : windows[1])
        for (const Window& column : windows[2]) visit(o++, depth, row, column);
  }

  // Calls visit(offset, k) for each place k inside the input, where `offset` is in the plane.
  template <class Visit>
  void for_each_place(const Window& depth, const Window& row, const Window& column,
                      Visit&& visit) const {
    for (int64_t i = depth.begin; i < depth.end; ++i) {
      const int64_t plane = (depth.start + i * dilation[0]) * in[1];
      for (int64_t j = row.begin; j < row.end; ++j) {
        const int64_t line = (plane + row.start + j * dilation[1]) * in[2] + column.start;
        const int64_t place = (i * kernel[1] + j) * kernel[2];
        for (int64_t k = column.begin; k < column.end; ++k)
          visit(line + k * dilation[2], place + k);
      }
    }
  }

 private:
  Window window(const PoolAttrs& attrs, const PieceFacts& facts, size_t i, int64_t o) const {
    const int64_t size = in[3 - attrs.kernel.size() + i], step = attrs.dilation[i];
    Window w;
    w.start = o * attrs.stride[i] - attrs.pad_begin[i];
    // Places below `limit`: k with start + k step < limit.
    const auto places_below = [&](int64_t limit) {
      return std::clamp<int64_t>((limit - w.start + step - 1) / step, 0, attrs.kernel[i]);
    };
    w.begin = w.start >= 0 ? 0 : places_below(0);
    w.end = w.start >= size ? 0 : places_below(size);
    const int64_t uncounted = facts.uncounted_padding.empty() ? 0 : facts.uncounted_padding[i];
    const int64_t padded_end = size + attrs.pad_end[i] - uncounted;
    w.divisor = attrs.count_include_pad ? (w.start >= padded_end ? 0 : places_below(padded_end))
                                        : w.end - w.begin;
    return w;
  }
};

// Puts the values that are larger than the best so far in their place. No branches: which place
// wins cannot be predicted. NaN wins and stays.
template <class T>
void take_larger(const T* values, int64_t stride, int64_t count, int32_t place, Sum<T>* best,
                 int32_t* places) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<Sum<T>>(values[i * stride]);
    const Sum<T> before = best[i];
    const int32_t place_before = places[i];
    const bool wins = (value > before) | (value != value);
    best[i] = wins ? value : before;
    places[i] = wins ? place : place_before;
  }
}

template <class T, class Index>
void max_planes(const Geometry& geometry, const at::Tensor& x, at::Tensor& y, Index* where) {
  using S = Sum<T>;
  const int64_t x_size = volume(geometry.in), y_size = volume(geometry.out);
  const int64_t width = geometry.out[2];
  const T* input = x.data_ptr<T>();
  T* output = y.data_ptr<T>();
  for_each_plane(x.size(0) * x.size(1), geometry.work(), [&](int64_t plane) {
    const T* from = input + plane * x_size;
    std::vector<S> best(static_cast<size_t>(width));
    std::vector<int32_t> places(static_cast<size_t>(width));
    int64_t to = plane * y_size;
    geometry.for_each_line([&](const Window& depth, const Window& row) {
      std::fill(best.begin(), best.end(), -std::numeric_limits<S>::infinity());
      std::fill(places.begin(), places.end(), 0);
      geometry.for_each_run(depth, row, [&](const Run& run, int64_t place) {
        take_larger(from + run.offset + run.begin * geometry.column_stride, geometry.column_stride,
                    run.end - run.begin, static_cast<int32_t>(place), best.data() + run.begin,
                    places.data() + run.begin);
      });
      for (int64_t o = 0; o < width; ++o, ++to) {
        output[to] = static_cast<T>(best[static_cast<size_t>(o)]);
        if (where != nullptr) where[to] = static_cast<Index>(places[static_cast<size_t>(o)]);
      }
    });
  });
}

// Averages of one plane whose lines are too short to be worth taking together.
template <class T>
void average_windows(const Geometry& geometry, const T* from, T* to) {
  using S = Sum<T>;
  geometry.for_each_output([&](int64_t o, const Window& d, const Window& r, const Window& c) {
    S sum = 0;
    geometry.for_each_place(d, r, c,
                            [&](int64_t offset, int64_t) { sum += static_cast<S>(from[offset]); });
    const auto divisor = static_cast<S>(d.divisor * r.divisor * c.divisor);
    to[o] = static_cast<T>(divisor > 0 ? sum / divisor : 0);
  });
}

template <class T>
void average_planes(const Geometry& geometry, const at::Tensor& x, at::Tensor& y) {
  using S = Sum<T>;
  const int64_t x_size = volume(geometry.in), y_size = volume(geometry.out);
  const int64_t width = geometry.out[2];
  const T* input = x.data_ptr<T>();
  T* output = y.data_ptr<T>();
  for_each_plane(x.size(0) * x.size(1), geometry.work(), [&](int64_t plane) {
    const T* from = input + plane * x_size;
    if (width < 4) {
      average_windows(geometry, from, output + plane * y_size);
      return;
    }
    std::vector<S> sums(static_cast<size_t>(width));
    int64_t to = plane * y_size;
    geometry.for_each_line([&](const Window& depth, const Window& row) {
      std::fill(sums.begin(), sums.end(), S(0));
      geometry.for_each_run(depth, row, [&](const Run& run, int64_t) {
        for (int64_t o = run.begin; o < run.end; ++o)
          sums[static_cast<size_t>(o)] +=
              static_cast<S>(from[run.offset + o * geometry.column_stride]);
      });
      const int64_t lines = depth.divisor * row.divisor;
      for (int64_t o = 0; o < width; ++o, ++to) {
        const auto column = static_cast<size_t>(o);
        const auto divisor = static_cast<S>(lines * geometry.windows[2][column].divisor);
        output[to] = static_cast<T>(divisor > 0 ? sums[column] / divisor : 0);
      }
    });
  });
}

// Every output element gives its gradient to the place where its maximum was.
template <class T, class Index>
void max_gradient(const Geometry& geometry, const at::Tensor& g, const at::Tensor& where,
                  Result& result) {
  const int64_t y_size = volume(geometry.out);
  const T* gradients = g.data_ptr<T>();
  const Index* places = where.data_ptr<Index>();
  const Triple &kernel = geometry.kernel, &dilation = geometry.dilation, &in = geometry.in;
  // Offset of a place along each axis, so that no element needs a division.
  std::vector<Triple> steps;
  for (int64_t k = 0; k < volume(kernel); ++k)
    steps.push_back({k / (kernel[1] * kernel[2]) * dilation[0],
                     k / kernel[2] % kernel[1] * dilation[1], k % kernel[2] * dilation[2]});
  scatter_planes<T>(result, y_size, [&](int64_t plane, Sum<T>* sums) {
    geometry.for_each_output([&](int64_t o, const Window& d, const Window& r, const Window& c) {
      const int64_t from = plane * y_size + o;
      const Triple& step = steps[static_cast<size_t>(places[from])];
      const int64_t i = d.start + step[0], j = r.start + step[1], k = c.start + step[2];
      // A window without any place inside has no maximum.
      if (i < 0 || i >= in[0] || j < 0 || j >= in[1] || k < 0 || k >= in[2]) return;
      sums[(i * in[1] + j) * in[2] + k] += static_cast<Sum<T>>(gradients[from]);
    });
  });
}

template <class T>
void average_gradient(const Geometry& geometry, const at::Tensor& g, Result& result) {
  const int64_t y_size = volume(geometry.out);
  const T* gradients = g.data_ptr<T>();
  scatter_planes<T>(result, geometry.work(), [&](int64_t plane, Sum<T>* sums) {
    geometry.for_each_output([&](int64_t o, const Window& d, const Window& r, const Window& c) {
      const auto divisor = static_cast<Sum<T>>(d.divisor * r.divisor * c.divisor);
      if (divisor == 0) return;
      const Sum<T> share = static_cast<Sum<T>>(gradients[plane * y_size + o]) / divisor;
      geometry.for_each_place(d, r, c, [&](int64_t offset, int64_t) { sums[offset] += share; });
    });
  });
}

}  // namespace

void pool_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<PoolAttrs>();
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  const Geometry geometry(attrs, call.facts, x.sizes(), y.sizes());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "pool", [&] {
    if (attrs.fn == PoolFn::Average) {
      average_planes<scalar_t>(geometry, x, y);
    } else if (!call.wants_auxiliary(0)) {
      max_planes<scalar_t, uint8_t>(geometry, x, y, nullptr);
    } else if (call.auxiliaries[0].type().dtype == DType::U8) {
      max_planes<scalar_t>(geometry, x, y, call.auxiliaries[0].allocate().data_ptr<uint8_t>());
    } else {
      max_planes<scalar_t>(geometry, x, y, call.auxiliaries[0].allocate().data_ptr<int32_t>());
    }
  });
}

void pool_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<PoolAttrs>();
  const at::Tensor& g = call.gradient();
  const Geometry geometry(attrs, call.facts, call.shape(0), g.sizes());
  Result& result = call.results[0];
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, g.scalar_type(), "pool", [&] {
    if (attrs.fn == PoolFn::Average)
      average_gradient<scalar_t>(geometry, g, result);
    else if (call.auxiliary(0).scalar_type() == at::kByte)
      max_gradient<scalar_t, uint8_t>(geometry, g, call.auxiliary(0), result);
    else
      max_gradient<scalar_t, int32_t>(geometry, g, call.auxiliary(0), result);
  });
}

}  // namespace windlass

// Single elements along an axis by an index each: the largest, and reading and writing where others
// were. One line after the other, so that a sum never depends on the number of threads.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include <ATen/ops/gather.h>
#include <ATen/ops/zeros_like.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// Indices from 0 on, as 64-bit integers; negative ones count from the end.
at::Tensor places_along(const at::Tensor& indices, int64_t size) {
  at::Tensor places = indices.to(at::kLong, false, true);
  auto* data = places.data_ptr<int64_t>();
  for (int64_t i = 0; i < places.numel(); ++i) {
    if (data[i] >= size || data[i] < -size)
      fail_input("index {} at position {} is out of range for an axis of {}", data[i], i, size);
    if (data[i] < 0) data[i] += size;
  }
  return places;
}

// The k first of a line in order.
template <class T>
void choose(const T* line, int64_t stride, int64_t size, const TopKAttrs& attrs,
            std::vector<int64_t>& order, T* values, int64_t* indices) {
  order.resize(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto before = [&](int64_t a, int64_t b) {
    using W = std::conditional_t<std::is_integral_v<T>, T, wide_t<T>>;
    const auto x = static_cast<W>(line[a * stride]), y = static_cast<W>(line[b * stride]);
    // NaN counts as the largest, as in PyTorch; of equals the first comes first.
    if constexpr (std::is_floating_point_v<W>)
      if (std::isnan(x) || std::isnan(y))
        return std::isnan(x) && std::isnan(y) ? a < b : std::isnan(attrs.largest ? x : y);
    return x == y ? a < b : attrs.largest ? x > y : x < y;
  };
  std::partial_sort(order.begin(), order.begin() + attrs.k, order.end(), before);
  for (int64_t i = 0; i < attrs.k; ++i) {
    values[i * stride] = line[order[static_cast<size_t>(i)] * stride];
    indices[i * stride] = order[static_cast<size_t>(i)];
  }
}

template <class T>
void choose_all(const at::Tensor& x, const TopKAttrs& attrs, at::Tensor& values,
                at::Tensor& indices) {
  const int64_t size = x.size(attrs.axis);
  int64_t inner = 1;
  for (int64_t i = attrs.axis + 1; i < x.dim(); ++i) inner *= x.size(i);
  const int64_t outer = size * inner == 0 ? 0 : x.numel() / (size * inner);
  std::vector<int64_t> order;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t n = 0; n < inner; ++n)
      choose(x.data_ptr<T>() + o * size * inner + n, inner, size, attrs, order,
             values.data_ptr<T>() + o * attrs.k * inner + n,
             indices.data_ptr<int64_t>() + o * attrs.k * inner + n);
}

// Adds `values` at the places of `sum`, or of a fresh tensor of zeros.
void add_at(Result& result, int64_t axis, const at::Tensor& places, const at::Tensor& values) {
  at::Tensor& sum = result.adds() ? result.sum() : result.allocate().zero_();
  sum.scatter_add_(axis, places, values.to(sum.scalar_type()));
}

}  // namespace

void gather_elements_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  at::gather_out(call.outputs[0].allocate(), x, axis, places_along(call.input(1), x.size(axis)));
}

void gather_elements_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  const int64_t size = call.shape(0)[static_cast<size_t>(axis)];
  add_at(call.results[0], axis, places_along(call.input(1), size), call.gradient());
}

void scatter_elements_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<ScatterAttrs>();
  at::Tensor& y = call.outputs[0].allocate();
  y.copy_(call.input(0));
  const at::Tensor places = places_along(call.input(1), y.size(attrs.axis));
  if (attrs.add)
    y.scatter_add_(attrs.axis, places, call.input(2));
  else
    y.scatter_(attrs.axis, places, call.input(2));
}

void scatter_elements_backward(BackwardCall& call) {
  const auto& attrs = call.attrs<ScatterAttrs>();
  const at::Tensor& g = call.gradient();
  const at::Tensor places = places_along(call.input(1), g.size(attrs.axis));
  if (call.wants(0)) {
    at::Tensor data = g.clone();
    data.scatter_(attrs.axis, places, 0);
    call.results[0].set(std::move(data));
  }
  if (!call.wants(2)) return;
  at::Tensor updates = at::gather(g, attrs.axis, places);
  if (!attrs.add) {
    // Of several that were written to one place, the last one stayed.
    at::Tensor numbers = places.clone();
    std::iota(numbers.data_ptr<int64_t>(), numbers.data_ptr<int64_t>() + numbers.numel(),
              int64_t{0});
    at::Tensor last = at::zeros_like(g, g.options().dtype(at::kLong));
    last.scatter_(attrs.axis, places, numbers);
    updates.masked_fill_(at::gather(last, attrs.axis, places).ne_(numbers).to(at::kBool), 0);
  }
  call.results[2].set(std::move(updates));
}

void top_k_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  const auto& attrs = call.attrs<TopKAttrs>();
  at::Tensor& values = call.outputs[0].allocate();
  at::Tensor& indices = call.outputs[1].allocate();
  if (c10::isFloatingType(x.scalar_type()))
    with_float_type(x.scalar_type(),
                    [&](auto zero) { choose_all<decltype(zero)>(x, attrs, values, indices); });
  else
    with_integer_type(x.scalar_type(),
                      [&](auto zero) { choose_all<decltype(zero)>(x, attrs, values, indices); });
}

void top_k_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  add_at(call.results[0], call.attrs<TopKAttrs>().axis, call.output(1), call.gradient());
}

}  // namespace windlass

// Rows of a table by index; of a piece of the table those that it has, and zeros for others.
// Gradients add rows in place, one after the other in the order of the indices; threads divide the
// columns, so that a sum never depends on how many there are.

#include <algorithm>
#include <cstring>
#include <vector>

#include <ATen/Parallel.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

constexpr int64_t kLookupGrain = int64_t{1} << 15;  // elements worth a thread

// A tensor seen from one axis: element (o, i, n) is at (o * size + i) * inner + n.
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
};

AxisView view_axis(at::IntArrayRef shape, size_t axis) {
  AxisView view;
  for (size_t i = 0; i < shape.size(); ++i)
    (i < axis ? view.outer : i == axis ? view.size : view.inner) *= shape[i];
  return view;
}

// Row of each index in a table of which `here` are there, so many as `local`; -1 for those that are
// not. Negative indices count from the end if `from_end`. `what` names an index.
std::vector<int64_t> resolve(const at::Tensor& indices, const AxisPart& here, int64_t local,
                             bool from_end, std::string_view what, std::string_view of) {
  const int64_t size = here.whole_size(local);
  const bool whole = size == local;
  std::vector<int64_t> rows(static_cast<size_t>(indices.numel()));
  with_integer_type(indices.scalar_type(), [&](auto zero) {
    const auto* data = indices.data_ptr<decltype(zero)>();
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto index = static_cast<int64_t>(data[i]);
      if (index >= size || index < (from_end ? -size : 0))
        fail_input("{} {} at position {} is out of range for {} of {}", what, index, i, of, size);
      const int64_t row = index < 0 ? index + size : index;
      rows[i] = whole ? row : here.to_local(row);
    }
  });
  return rows;
}

void copy_rows(const at::Tensor& table, const AxisView& view, const std::vector<int64_t>& rows,
               at::Tensor& y) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t bytes = view.inner * static_cast<int64_t>(table.element_size());
  const auto* from = static_cast<const char*>(table.data_ptr());
  auto* to = static_cast<char*>(y.data_ptr());
  const int64_t grain = std::max<int64_t>(1, kLookupGrain / std::max<int64_t>(1, view.inner));
  at::parallel_for(0, view.outer * count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = rows[static_cast<size_t>(k % count)];
      if (row < 0)
        std::memset(to + k * bytes, 0, static_cast<size_t>(bytes));
      else
        std::memcpy(to + k * bytes, from + (k / count * view.size + row) * bytes,
                    static_cast<size_t>(bytes));
    }
  });
}

// Adds the columns [first, last) of every row of g to the row of `sum` that it was read from. A
// 16-bit sum is rounded at each addition, as PyTorch's is.
template <class G, class T>
void add_columns(const G* g, const AxisView& view, const std::vector<int64_t>& rows, int64_t first,
                 int64_t last, T* sum) {
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = rows[static_cast<size_t>(k)];
      if (row < 0) continue;
      const G* from = g + (o * count + k) * view.inner;
      T* to = sum + (o * view.size + row) * view.inner;
#pragma omp simd
      for (int64_t i = first; i < last; ++i)
        to[i] = static_cast<T>(static_cast<wide_t<T>>(to[i]) + static_cast<wide_t<T>>(from[i]));
    }
  }
}

void add_rows(const at::Tensor& g, const AxisView& view, const std::vector<int64_t>& rows,
              Result& result) {
  at::Tensor& sum = result.adds() ? result.sum() : result.allocate().zero_();
  // Whole cache lines of columns to each thread.
  constexpr int64_t kLine = 64;
  const auto rows_read = view.outer * static_cast<int64_t>(rows.size());
  const int64_t grain =
      std::max<int64_t>(1, kLookupGrain / std::max<int64_t>(1, rows_read * kLine));
  with_float_type(sum.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const at::Tensor same = g.scalar_type() == sum.scalar_type() ? g : g.to(sum.scalar_type());
    const T* from = same.data_ptr<T>();
    T* to = sum.data_ptr<T>();
    at::parallel_for(0, (view.inner + kLine - 1) / kLine, grain, [&](int64_t begin, int64_t end) {
      add_columns(from, view, rows, begin * kLine, std::min(end * kLine, view.inner), to);
    });
  });
}

}  // namespace

void embedding_forward(ForwardCall& call) {
  const at::Tensor& table = call.input(1);
  const std::vector<int64_t> rows =
      resolve(call.input(0), call.facts.rows, table.size(0), false, "token", "a vocabulary");
  copy_rows(table, view_axis(table.sizes(), 0), rows, call.outputs[0].allocate());
}

void embedding_backward(BackwardCall& call) {
  if (!call.wants(1)) return;
  const Shape& table = call.shape(1);
  const std::vector<int64_t> rows =
      resolve(call.input(0), call.facts.rows, table[0], false, "token", "a vocabulary");
  add_rows(call.gradient(), view_axis(table, 0), rows, call.results[1]);
}

void gather_forward(ForwardCall& call) {
  const at::Tensor& table = call.input(0);
  const AxisView view = view_axis(table.sizes(), static_cast<size_t>(call.attrs<AxisAttrs>().axis));
  const std::vector<int64_t> rows =
      resolve(call.input(1), call.facts.rows, view.size, true, "index", "an axis");
  copy_rows(table, view, rows, call.outputs[0].allocate());
}

void gather_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const AxisView view = view_axis(call.shape(0), static_cast<size_t>(call.attrs<AxisAttrs>().axis));
  const std::vector<int64_t> rows =
      resolve(call.input(1), call.facts.rows, view.size, true, "index", "an axis");
  add_rows(call.gradient(), view, rows, call.results[0]);
}

}  // namespace windlass

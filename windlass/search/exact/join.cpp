#include "windlass/search/exact/join.h"

#include <algorithm>
#include <limits>

namespace windlass {
namespace {

// result[i] = min(result[i], base + sum of rows[i]). The same code for several instruction sets:
// minimum and sum of whole numbers are the same in each.
template <int kRows>
[[gnu::always_inline]] inline void lower_by(double* __restrict result, const double* const* rows,
                                            double base, int64_t count) {
  const double* __restrict x = rows[0];
  const double* __restrict y = rows[kRows > 1 ? 1 : 0];
  const double* __restrict z = rows[kRows > 2 ? 2 : 0];
  for (int64_t i = 0; i < count; ++i) {
    double sum = base + x[i];
    if constexpr (kRows > 1) sum += y[i];
    if constexpr (kRows > 2) sum += z[i];
    result[i] = sum < result[i] ? sum : result[i];
  }
}

[[gnu::always_inline]] inline void lower_rows(double* result, const double* const* rows,
                                              size_t row_count, double base, int64_t count) {
  switch (row_count) {
    case 1: return lower_by<1>(result, rows, base, count);
    case 2: return lower_by<2>(result, rows, base, count);
    default: return lower_by<3>(result, rows, base, count);
  }
}

using LowerRows = void (*)(double*, const double* const*, size_t, double, int64_t);

void lower_rows_plain(double* result, const double* const* rows, size_t row_count, double base,
                      int64_t count) {
  lower_rows(result, rows, row_count, base, count);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void lower_rows_avx2(double* result, const double* const* rows,
                                             size_t row_count, double base, int64_t count) {
  lower_rows(result, rows, row_count, base, count);
}
#endif

LowerRows pick_lower_rows() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return lower_rows_avx2;
#endif
  return lower_rows_plain;
}

std::vector<int64_t> strides_of(const JoinTerm& term, std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size(), 0);
  int64_t stride = 1;
  for (size_t i = term.axes.size(); i-- > 0;) {
    const auto axis = static_cast<size_t>(term.axes[i]);
    strides[axis] = stride;
    stride *= sizes[axis];
  }
  return strides;
}

// The table with its axes in another order.
std::vector<double> turned(const JoinTerm& term, const std::vector<int32_t>& axes,
                           std::span<const int64_t> sizes) {
  const std::vector<int64_t> strides = strides_of(term, sizes);
  int64_t count = 1;
  for (int32_t axis : axes) count *= sizes[static_cast<size_t>(axis)];
  std::vector<double> cells(static_cast<size_t>(count));
  std::vector<int64_t> at(axes.size(), 0);
  const size_t last = axes.size() - 1;
  const int64_t row = sizes[static_cast<size_t>(axes[last])];
  const int64_t step = strides[static_cast<size_t>(axes[last])];
  for (int64_t i = 0; i < count; i += row) {
    int64_t offset = 0;
    for (size_t k = 0; k < last; ++k) offset += at[k] * strides[static_cast<size_t>(axes[k])];
    for (int64_t j = 0; j < row; ++j)
      cells[static_cast<size_t>(i + j)] = term.cells[offset + j * step];
    for (size_t k = last; k-- > 0;) {
      if (++at[k] < sizes[static_cast<size_t>(axes[k])]) break;
      at[k] = 0;
    }
  }
  return cells;
}

}  // namespace

void lower_row(double* result, const double* row, double base, int64_t count) {
  static const LowerRows lower = pick_lower_rows();
  lower(result, &row, 1, base, count);
}

int64_t Join::outer() const {
  int64_t count = 1;
  for (size_t axis = 1; axis + 1 < sizes.size(); ++axis) count *= sizes[axis];
  return count;
}

void Join::prepare() {
  const auto last = static_cast<int32_t>(sizes.size() - 1);
  const auto rows = static_cast<size_t>(sizes[0]), columns = static_cast<size_t>(sizes.back());
  // Terms of axis 0 alone, or of axis 0 and the last, become one table.
  std::vector<double> common;
  std::vector<JoinTerm> rest;
  for (const JoinTerm& term : terms) {
    const bool small =
        std::ranges::all_of(term.axes, [&](int32_t a) { return a == 0 || a == last; });
    if (!small) {
      rest.push_back(term);
      continue;
    }
    if (common.empty()) common.assign(rows * columns, 0.0);
    const std::vector<int64_t> strides = strides_of(term, sizes);
    const int64_t own = strides[0], along = strides.back();
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j)
        common[i * columns + j] +=
            term.cells[static_cast<int64_t>(i) * own + static_cast<int64_t>(j) * along];
  }
  if (!common.empty()) {
    copies_.push_back(std::move(common));
    rest.push_back({copies_.back().data(), {0, last}});
  }
  for (JoinTerm& term : rest) {
    const bool inner = std::ranges::find(term.axes, last) != term.axes.end();
    if (inner && term.axes.back() != last) {
      std::vector<int32_t> axes = term.axes;
      std::erase(axes, last);
      axes.push_back(last);
      copies_.push_back(turned(term, axes, sizes));
      term = {copies_.back().data(), axes};
    }
    const std::vector<int64_t> strides = strides_of(term, sizes);
    Prepared made;
    made.cells = term.cells;
    made.inner = inner;
    made.own = strides[0];
    for (size_t axis = 1; axis + 1 < sizes.size(); ++axis) made.strides.push_back(strides[axis]);
    prepared_.push_back(made);
  }
}

void Join::run(int64_t begin, int64_t end, double* result) const {
  static const LowerRows lower = pick_lower_rows();
  constexpr size_t kMostRows = 3;
  const int64_t columns = inner();
  const size_t between = sizes.size() - 2;
  std::vector<const double*> inner_terms, flat_terms;
  std::vector<int64_t> inner_own, flat_own;
  std::vector<double> sums;
  std::vector<int64_t> at(between);
  for (int64_t i = begin; i < end; ++i) {
    int64_t rest = i;
    for (size_t k = between; k-- > 0;) {
      at[k] = rest % sizes[k + 1];
      rest /= sizes[k + 1];
    }
    inner_terms.clear();
    flat_terms.clear();
    inner_own.clear();
    flat_own.clear();
    for (const Prepared& term : prepared_) {
      int64_t offset = 0;
      for (size_t k = 0; k < between; ++k) offset += at[k] * term.strides[k];
      (term.inner ? inner_terms : flat_terms).push_back(term.cells + offset);
      (term.inner ? inner_own : flat_own).push_back(term.own);
    }
    double* row = result + i * columns;
    std::fill(row, row + columns, std::numeric_limits<double>::infinity());
    const double* rows[kMostRows] = {};
    for (int64_t option = 0; option < sizes[0]; ++option) {
      double base = 0;
      for (size_t t = 0; t < flat_terms.size(); ++t) base += flat_terms[t][option * flat_own[t]];
      if (inner_terms.size() <= kMostRows) {
        for (size_t t = 0; t < inner_terms.size(); ++t)
          rows[t] = inner_terms[t] + option * inner_own[t];
        lower(row, rows, inner_terms.size(), base, columns);
        continue;
      }
      sums.assign(static_cast<size_t>(columns), 0.0);
      for (size_t t = 0; t < inner_terms.size(); ++t)
        for (int64_t c = 0; c < columns; ++c)
          sums[static_cast<size_t>(c)] += inner_terms[t][option * inner_own[t] + c];
      rows[0] = sums.data();
      lower(row, rows, 1, base, columns);
    }
  }
}

}  // namespace windlass

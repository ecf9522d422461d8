#include "windlass/graph/reference/pieces.h"

#include <algorithm>
#include <cmath>

#include "windlass/graph/reference/array.h"

namespace windlass::reference {
namespace {

constexpr double kPieceTolerance = 1e-9;
constexpr double kIgnored = CrossEntropyAttrs{}.ignore_index;

}  // namespace

Ranges whole_ranges(const LoopNest& nest) {
  Ranges result;
  for (const LoopDim& loop : nest.loops) result.push_back({0, loop.size});
  return result;
}

std::vector<bool> region(const OperandMap& map, const Shape& shape, const Ranges& ranges) {
  std::vector<Range> axes;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int32_t loop = map[axis].loop;
    axes.push_back(loop < 0 ? Range{0, shape[axis]}
                            : axis_range(map[axis], ranges[static_cast<size_t>(loop)],
                                         shape[axis] / map[axis].blocks));
  }
  const Strides strides = row_major_strides(shape);
  std::vector<bool> inside(static_cast<size_t>(element_count(shape)), true);
  for (size_t i = 0; i < inside.size(); ++i) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t run = map[axis].loop < 0 ? shape[axis] : shape[axis] / map[axis].blocks;
      const int64_t at = static_cast<int64_t>(i) / strides[axis] % shape[axis] % run;
      if (at < axes[axis].begin || at >= axes[axis].end) inside[i] = false;
    }
  }
  return inside;
}

bool has_loop(const OperandMap& map, size_t loop) {
  return std::any_of(map.begin(), map.end(),
                     [&](const AxisMap& axis) { return axis.loop == static_cast<int32_t>(loop); });
}

bool is_bias(OpKind kind, size_t input) {
  return (kind == OpKind::Linear || kind == OpKind::Conv) && input == 2;
}

void disturb(Array& array, const std::vector<bool>& inside, bool integer, Rng& rng) {
  const std::vector<double> values = array.values;
  for (size_t i = 0; i < values.size(); ++i) {
    if (inside[i] || values[i] == kIgnored) continue;
    const auto pick = static_cast<size_t>(rng.integer(0, static_cast<int64_t>(values.size()) - 1));
    if (values[pick] == kIgnored) continue;
    array.values[i] = integer ? values[pick] : values[pick] * rng.uniform(1.1, 1.9);
  }
}

void fill_outside(Array& array, const std::vector<bool>& inside, double value) {
  for (size_t i = 0; i < inside.size(); ++i)
    if (!inside[i]) array.values[i] = value;
}

Ranges random_piece(const LoopNest& nest, Rng& rng) {
  Ranges ranges = whole_ranges(nest);
  for (size_t l = 0; l < nest.loops.size(); ++l) {
    const LoopDim& loop = nest.loops[l];
    if (loop.role != LoopRole::Free || loop.size < 2 || rng.chance(0.3)) continue;
    const int64_t begin = rng.integer(0, loop.size - 1);
    ranges[l] = {begin, rng.integer(begin + 1, loop.size)};
  }
  return ranges;
}

std::vector<Ranges> cut_loop(const LoopNest& nest, size_t loop, Rng& rng) {
  const int64_t size = nest.loops[loop].size;
  std::vector<int64_t> cuts = {0, rng.integer(1, size - 1), rng.integer(1, size - 1), size};
  std::sort(cuts.begin(), cuts.end());
  std::vector<Ranges> pieces;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    if (cuts[i] == cuts[i + 1]) continue;
    pieces.push_back(whole_ranges(nest));
    pieces.back()[loop] = {cuts[i], cuts[i + 1]};
  }
  return pieces;
}

void expect_same(const Array& found, const Array& expected, const std::vector<bool>& where,
                 const std::string& what) {
  ASSERT_EQ(found.shape, expected.shape) << what;
  for (size_t i = 0; i < where.size(); ++i) {
    if (where[i]) {
      ASSERT_NEAR(found.values[i], expected.values[i],
                  kPieceTolerance * (1 + std::abs(expected.values[i])))
          << what << ", element " << i;
    }
  }
}

}  // namespace windlass::reference

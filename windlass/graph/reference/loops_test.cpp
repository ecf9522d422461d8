// The loops of every op against what the op really reads and writes.
//
// A piece is a range of each loop that can be split. By the loop nest it reads a region of every
// input and owns a region of every output. The tests change everything outside the stated regions:
// what the piece owns must stay.

#include <algorithm>
#include <limits>

#include "windlass/graph/reference/pieces.h"

namespace windlass::reference {
namespace {

void check_well_formed(const Subject& s) {
  const size_t loops = s.nest.loops.size();
  const auto check = [&](const std::vector<OperandMap>& maps,
                         const std::vector<TensorType>& types) {
    ASSERT_EQ(maps.size(), types.size());
    for (size_t i = 0; i < maps.size(); ++i) {
      ASSERT_EQ(maps[i].size(), types[i].shape.size()) << "operand " << i;
      for (const AxisMap& axis : maps[i]) ASSERT_LT(axis.loop, static_cast<int32_t>(loops));
    }
  };
  check(s.nest.inputs, s.signature.inputs);
  check(s.nest.outputs, s.signature.outputs);
  check(s.nest.auxiliaries, s.signature.auxiliaries);
}

// The pieces of a loop own every element of an output that has the loop exactly once.
void check_partition(const Subject& s, Rng& rng) {
  for (size_t l = 0; l < s.nest.loops.size(); ++l) {
    if (s.nest.loops[l].size < 2 || s.nest.loops[l].role == LoopRole::Whole) continue;
    const std::vector<Ranges> pieces = cut_loop(s.nest, l, rng);
    const auto check = [&](const OperandMap& map, const Shape& shape) {
      if (!has_loop(map, l)) return;
      std::vector<int> owners(static_cast<size_t>(element_count(shape)), 0);
      for (const Ranges& piece : pieces) {
        const std::vector<bool> inside = region(map, shape, piece);
        for (size_t i = 0; i < owners.size(); ++i) owners[i] += inside[i] ? 1 : 0;
      }
      for (size_t i = 0; i < owners.size(); ++i)
        ASSERT_EQ(owners[i], 1) << "loop " << s.nest.loops[l].name << ", element " << i;
    };
    for (size_t o = 0; o < s.nest.outputs.size(); ++o)
      check(s.nest.outputs[o], s.signature.outputs[o].shape);
    for (size_t a = 0; a < s.nest.auxiliaries.size(); ++a)
      check(s.nest.auxiliaries[a], s.signature.auxiliaries[a].shape);
  }
}

// What a piece owns does not depend on inputs outside its regions.
void check_forward(const Subject& s, Rng& rng) {
  const Ranges piece = random_piece(s.nest, rng);
  OpCase changed = s.c;
  for (size_t i = 0; i < s.c.inputs.size(); ++i) {
    if (s.present(i)) {
      disturb(changed.inputs[i].array, s.input_region(i, piece), !is_float(s.c.inputs[i].dtype),
              rng);
    }
  }
  const ForwardResult found = s.run(changed);
  for (size_t o = 0; o < found.outputs.size(); ++o) {
    expect_same(found.outputs[o], s.whole.outputs[o], s.output_region(o, piece),
                fmt::format("output {}", o));
  }
  for (size_t a = 0; a < found.auxiliaries.size(); ++a) {
    expect_same(found.auxiliaries[a], s.whole.auxiliaries[a], s.auxiliary_region(a, piece),
                fmt::format("auxiliary {}", a));
  }
}

double neutral(CombineFn combine) {
  switch (combine) {
    case CombineFn::Sum: return 0;
    case CombineFn::Max: return -std::numeric_limits<double>::infinity();
    case CombineFn::Min: return std::numeric_limits<double>::infinity();
  }
  return 0;
}

double combined(CombineFn combine, double a, double b) {
  switch (combine) {
    case CombineFn::Sum: return a + b;
    case CombineFn::Max: return std::max(a, b);
    case CombineFn::Min: return std::min(a, b);
  }
  return 0;
}

// The op on one piece of a reduced loop, with neutral elements for what belongs to other pieces.
OpCase only_piece(const Subject& s, size_t loop, const Ranges& piece, bool first) {
  const double none = neutral(s.nest.loops[loop].combine);
  OpCase changed = s.c;
  for (size_t i = 0; i < s.c.inputs.size(); ++i) {
    Array& array = changed.inputs[i].array;
    if (!s.present(i)) continue;
    if (s.c.kind == OpKind::CrossEntropy && i == 1) {
      fill_outside(array, s.input_region(i, piece),
                   static_cast<double>(std::get<CrossEntropyAttrs>(s.c.attrs).ignore_index));
    } else if (is_float(s.c.inputs[i].dtype)) {
      fill_outside(array, s.input_region(i, piece), none);
      if (is_bias(s.c.kind, i) && !first) std::fill(array.values.begin(), array.values.end(), 0);
    }
  }
  return changed;
}

// Share of a piece in a mean over the rows that count; for other ops its result is its share.
double share(const OpCase& piece, const OpCase& whole) {
  if (whole.kind != OpKind::CrossEntropy) return 1;
  const auto ignored = std::get<CrossEntropyAttrs>(whole.attrs).ignore_index;
  const auto count = [&](const OpCase& c) {
    const std::vector<double>& labels = c.inputs[1].array.values;
    return static_cast<double>(static_cast<int64_t>(labels.size()) -
                               std::count(labels.begin(), labels.end(), ignored));
  };
  return count(piece) / count(whole);
}

// Outputs and auxiliaries that lack a reduced loop are the combination of the results of its
// pieces.
void check_reduced(const Subject& s, Rng& rng) {
  for (size_t l = 0; l < s.nest.loops.size(); ++l) {
    const LoopDim& loop = s.nest.loops[l];
    if (loop.role != LoopRole::Reduced || loop.size < 2) continue;
    std::vector<Array> totals, aux_totals;
    for (const Array& output : s.whole.outputs)
      totals.emplace_back(output.shape, neutral(loop.combine));
    for (const Array& auxiliary : s.whole.auxiliaries)
      aux_totals.emplace_back(auxiliary.shape, neutral(loop.combine));
    bool first = true;
    for (const Ranges& piece : cut_loop(s.nest, l, rng)) {
      const OpCase changed = only_piece(s, l, piece, first);
      first = false;
      const double weight = share(changed, s.c);
      if (weight == 0) continue;
      const ForwardResult found = s.run(changed);
      for (size_t o = 0; o < totals.size(); ++o) {
        for (size_t i = 0; i < totals[o].values.size(); ++i) {
          totals[o].values[i] =
              combined(loop.combine, totals[o].values[i], weight * found.outputs[o].values[i]);
        }
      }
      for (size_t a = 0; a < found.auxiliaries.size(); ++a) {
        if (has_loop(s.nest.auxiliaries[a], l)) {
          expect_same(found.auxiliaries[a], s.whole.auxiliaries[a], s.auxiliary_region(a, piece),
                      fmt::format("loop {}, auxiliary {}", loop.name, a));
          continue;
        }
        for (size_t i = 0; i < aux_totals[a].values.size(); ++i) {
          aux_totals[a].values[i] =
              combined(loop.combine, aux_totals[a].values[i], found.auxiliaries[a].values[i]);
        }
      }
    }
    for (size_t a = 0; a < aux_totals.size(); ++a) {
      if (has_loop(s.nest.auxiliaries[a], l)) continue;
      expect_same(aux_totals[a], s.whole.auxiliaries[a],
                  s.auxiliary_region(a, whole_ranges(s.nest)),
                  fmt::format("loop {}, auxiliary {}", loop.name, a));
    }
    for (size_t o = 0; o < totals.size(); ++o) {
      ASSERT_FALSE(has_loop(s.nest.outputs[o], l)) << "output " << o << " has loop " << loop.name;
      expect_same(totals[o], s.whole.outputs[o], s.output_region(o, whole_ranges(s.nest)),
                  fmt::format("loop {}, output {}", loop.name, o));
    }
  }
}

TEST(Loops, DescribeEveryOperand) {
  for_all_cases([](const Subject& s, Rng&) { check_well_formed(s); });
}
TEST(Loops, PiecesPartitionTheOutputs) { for_all_cases(check_partition); }
TEST(Loops, PiecesReadOnlyTheirRegions) { for_all_cases(check_forward); }
TEST(Loops, ReducedPiecesCombineToTheWhole) { for_all_cases(check_reduced); }

}  // namespace
}  // namespace windlass::reference

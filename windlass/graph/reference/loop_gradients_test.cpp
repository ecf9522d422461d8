// The loops of every op against its gradients: the gradient of an input lives where the input does
// and is a sum over the pieces that read it.

#include <algorithm>

#include "windlass/graph/reference/pieces.h"

namespace windlass::reference {
namespace {

// The backward op with given saved tensors.
struct Backward {
  std::vector<bool> wanted;
  GradientRule rule;
  std::vector<Array> saved;

  explicit Backward(const Subject& s) {
    for (const Operand& input : s.c.inputs) wanted.push_back(is_float(input.dtype));
    rule = op_info(s.c.kind).gradient(s.signature, wanted);
    for (size_t i = 0; i < wanted.size(); ++i)
      if (rule.inputs[i] != GradientSource::Computed) wanted[i] = false;
    rule = op_info(s.c.kind).gradient(s.signature, wanted);
    for (const SavedRef& ref : rule.saved) {
      const auto index = static_cast<size_t>(ref.index);
      saved.push_back(ref.source == SavedRef::Source::Input    ? s.c.inputs[index].array
                      : ref.source == SavedRef::Source::Output ? s.whole.outputs[index]
                                                               : s.whole.auxiliaries[index]);
    }
  }

  bool any() const { return std::find(wanted.begin(), wanted.end(), true) != wanted.end(); }

  std::vector<Array> run(const Subject& s, const std::vector<Array>& gradients,
                         const std::vector<Array>& tensors) const {
    std::vector<const Array*> arriving, kept;
    for (size_t o = 0; o < gradients.size(); ++o)
      arriving.push_back(is_float(s.signature.outputs[o].dtype) ? &gradients[o] : nullptr);
    for (const Array& tensor : tensors) kept.push_back(&tensor);
    return interpret_backward(s.signature, rule, wanted, arriving, kept, s.c.random);
  }

  static std::vector<bool> saved_region(const Subject& s, const SavedRef& ref,
                                        const Ranges& piece) {
    const auto index = static_cast<size_t>(ref.index);
    return ref.source == SavedRef::Source::Input    ? s.input_region(index, piece)
           : ref.source == SavedRef::Source::Output ? s.output_region(index, piece)
                                                    : s.auxiliary_region(index, piece);
  }
  static bool is_integer_ref(const Subject& s, const SavedRef& ref) {
    const auto index = static_cast<size_t>(ref.index);
    const TensorType& type = ref.source == SavedRef::Source::Input ? s.signature.inputs[index]
                             : ref.source == SavedRef::Source::Output
                                 ? s.signature.outputs[index]
                                 : s.signature.auxiliaries[index];
    return !is_float(type.dtype);
  }
};

std::vector<Array> random_gradients(const Subject& s, Rng& rng) {
  std::vector<Array> gradients;
  for (const TensorType& type : s.signature.outputs) {
    gradients.emplace_back(type.shape);
    for (double& value : gradients.back().values) value = rng.uniform(0.2, 1);
  }
  return gradients;
}

// A piece that has the output gradients of its own outputs computes the gradients of its regions of
// the inputs from its regions of the saved tensors, and contributes nothing elsewhere.
void check_backward(const Subject& s, Rng& rng) {
  if (op_info(s.c.kind).gradient == nullptr) return;
  const Backward backward(s);
  if (!backward.any()) return;
  const Ranges piece = random_piece(s.nest, rng);
  std::vector<Array> gradients = random_gradients(s, rng);
  for (size_t o = 0; o < gradients.size(); ++o)
    fill_outside(gradients[o], s.output_region(o, piece), 0);
  const std::vector<Array> expected = backward.run(s, gradients, backward.saved);

  std::vector<Array> disturbed = backward.saved;
  for (size_t i = 0; i < disturbed.size(); ++i) {
    disturb(disturbed[i], Backward::saved_region(s, backward.rule.saved[i], piece),
            Backward::is_integer_ref(s, backward.rule.saved[i]), rng);
  }
  const std::vector<Array> found = backward.run(s, gradients, disturbed);

  for (size_t i = 0; i < found.size(); ++i) {
    if (!backward.wanted[i]) continue;
    const std::vector<bool> inside = s.input_region(i, piece);
    expect_same(found[i], expected[i], inside, fmt::format("gradient of input {}", i));
    for (size_t e = 0; e < inside.size(); ++e) {
      if (!inside[e]) {
        ASSERT_EQ(expected[i].values[e], 0) << "gradient of input " << i << ", element " << e;
      }
    }
  }
}

// Pieces of a reduced loop all have the whole output gradient. Inputs that have the loop get their
// part of the gradient from their piece; for the others (but a bias) the pieces add up.
void check_reduced_backward(const Subject& s, Rng& rng) {
  if (op_info(s.c.kind).gradient == nullptr) return;
  const Backward backward(s);
  if (!backward.any()) return;
  const std::vector<Array> gradients = random_gradients(s, rng);
  const std::vector<Array> expected = backward.run(s, gradients, backward.saved);
  for (size_t l = 0; l < s.nest.loops.size(); ++l) {
    const LoopDim& loop = s.nest.loops[l];
    if (loop.role != LoopRole::Reduced || loop.size < 2) continue;
    std::vector<Array> totals;
    for (const Array& gradient : expected) totals.emplace_back(gradient.shape);
    for (const Ranges& piece : cut_loop(s.nest, l, rng)) {
      std::vector<Array> disturbed = backward.saved, zeroed = backward.saved;
      for (size_t i = 0; i < disturbed.size(); ++i) {
        const SavedRef& ref = backward.rule.saved[i];
        const std::vector<bool> inside = Backward::saved_region(s, ref, piece);
        disturb(disturbed[i], inside, Backward::is_integer_ref(s, ref), rng);
        if (!Backward::is_integer_ref(s, ref)) fill_outside(zeroed[i], inside, 0);
      }
      const std::vector<Array> found = backward.run(s, gradients, disturbed);
      const std::vector<Array> partial = backward.run(s, gradients, zeroed);
      for (size_t i = 0; i < found.size(); ++i) {
        if (!backward.wanted[i]) continue;
        if (has_loop(s.nest.inputs[i], l)) {
          expect_same(found[i], expected[i], s.input_region(i, piece),
                      fmt::format("loop {}, gradient of input {}", loop.name, i));
        }
        for (size_t e = 0; e < totals[i].values.size(); ++e)
          totals[i].values[e] += partial[i].values[e];
      }
    }
    for (size_t i = 0; i < totals.size(); ++i) {
      if (backward.wanted[i] && !has_loop(s.nest.inputs[i], l) && !is_bias(s.c.kind, i)) {
        expect_same(totals[i], expected[i], s.input_region(i, whole_ranges(s.nest)),
                    fmt::format("loop {}, sum of gradients of input {}", loop.name, i));
      }
    }
  }
}

TEST(LoopGradients, PiecesReadOnlyTheirRegions) { for_all_cases(check_backward); }
TEST(LoopGradients, ReducedPiecesAddUp) { for_all_cases(check_reduced_backward); }

}  // namespace
}  // namespace windlass::reference

// The gradient of every op against central differences, for every set of inputs that may want one.
//
// interpret_backward reads only what the rule of the op table saves for the wanted gradients, so
// these tests also show that each rule saves enough.

#include <cmath>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/reference/op_cases.h"

namespace windlass::reference {
namespace {

constexpr double kStep = 1e-5;
constexpr double kTolerance = 1e-5;
constexpr uint64_t kSeeds = 6;

// Gradients of the outputs: null where nobody asks.
std::vector<const Array*> pointers(const std::vector<Array>& arrays,
                                   const std::vector<bool>& used) {
  std::vector<const Array*> result;
  for (size_t i = 0; i < arrays.size(); ++i) result.push_back(used[i] ? &arrays[i] : nullptr);
  return result;
}

// Sum of all outputs weighted by the output gradients.
double objective(const OpCase& c, const Signature& signature,
                 const std::vector<const Array*>& output_gradients) {
  const ForwardResult result = interpret_forward(signature, c.arrays(), c.random);
  double total = 0;
  for (size_t o = 0; o < result.outputs.size(); ++o) {
    if (output_gradients[o] != nullptr) {
      for (size_t i = 0; i < result.outputs[o].values.size(); ++i)
        total += result.outputs[o].values[i] * output_gradients[o]->values[i];
    }
  }
  return total;
}

Array central_difference(OpCase c, size_t input,
                         const std::vector<const Array*>& output_gradients) {
  const Signature signature = c.signature();
  Array result(c.inputs[input].array.shape);
  for (size_t i = 0; i < result.values.size(); ++i) {
    double& value = c.inputs[input].array.values[i];
    const double middle = value;
    value = middle + kStep;
    const double above = objective(c, signature, output_gradients);
    value = middle - kStep;
    const double below = objective(c, signature, output_gradients);
    value = middle;
    result.values[i] = (above - below) / (2 * kStep);
  }
  return result;
}

std::vector<Array> gradients(const OpCase& c, const Signature& signature, const GradientRule& rule,
                             const std::vector<bool>& wanted,
                             const std::vector<const Array*>& output_gradients) {
  const ForwardResult forward = interpret_forward(signature, c.arrays(), c.random);
  std::vector<const Array*> saved;
  for (const SavedRef& ref : rule.saved) {
    const auto index = static_cast<size_t>(ref.index);
    switch (ref.source) {
      case SavedRef::Source::Input: saved.push_back(&c.inputs.at(index).array); break;
      case SavedRef::Source::Output: saved.push_back(&forward.outputs.at(index)); break;
      case SavedRef::Source::Auxiliary: saved.push_back(&forward.auxiliaries.at(index)); break;
    }
  }
  std::vector<Array> result =
      interpret_backward(signature, rule, wanted, output_gradients, saved, c.random);
  for (size_t i = 0; i < result.size(); ++i) {
    if (wanted[i] && rule.inputs[i] == GradientSource::PassThrough)
      result[i] = *output_gradients[0];
  }
  return result;
}

// Inputs that have a slope but by definition no gradient.
bool is_detached(const OpCase& c, size_t input) {
  return c.kind == OpKind::BatchNorm && input >= 3;
}

void expect_near(const Array& found, const Array& expected, const std::string& what) {
  ASSERT_EQ(found.shape, expected.shape) << what;
  ASSERT_EQ(found.values.size(), expected.values.size()) << what;
  for (size_t i = 0; i < found.values.size(); ++i) {
    ASSERT_NEAR(found.values[i], expected.values[i],
                kTolerance * (1 + std::abs(expected.values[i])))
        << what << ", element " << i;
  }
}

// Every set of wanted inputs, with the gradients of the outputs in `used` arriving.
void check_case(const OpCase& c, const std::vector<Array>& output_gradients,
                const std::vector<bool>& used, const std::string& name) {
  const OpInfo& info = op_info(c.kind);
  const Signature signature = c.signature();
  const std::vector<const Array*> arriving = pointers(output_gradients, used);
  const size_t count = c.inputs.size();

  std::vector<bool> all(count, false);
  for (size_t i = 0; i < count; ++i) all[i] = is_float(c.inputs[i].dtype);
  const GradientRule full = info.gradient(signature, all);
  ASSERT_EQ(full.inputs.size(), count) << name;

  std::vector<size_t> differentiable;
  std::vector<Array> expected(count);
  for (size_t i = 0; i < count; ++i) {
    if (!all[i]) {
      EXPECT_EQ(full.inputs[i], GradientSource::None) << name << ", input " << i;
      continue;
    }
    expected[i] = central_difference(c, i, arriving);
    if (full.inputs[i] != GradientSource::None) {
      differentiable.push_back(i);
    } else if (!is_detached(c, i)) {
      for (double slope : expected[i].values)
        EXPECT_NEAR(slope, 0, kTolerance) << name << ": input " << i << " has no gradient rule";
    }
  }

  for (uint32_t subset = 1; subset < (1U << differentiable.size()); ++subset) {
    std::vector<bool> wanted(count, false);
    for (size_t k = 0; k < differentiable.size(); ++k)
      if ((subset >> k & 1U) != 0) wanted[differentiable[k]] = true;
    const GradientRule rule = info.gradient(signature, wanted);
    const std::vector<Array> found = gradients(c, signature, rule, wanted, arriving);
    for (size_t i : differentiable) {
      if (wanted[i])
        expect_near(found[i], expected[i], fmt::format("{}, input {}, subset {}", name, i, subset));
    }
  }
}

void check_case(const OpCase& c, const std::string& name) {
  const Signature signature = c.signature();
  Rng rng(c.random.seed, 7);
  std::vector<Array> output_gradients;
  std::vector<bool> has_gradient;
  size_t floats = 0;
  for (const TensorType& type : signature.outputs) {
    Array g(type.shape);
    for (double& value : g.values) value = rng.uniform(-1, 1);
    output_gradients.push_back(std::move(g));
    has_gradient.push_back(is_float(type.dtype));
    floats += is_float(type.dtype) ? 1 : 0;
  }
  if (floats == 0) return;
  check_case(c, output_gradients, has_gradient, name);
  if (floats == 1) return;
  for (size_t o = 0; o < output_gradients.size(); ++o) {
    std::vector<bool> only(output_gradients.size(), false);
    only[o] = has_gradient[o];
    if (only[o]) check_case(c, output_gradients, only, fmt::format("{}, only output {}", name, o));
  }
}

TEST(Gradients, AgreeWithCentralDifferences) {
  for (uint64_t seed = 1; seed <= sampled(kSeeds); ++seed) {
    for (const auto& cases : {op_cases(seed), hard_op_cases(seed)}) {
      for (const OpCase& c : cases) {
        if (op_info(c.kind).gradient == nullptr) continue;
        const std::string name = fmt::format("{} (seed {})", c.name, seed);
        try {
          check_case(c, name);
        } catch (const Error& error) {
          ADD_FAILURE() << name << ": " << error.what();
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Gradients, EveryKindHasACase) {
  std::set<OpKind> covered;
  for (const OpCase& c : op_cases(1)) covered.insert(c.kind);
  for (size_t i = 0; i < kOpKindCount; ++i) {
    const auto kind = static_cast<OpKind>(i);
    if (kind == OpKind::Update) continue;
    EXPECT_TRUE(covered.contains(kind)) << op_info(kind).name;
  }
}

// The op table and the interpreter say the same about which kinds have gradients.
TEST(Gradients, KindsWithoutARuleAreTheExpectedOnes) {
  std::set<OpKind> without;
  for (size_t i = 0; i < kOpKindCount; ++i)
    if (op_info(static_cast<OpKind>(i)).gradient == nullptr) without.insert(static_cast<OpKind>(i));
  EXPECT_EQ(without,
            (std::set<OpKind>{OpKind::Random, OpKind::ArgMax, OpKind::Accumulate, OpKind::Update}));
}

}  // namespace
}  // namespace windlass::reference

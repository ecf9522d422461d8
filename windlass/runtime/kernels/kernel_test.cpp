// Every kernel against the reference interpreter, on every case of several seeds.
//
// The backward kernel is handed exactly what the gradient rule saves, as the interpreter computed
// it and the element type holds it, so that errors of the forward kernel do not reach it.

#include "windlass/runtime/kernels/kernel.h"

#include <algorithm>

#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel_cases.h"

namespace windlass {
namespace {

using reference::OpCase;

void expect_same(const Tensors& found, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined());
    if (!found[i].defined()) continue;
    EXPECT_TRUE(at::equal(found[i], expected[i])) << what << " " << i;
  }
}

// Operands keep their values, but for those that the op overwrites.
void expect_unchanged(const OpCase& c, const Signature& signature, const Tensors& inputs,
                      bool again) {
  const OpInfo& info = op_info(c.kind);
  std::vector<bool> written(inputs.size(), false);
  if (info.writes != nullptr && !again)
    for (int32_t i : info.writes(signature)) written[static_cast<size_t>(i)] = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || written[i]) continue;
    EXPECT_TRUE(at::equal(inputs[i], to_tensor(c.inputs[i].array, c.inputs[i].dtype)))
        << "input " << i << " was changed";
  }
}

void check_forward(const OpCase& c, const Signature& signature, DType dtype) {
  const ForwardResult expected = interpret_forward(signature, c.arrays(), c.random);
  const KernelForward found = forward_kernel(c, signature);
  for (size_t i = 0; i < expected.outputs.size(); ++i)
    expect_close(found.outputs[i], expected.outputs[i], dtype, fmt::format("output {}", i));
  for (size_t i = 0; i < expected.auxiliaries.size(); ++i)
    expect_close(found.auxiliaries[i], expected.auxiliaries[i], dtype,
                 fmt::format("auxiliary {}", i));
  Tensors results = found.outputs;
  results.insert(results.end(), found.auxiliaries.begin(), found.auxiliaries.end());
  expect_fresh(results, found.inputs);
  expect_unchanged(c, signature, found.inputs, false);

  const KernelForward again = forward_kernel(c, signature, {.again = true});
  expect_same(again.outputs, found.outputs, "recomputed output");
  expect_same(again.auxiliaries, found.auxiliaries, "recomputed auxiliary");
  expect_unchanged(c, signature, again.inputs, true);
  const KernelForward inference = forward_kernel(c, signature, {.training = false});
  expect_same(inference.outputs, found.outputs, "output without auxiliaries");
}

// What the rule saves, as the element types of the tensors hold it.
struct Saved {
  Tensors tensors;
  std::vector<Array> arrays;
};

Saved saved_of(const OpCase& c, const Signature& signature, const GradientRule& rule,
               const ForwardResult& forward) {
  Saved result;
  for (const SavedRef& ref : rule.saved) {
    const auto i = static_cast<size_t>(ref.index);
    switch (ref.source) {
      case SavedRef::Source::Input:
        result.tensors.push_back(to_tensor(c.inputs.at(i).array, c.inputs.at(i).dtype));
        break;
      case SavedRef::Source::Output:
        result.tensors.push_back(to_tensor(forward.outputs.at(i), signature.outputs.at(i).dtype));
        break;
      case SavedRef::Source::Auxiliary:
        result.tensors.push_back(
            to_tensor(forward.auxiliaries.at(i), signature.auxiliaries.at(i).dtype));
        break;
    }
    result.arrays.push_back(to_array(result.tensors.back()));
  }
  return result;
}

// The gradients `wanted`, with the gradients of the outputs in `used` arriving: fresh, and added to
// sums that are not zero.
void check_backward(const OpCase& c, const Signature& signature, DType dtype,
                    const std::vector<bool>& wanted, const std::vector<bool>& used) {
  const GradientRule rule = op_info(c.kind).gradient(signature, wanted);
  const ForwardResult forward = interpret_forward(signature, c.arrays(), c.random);
  const Saved saved = saved_of(c, signature, rule, forward);
  const std::vector<Array> gradients = output_gradients(c, signature, dtype);
  std::vector<const Array*> arriving_arrays, saved_arrays;
  Tensors arriving;
  for (size_t i = 0; i < gradients.size(); ++i) {
    arriving_arrays.push_back(used[i] ? &gradients[i] : nullptr);
    arriving.push_back(used[i] ? to_tensor(gradients[i], signature.outputs[i].dtype)
                               : at::Tensor());
  }
  for (const Array& array : saved.arrays) saved_arrays.push_back(&array);
  const std::vector<Array> expected =
      interpret_backward(signature, rule, wanted, arriving_arrays, saved_arrays, c.random);

  const KernelBackward backward{rule, wanted, arriving, saved.tensors};
  const Tensors found = backward_kernel(c, signature, backward);
  Tensors operands = arriving, sums(found.size());
  operands.insert(operands.end(), saved.tensors.begin(), saved.tensors.end());
  expect_fresh(found, operands);
  std::vector<Array> sum_values(found.size());
  Rng rng(c.random.seed, 8);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) continue;
    expect_close(found[i], expected[i], dtype, fmt::format("gradient {}", i));
    Array sum(signature.shape(i));
    for (double& value : sum.values) value = rng.uniform(-1, 1);
    sums[i] = to_tensor(sum, signature.input(i).dtype);
    sum_values[i] = to_array(sums[i]);
  }
  const Tensors added = backward_kernel(c, signature, backward, sums);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) continue;
    EXPECT_TRUE(added[i].is_same(sums[i])) << "gradient " << i;
    for (size_t e = 0; e < expected[i].values.size(); ++e)
      sum_values[i].values[e] += expected[i].values[e];
    expect_close(added[i], sum_values[i], dtype, fmt::format("sum of gradient {}", i));
  }
  for (size_t i = 0; i < saved.tensors.size(); ++i)
    expect_close(saved.tensors[i], saved.arrays[i], dtype, fmt::format("saved tensor {}", i));
}

// All inputs that can have a gradient at once and each alone, with all output gradients and, where
// there are several, with each alone.
void check_backward(const OpCase& c, const Signature& signature, DType dtype) {
  std::vector<bool> floats(c.inputs.size());
  for (size_t i = 0; i < floats.size(); ++i) floats[i] = is_float(c.inputs[i].dtype);
  const GradientRule rule = op_info(c.kind).gradient(signature, floats);
  std::vector<bool> all(floats.size(), false);
  std::vector<std::vector<bool>> wishes;
  for (size_t i = 0; i < all.size(); ++i) {
    if (rule.inputs[i] != GradientSource::Computed) continue;
    all[i] = true;
    wishes.emplace_back(all.size(), false);
    wishes.back()[i] = true;
  }
  if (wishes.empty()) return;
  if (wishes.size() > 1) wishes.push_back(all);

  std::vector<bool> every;
  for (const TensorType& type : signature.outputs) every.push_back(is_float(type.dtype));
  std::vector<std::vector<bool>> arrivals = {every};
  if (std::count(every.begin(), every.end(), true) > 1) {
    for (size_t i = 0; i < every.size(); ++i) {
      if (!every[i]) continue;
      arrivals.emplace_back(every.size(), false);
      arrivals.back()[i] = true;
    }
  }
  for (const auto& wanted : wishes)
    for (const auto& used : arrivals) check_backward(c, signature, dtype, wanted, used);
}

class KernelTest : public testing::TestWithParam<OpKind> {
 protected:
  static void check_all(DType dtype) {
    for (const OpCase& c : kernel_cases(GetParam(), dtype)) {
      expect_agrees_with_reference(c, dtype);
      if (HasFailure()) return;  // one case tells enough
    }
  }
};

TEST_P(KernelTest, AgreesWithTheReferenceInFp32) { check_all(DType::F32); }
TEST_P(KernelTest, AgreesWithTheReferenceInBf16) { check_all(DType::BF16); }

std::vector<OpKind> kinds_with_kernels() {
  std::vector<OpKind> kinds;
  for (size_t i = 0; i < kOpKindCount; ++i)
    if (static_cast<OpKind>(i) != OpKind::Update) kinds.push_back(static_cast<OpKind>(i));
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Kinds, KernelTest, testing::ValuesIn(kinds_with_kernels()),
                         [](const auto& test) { return std::string(op_info(test.param).name); });

}  // namespace

void expect_agrees_with_reference(const OpCase& c, DType dtype) {
  SCOPED_TRACE(c.name);
  try {
    const Signature signature = c.signature();
    check_forward(c, signature, dtype);
    if (op_info(c.kind).gradient != nullptr) check_backward(c, signature, dtype);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
}

}  // namespace windlass

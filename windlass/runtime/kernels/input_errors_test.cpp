// Values that make no sense: the message names the op, the value and what was expected.

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// Message of the Error{Input} that the forward kernel throws.
std::string complaint(OpKind kind, const Attrs& attrs, const std::vector<at::Tensor>& inputs,
                      TensorType output) {
  std::vector<Result> outputs = {Result(std::move(output))}, auxiliaries;
  ForwardCall call{kind, attrs, inputs, outputs, auxiliaries};
  try {
    run_forward(call);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "";
}

TEST(InputErrors, Tokens) {
  const at::Tensor table = at::zeros({5, 2});
  for (const int64_t token : {5, -1})
    EXPECT_EQ(complaint(OpKind::Embedding, NoAttrs{},
                        {at::tensor({int64_t{0}, token, int64_t{1}}), table}, {DType::F32, {3, 2}}),
              fmt::format("Embedding: token {} at position 1 is out of range for a vocabulary of 5",
                          token));
}

TEST(InputErrors, Indices) {
  const std::vector<at::Tensor> inputs = {at::zeros({4, 2}), at::tensor({int64_t{-5}})};
  EXPECT_EQ(complaint(OpKind::Gather, AxisAttrs{0}, inputs, {DType::F32, {1, 2}}),
            "Gather: index -5 at position 0 is out of range for an axis of 4");
}

TEST(InputErrors, Labels) {
  const std::vector<at::Tensor> inputs = {at::zeros({2, 3}),
                                          at::tensor({int64_t{-100}, int64_t{3}})};
  EXPECT_EQ(complaint(OpKind::CrossEntropy, CrossEntropyAttrs{1, -100}, inputs, {DType::F32, {}}),
            "CrossEntropy: label 3 of row 1 is out of range for 3 classes");
}

TEST(InputErrors, IntegersDividedByZero) {
  const std::vector<at::Tensor> inputs = {at::tensor({int64_t{7}}), at::tensor({int64_t{0}})};
  for (const BinaryFn fn : {BinaryFn::Div, BinaryFn::Mod})
    EXPECT_THAT(complaint(OpKind::Binary, BinaryAttrs{fn}, inputs, {DType::I64, {1}}),
                testing::HasSubstr("an integer is divided by zero"));
}

TEST(InputErrors, Experts) {
  const at::Tensor rows = at::zeros({2, 3}), weights = at::ones({2, 4, 3});
  const at::Tensor chosen = at::tensor({int64_t{1}, int64_t{-1}}).view({2, 1});
  EXPECT_THAT(
      complaint(OpKind::GroupedLinear, NoAttrs{}, {rows, weights, chosen}, {DType::F32, {2, 1, 4}}),
      testing::HasSubstr("row 1 is for expert -1, expected 0 to 1"));
}

}  // namespace
}  // namespace windlass

// Runs the kernels of the cases in op_cases.h, for the tests that hold for every op.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "windlass/graph/reference/op_cases.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

using Tensors = std::vector<at::Tensor>;  // undefined where absent
using Results = std::vector<Result>;

inline constexpr uint64_t kKernelSeeds = 4;

at::Tensor to_tensor(const Array& array, DType dtype);
Array to_array(const at::Tensor& tensor);
// The values that remain of `array` in a tensor of `dtype`.
Array rounded(const Array& array, DType dtype);

// The case with its fp32 operands in another type, their values rounded to it. Other operands stay.
reference::OpCase with_dtype(reference::OpCase c, DType dtype);

// The cases of one kind for all seeds in `dtype`, their names ending in seed and type.
std::vector<reference::OpCase> kernel_cases(OpKind kind, DType dtype);

// Values in (-1, 1), drawn from the case's seed, for each output that can have a gradient.
std::vector<Array> output_gradients(const reference::OpCase& c, const Signature& signature,
                                    DType dtype);

struct KernelForward {
  Tensors inputs, outputs, auxiliaries;
};

struct ForwardOptions {
  bool training = true;  // auxiliaries are wanted
  bool again = false;
};
KernelForward forward_kernel(const reference::OpCase& c, const Signature& signature,
                             ForwardOptions options = {});

// Fails the test unless the results are dense, own all of their memory and share none with each
// other or with `operands`.
void expect_fresh(const Tensors& results, const Tensors& operands);

// Runs the backward kernel on what the rule saves. With `sums` (parallel to the inputs) the results
// are added to those tensors, which may be fp32 where the input has 16 bits. Results that are not
// wanted or not computed are undefined.
struct KernelBackward {
  const GradientRule& rule;
  const std::vector<bool>& wanted;
  const Tensors& gradients;
  const Tensors& saved;
};
Tensors backward_kernel(const reference::OpCase& c, const Signature& signature,
                        const KernelBackward& backward, const Tensors& sums = {});

// Runs both kernels of a case in every way the executor may and compares with the interpreter
// (kernel_test.cpp). `dtype` is that of the case's floats.
void expect_agrees_with_reference(const reference::OpCase& c, DType dtype);

// Fails the test unless every element is as close as arithmetic in `precision` permits: within
// 2e-5 (fp32) or 1/64 (16 bits) of the largest expected magnitude plus 1. Integers must be equal.
// `magnitude`: of what the tensor is a part of, if that is larger.
void expect_close(const at::Tensor& found, const Array& expected, DType precision,
                  const std::string& what, double magnitude = 0);
double largest_magnitude(const Array& array);

}  // namespace windlass

#include "windlass/runtime/kernels/kernel_cases.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace windlass {
namespace {

using reference::OpCase;
using reference::Operand;

Results results_of(const std::vector<TensorType>& types, bool wanted) {
  Results results;
  for (const TensorType& type : types) results.push_back(wanted ? Result(type) : Result());
  return results;
}

Tensors take(const Results& results) {
  Tensors tensors;
  for (const Result& result : results) tensors.push_back(result.tensor());
  return tensors;
}

}  // namespace

at::Tensor to_tensor(const Array& array, DType dtype) {
  auto* data = const_cast<double*>(array.values.data());  // from_blob takes no const pointer
  return at::from_blob(data, array.shape, at::kDouble)
      .to(scalar_type(dtype), /*non_blocking=*/false, /*copy=*/true);
}

Array to_array(const at::Tensor& tensor) {
  const at::Tensor values = tensor.to(at::kDouble).contiguous();
  const double* data = values.data_ptr<double>();
  return Array(Shape(tensor.sizes().begin(), tensor.sizes().end()),
               std::vector<double>(data, data + values.numel()));
}

Array rounded(const Array& array, DType dtype) { return to_array(to_tensor(array, dtype)); }

OpCase with_dtype(OpCase c, DType dtype) {
  for (Operand& input : c.inputs) {
    if (input.dtype != DType::F32) continue;
    input = {dtype, rounded(input.array, dtype)};
  }
  return c;
}

std::vector<OpCase> kernel_cases(OpKind kind, DType dtype) {
  std::vector<OpCase> result;
  for (uint64_t seed = 1; seed <= kKernelSeeds; ++seed) {
    for (const OpCase& c : reference::op_cases(seed)) {
      if (c.kind != kind) continue;
      result.push_back(with_dtype(c, dtype));
      result.back().name = fmt::format("{} (seed {}, {})", c.name, seed, dtype_name(dtype));
    }
  }
  return result;
}

std::vector<Array> output_gradients(const OpCase& c, const Signature& signature, DType dtype) {
  Rng rng(c.random.seed, 7);
  std::vector<Array> result;
  for (const TensorType& type : signature.outputs) {
    Array g(type.shape);
    for (double& value : g.values) value = rng.uniform(-1, 1);
    result.push_back(rounded(g, dtype));
  }
  return result;
}

KernelForward forward_kernel(const OpCase& c, const Signature& signature, ForwardOptions options) {
  const at::AutoDispatchBelowAutograd guard;
  KernelForward result;
  for (const Operand& input : c.inputs)
    result.inputs.push_back(input.dtype == DType::None ? at::Tensor()
                                                       : to_tensor(input.array, input.dtype));
  Results outputs = results_of(signature.outputs, true);
  Results auxiliaries = results_of(signature.auxiliaries, options.training);
  ForwardCall call{c.kind,       c.attrs,     result.inputs,
                   outputs,      auxiliaries, {c.random.seed, c.random.op},
                   options.again};
  run_forward(call);
  result.outputs = take(outputs);
  result.auxiliaries = take(auxiliaries);
  return result;
}

void expect_fresh(const Tensors& results, const Tensors& operands) {
  const auto storage = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.numel() > 0 ? tensor.storage().data() : nullptr;
  };
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined()) continue;
    EXPECT_TRUE(results[i].is_contiguous()) << "result " << i;
    EXPECT_EQ(results[i].storage().nbytes(),
              static_cast<size_t>(results[i].numel()) * results[i].element_size())
        << "result " << i;
    if (storage(results[i]) == nullptr) continue;
    for (const at::Tensor& operand : operands)
      EXPECT_NE(storage(results[i]), storage(operand)) << "result " << i << " is an operand";
    for (size_t j = 0; j < i; ++j)
      EXPECT_NE(storage(results[i]), storage(results[j])) << "results " << i << " and " << j;
  }
}

Tensors backward_kernel(const OpCase& c, const Signature& signature, const KernelBackward& backward,
                        const Tensors& sums) {
  const at::AutoDispatchBelowAutograd guard;
  Results results;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const bool computed = backward.wanted[i] && backward.rule.inputs[i] == GradientSource::Computed;
    TensorType type = signature.input(i);
    if (!computed) {
      results.emplace_back();
    } else if (sums.empty()) {
      results.emplace_back(type);
    } else {
      if (sums[i].scalar_type() == at::kFloat) type.dtype = DType::F32;
      results.emplace_back(type, sums[i]);
    }
  }
  BackwardCall call{c.kind,
                    c.attrs,
                    signature.inputs,
                    backward.gradients,
                    backward.rule.saved,
                    backward.saved,
                    results,
                    {c.random.seed, c.random.op}};
  run_backward(call);
  return take(results);
}

double largest_magnitude(const Array& array) {
  double largest = 0;
  for (double value : array.values)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
  return largest;
}

void expect_close(const at::Tensor& found, const Array& expected, DType precision,
                  const std::string& what, double magnitude) {
  ASSERT_TRUE(found.defined()) << what;
  const Array values = to_array(found);
  ASSERT_EQ(values.shape, expected.shape) << what;
  const double largest = std::max(magnitude, largest_magnitude(expected));
  const bool exact = !found.is_floating_point();
  const double tolerance = exact ? 0 : (precision == DType::F32 ? 2e-5 : 1.0 / 64) * (1 + largest);
  for (size_t i = 0; i < values.values.size(); ++i) {
    if (values.values[i] == expected.values[i]) continue;  // infinities too
    if (std::isnan(values.values[i]) && std::isnan(expected.values[i])) continue;
    ASSERT_NEAR(values.values[i], expected.values[i], tolerance) << what << ", element " << i;
  }
}

}  // namespace windlass

// Short forms for tests that run single ops on written-out values.
#pragma once

#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "windlass/graph/reference/op_cases.h"

namespace windlass::reference {

inline Operand floats(Shape shape, std::vector<double> values) {
  return {DType::F32, Array(std::move(shape), std::move(values))};
}
inline Operand integers(Shape shape, std::vector<double> values) {
  return {DType::I64, Array(std::move(shape), std::move(values))};
}

// Runs an op forward, its types inferred and checked by the op table.
inline ForwardResult run_op(OpKind kind, Attrs attrs, std::vector<Operand> inputs,
                            RandomState random = {}) {
  const OpCase c = {"", kind, std::move(attrs), std::move(inputs), random};
  return interpret_forward(c.signature(), c.arrays(), random);
}

inline Array run_one(OpKind kind, Attrs attrs, std::vector<Operand> inputs) {
  return run_op(kind, std::move(attrs), std::move(inputs)).outputs[0];
}

// Gradient of input 0 for a gradient of ones arriving at every floating-point output.
inline Array gradient_of(OpKind kind, Attrs attrs, std::vector<Operand> inputs) {
  const OpCase c = {"", kind, std::move(attrs), std::move(inputs), {}};
  const Signature signature = c.signature();
  const ForwardResult forward = interpret_forward(signature, c.arrays());
  std::vector<Array> ones;
  for (const Array& output : forward.outputs) ones.emplace_back(output.shape, 1);
  std::vector<const Array*> arriving, saved;
  for (size_t o = 0; o < ones.size(); ++o)
    arriving.push_back(is_float(signature.outputs[o].dtype) ? &ones[o] : nullptr);
  std::vector<bool> wanted(c.inputs.size(), false);
  wanted[0] = true;
  const GradientRule rule = op_info(kind).gradient(signature, wanted);
  for (const SavedRef& ref : rule.saved) {
    const auto index = static_cast<size_t>(ref.index);
    saved.push_back(ref.source == SavedRef::Source::Input    ? &c.inputs[index].array
                    : ref.source == SavedRef::Source::Output ? &forward.outputs[index]
                                                             : &forward.auxiliaries[index]);
  }
  return interpret_backward(signature, rule, wanted, arriving, saved)[0];
}

// Matches values to 12 digits.
inline auto near(const std::vector<double>& expected) {
  return testing::Pointwise(testing::DoubleNear(1e-12), expected);
}

}  // namespace windlass::reference

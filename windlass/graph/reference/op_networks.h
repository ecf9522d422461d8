// Networks around a single op, for the tests that hold for every op kind.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "windlass/graph/builder.h"
#include "windlass/graph/reference/op_cases.h"

namespace windlass::reference {

// How a float operand reaches the op.
enum class Approach : uint8_t {
  Weight,    // a trained weight
  View,      // a view of a trained weight
  Computed,  // a view of what an op makes of a trained weight
};

struct OpNetworkOptions {
  Approach approach = Approach::Weight;
  bool beside = true;   // operands are used beside the op too
  bool single = false;  // the loss is in single precision, whatever the op makes
};

struct OpNetwork {
  Graph graph;
  std::vector<std::pair<std::string, Array>> values;  // of sources by name
};

// Every float operand comes from a trained weight, every float result goes through a view into the
// loss.
inline OpNetwork network_around(const OpCase& c, const OpNetworkOptions& options = {}) {
  GraphBuilder b("around", {.fold_limit = 0});
  OpNetwork network;
  std::vector<TensorId> inputs, beside;
  const auto gradient = op_info(c.kind).gradient;
  const std::vector<bool> all(c.inputs.size(), true);
  // Running statistics, indices and the like have no gradient by rule.
  const auto trainable = [&](size_t i) {
    return gradient && gradient(c.signature(), all).inputs[i] != GradientSource::None;
  };
  const auto operand = [&](size_t i, const std::string& name) {
    const TensorType type{c.inputs[i].dtype, c.inputs[i].array.shape};
    if (options.approach == Approach::Weight) return b.weight(name, type);
    const TensorType flat{type.dtype, {1, element_count(type.shape)}};
    TensorId source = b.weight(name, flat);
    if (options.approach == Approach::Computed)
      source = b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {source, b.scalar(1, type.dtype)},
                    name + ".computed");
    return b.op(OpKind::Reshape, ShapeAttrs{type.shape}, {source}, name + ".view");
  };
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const std::string name = fmt::format("operand{}", i);
    if (c.inputs[i].dtype == DType::None) {
      inputs.emplace_back();
      continue;
    }
    network.values.emplace_back(name, c.inputs[i].array);
    if (trainable(i)) {
      inputs.push_back(operand(i, name));
      if (options.beside)
        beside.push_back(
            b.op(OpKind::Unary, UnaryAttrs{UnaryFn::Tanh}, {inputs.back()}, name + ".used"));
    } else {
      inputs.push_back(b.input(name, {c.inputs[i].dtype, c.inputs[i].array.shape}));
    }
  }
  // A step needs data.
  network.values.emplace_back("sample", Array({1}, 0.5));
  beside.push_back(b.input("sample", {DType::F32, {1}}));
  std::vector<TensorId> results = b.add(c.kind, c.attrs, inputs, "op");
  results.insert(results.end(), beside.begin(), beside.end());
  TensorId loss;
  for (size_t k = 0; k < results.size(); ++k) {
    const TensorType type = b.type(results[k]);
    if (!is_float(type.dtype) || element_count(type.shape) == 0) continue;
    TensorId result = results[k];
    if (options.single && type.dtype != DType::F32)
      result = b.op(OpKind::Cast, CastAttrs{DType::F32}, {result}, fmt::format("cast{}", k));
    const TensorId flat = b.op(OpKind::Reshape, ShapeAttrs{{element_count(type.shape)}}, {result},
                               fmt::format("flat{}", k));
    const TensorId squares = b.op(OpKind::Reduce, ReduceAttrs{ReduceFn::SumSquare, {0}, false},
                                  {flat}, fmt::format("squares{}", k));
    loss = loss.valid()
               ? b.op(OpKind::Binary, BinaryAttrs{}, {loss, squares}, fmt::format("sum{}", k))
               : squares;
  }
  if (loss.valid()) b.set_loss(loss);
  network.graph = b.finish();
  // In the shape of the source.
  for (auto& [name, array] : network.values)
    for (const Tensor& tensor : network.graph.tensors)
      if (tensor.name == name) array.shape = tensor.type.shape;
  return network;
}

}  // namespace windlass::reference

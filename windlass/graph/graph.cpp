#include "windlass/graph/graph.h"

#include <algorithm>
#include <array>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/graph/op_info.h"

namespace windlass {

std::string_view role_name(TensorRole role) {
  static constexpr std::array<std::string_view, 11> kNames = {
      "input",     "label",    "weight",          "buffer", "constant", "activation",
      "auxiliary", "gradient", "weight_gradient", "master", "state"};
  return kNames[static_cast<size_t>(role)];
}

void check_graph(const Graph& graph) {
  const auto known = [&](TensorId id) { return id.index() < graph.tensors.size(); };
  std::vector<bool> available(graph.tensors.size());
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    available[t] = !graph.tensors[t].producer.valid();
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    const auto require = [&](bool condition, std::string_view what) {
      ensure(condition, fmt::format("op {} \"{}\": {}", i, op.name, what));
    };
    for (TensorId id : op.inputs) {
      if (!id.valid()) continue;
      require(known(id), "unknown input");
      require(available[id.index()], "reads a tensor that is not computed before it");
    }
    for (const auto* list : {&op.outputs, &op.auxiliaries}) {
      for (TensorId id : *list) {
        if (!id.valid()) continue;
        require(known(id), "unknown output");
        require(graph[id].producer == OpId(i), "output names another producer");
        require(!available[id.index()], "output is produced twice");
        available[id.index()] = true;
      }
    }
    if (op.pass == Pass::Backward && op.forward.valid()) {
      require(op.forward.index() < i, "backward op before its forward op");
      require(op.inputs.size() == graph[op.forward].outputs.size() + op.saved.size(),
              "backward op with the wrong number of inputs");
      continue;
    }
    const OpInfo& info = op_info(op.kind);
    const std::vector<TensorType> expected = info.infer(signature_of(graph, op));
    require(expected.size() == op.outputs.size(), "wrong number of outputs");
    for (size_t k = 0; k < expected.size(); ++k)
      require(expected[k] == graph[op.outputs[k]].type, "output type differs from the op's rule");
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    ensure(available[t], fmt::format("tensor \"{}\" is never produced", graph.tensors[t].name));
}

int64_t parameter_count(const Graph& graph) {
  int64_t count = 0;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == TensorRole::Weight && tensor.trainable)
      count = checked_add(count, element_count(tensor.type.shape));
  return count;
}

std::vector<std::vector<OpId>> consumers_of(const Graph& graph) {
  std::vector<std::vector<OpId>> consumers(graph.tensors.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    for (TensorId id : graph.ops[i].inputs) {
      if (!id.valid()) continue;
      auto& list = consumers[id.index()];
      if (list.empty() || list.back() != OpId(i)) list.push_back(OpId(i));
    }
  }
  return consumers;
}

std::vector<TensorId> remove_dead(Graph& graph) {
  std::vector<bool> live(graph.tensors.size());
  for (const auto* list : {&graph.inputs, &graph.outputs})
    for (TensorId id : *list) live[id.index()] = true;
  if (graph.loss.valid()) live[graph.loss.index()] = true;
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].role == TensorRole::Label) live[t] = true;

  std::vector<bool> keep(graph.ops.size());
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    keep[i] = std::any_of(op.outputs.begin(), op.outputs.end(),
                          [&](TensorId id) { return id.valid() && live[id.index()]; });
    if (!keep[i]) continue;
    for (TensorId id : op.inputs)
      if (id.valid()) live[id.index()] = true;
    // A kept op keeps all its outputs.
    for (TensorId id : op.outputs)
      if (id.valid()) live[id.index()] = true;
  }

  std::vector<TensorId> renamed(graph.tensors.size());
  std::vector<Tensor> tensors;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (!live[t]) continue;
    renamed[t] = TensorId(tensors.size());
    tensors.push_back(std::move(graph.tensors[t]));
  }
  const auto rename = [&](std::vector<TensorId>& ids) {
    for (TensorId& id : ids)
      if (id.valid()) id = renamed[id.index()];
  };
  std::vector<Op> ops;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (!keep[i]) continue;
    Op& op = graph.ops[i];
    rename(op.inputs);
    rename(op.outputs);
    for (TensorId id : op.outputs)
      if (id.valid()) tensors[id.index()].producer = OpId(ops.size());
    ops.push_back(std::move(op));
  }
  rename(graph.inputs);
  rename(graph.outputs);
  if (graph.loss.valid()) graph.loss = renamed[graph.loss.index()];
  graph.tensors = std::move(tensors);
  graph.ops = std::move(ops);

  std::vector<ConstantValue> constants;
  for (Tensor& tensor : graph.tensors) {
    if (tensor.constant < 0) continue;
    constants.push_back(std::move(graph.constants[static_cast<size_t>(tensor.constant)]));
    tensor.constant = static_cast<int32_t>(constants.size()) - 1;
  }
  graph.constants = std::move(constants);
  return renamed;
}

Graph with_dtype(const Graph& graph, DType dtype) {
  Graph result = graph;
  const auto convert = [&](DType& d) {
    if (d == DType::F32 || d == DType::F64 || d == DType::F16 || d == DType::BF16) d = dtype;
  };
  for (Tensor& tensor : result.tensors)
    if (!tensor.producer.valid() && tensor.role != TensorRole::Buffer) convert(tensor.type.dtype);
  for (Op& op : result.ops) {
    if (auto* cast = std::get_if<CastAttrs>(&op.attrs)) convert(cast->to);
    if (auto* random = std::get_if<RandomAttrs>(&op.attrs)) convert(random->dtype);
    const std::vector<TensorType> types = op_info(op.kind).infer(signature_of(result, op));
    for (size_t k = 0; k < types.size(); ++k) result[op.outputs[k]].type = types[k];
  }
  return result;
}

std::vector<TensorId> storage_roots(const Graph& graph) {
  std::vector<TensorId> roots(graph.tensors.size());
  for (size_t t = 0; t < roots.size(); ++t) roots[t] = TensorId(t);
  for (const Op& op : graph.ops) {
    const bool identity =
        op.kind == OpKind::Unary && std::get<UnaryAttrs>(op.attrs).fn == UnaryFn::Identity;
    if (!op_info(op.kind).view && !identity) continue;
    if (op.outputs.empty() || op.inputs.empty()) continue;
    // The only input of a view's backward op is the gradient of its output.
    if (op.outputs[0].valid() && op.inputs[0].valid())
      roots[op.outputs[0].index()] = roots[op.inputs[0].index()];
  }
  return roots;
}

}  // namespace windlass

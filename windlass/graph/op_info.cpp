#include "windlass/graph/op_info.h"

#include <algorithm>
#include <array>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/graph/ops/families.h"

namespace windlass {
namespace {

std::array<OpInfo, kOpKindCount> build_table() {
  std::array<OpInfo, kOpKindCount> table{};
  std::array<bool, kOpKindCount> seen{};
  for (const auto family :
       {ops::contraction_ops, ops::convolution_ops, ops::normalization_ops, ops::attention_ops,
        ops::elementwise_ops, ops::lookup_ops, ops::layout_ops, ops::reduction_ops,
        ops::recurrent_ops, ops::routing_ops, ops::loss_ops, ops::update_ops}) {
    for (const OpInfo& info : family()) {
      const auto index = static_cast<size_t>(info.kind);
      ensure(!seen[index], "op kind listed twice in the op table");
      seen[index] = true;
      table[index] = info;
    }
  }
  ensure(std::all_of(seen.begin(), seen.end(), [](bool s) { return s; }),
         "op kind missing from the op table");
  return table;
}

}  // namespace

const OpInfo& op_info(OpKind kind) {
  static const std::array<OpInfo, kOpKindCount> table = build_table();
  return table[static_cast<size_t>(kind)];
}

std::string_view family_name(OpFamily family) {
  static constexpr std::array<std::string_view, 13> kNames = {
      "contraction", "convolution", "pooling", "normalization", "attention",
      "elementwise", "lookup",      "layout",  "reduction",     "recurrent",
      "routing",     "loss",        "update"};
  return kNames[static_cast<size_t>(family)];
}

Range axis_range(const AxisMap& map, Range loop, int64_t axis_size) {
  if (map.loop < 0) return {0, axis_size};
  if (loop.size() <= 0) return {0, 0};
  const int64_t begin = loop.begin * map.stride + map.offset;
  const int64_t end = (loop.end - 1) * map.stride + map.offset + map.window;
  return {std::clamp<int64_t>(begin, 0, axis_size), std::clamp<int64_t>(end, 0, axis_size)};
}

Signature signature_of(const Graph& graph, const Op& op) {
  const Op& forward = op.pass == Pass::Backward && op.forward.valid() ? graph[op.forward] : op;
  Signature s;
  s.kind = forward.kind;
  s.attrs = &forward.attrs;
  for (TensorId id : forward.inputs) s.inputs.push_back(graph.type_of(id));
  for (TensorId id : forward.outputs) s.outputs.push_back(graph.type_of(id));
  // Auxiliaries follow from the outputs, which are not known yet while an op is being built.
  const OpInfo& info = op_info(s.kind);
  if (info.auxiliaries && !s.outputs.empty()) s.auxiliaries = info.auxiliaries(s);
  return s;
}

namespace {

void find_ends(const LoopNest& nest, const std::vector<TensorType>& types,
               std::vector<OperandMap>& maps) {
  for (size_t k = 0; k < std::min(maps.size(), types.size()); ++k)
    for (size_t a = 0; a < std::min(maps[k].size(), types[k].shape.size()); ++a) {
      AxisMap& axis = maps[k][a];
      if (axis.loop < 0) continue;
      const int64_t size = nest.loops[static_cast<size_t>(axis.loop)].size;
      axis.misses_end = size * axis.stride * axis.blocks != types[k].shape[a];
    }
}

}  // namespace

LoopNest loops_of(const Graph& graph, const Op& op) {
  if (graph.loops != nullptr) {
    const size_t forward =
        op.forward.valid() ? op.forward.index() : static_cast<size_t>(&op - graph.ops.data());
    if (forward < graph.loops->size()) return (*graph.loops)[forward];
  }
  const Signature signature = signature_of(graph, op);
  LoopNest nest = op_info(op.kind).loops(signature);
  find_ends(nest, signature.inputs, nest.inputs);
  find_ends(nest, signature.outputs, nest.outputs);
  find_ends(nest, signature.auxiliaries, nest.auxiliaries);
  return nest;
}

std::vector<bool> wanted_of(const Op& backward) {
  std::vector<bool> wanted;
  for (TensorId id : backward.outputs) wanted.push_back(id.valid());
  return wanted;
}

Arithmetic arithmetic_of(const Graph& graph, const Op& op) {
  const Signature s = signature_of(graph, op);
  const OpInfo& info = op_info(op.kind);
  // Accumulate and Update have no forward op; they are priced as they stand in any pass.
  if (op.pass == Pass::Backward && op.forward.valid())
    return info.gradient(s, wanted_of(op)).arithmetic;
  return info.arithmetic(s);
}

Bytes traffic_of(const Graph& graph, const Op& op) {
  const OpInfo& info = op_info(op.kind);
  if (info.view) return Bytes(0);
  Bytes total;
  const auto add = [&](const std::vector<TensorId>& ids) {
    for (TensorId id : ids)
      if (id.valid()) total = Bytes(checked_add(total.value, byte_size(graph[id].type).value));
  };
  add(op.inputs);
  add(op.outputs);
  add(op.auxiliaries);
  if (info.writes && op.pass != Pass::Backward)
    for (int32_t input : info.writes(signature_of(graph, op))) {
      const TensorType written = graph.type_of(op.inputs[static_cast<size_t>(input)]);
      total = Bytes(checked_add(total.value, byte_size(written).value));
    }
  return total;
}

}  // namespace windlass

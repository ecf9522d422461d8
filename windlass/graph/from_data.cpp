#include "windlass/graph/from_data.h"

#include <algorithm>
#include <set>

#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

bool is_written(const Graph& graph, TensorId tensor) {
  return std::ranges::any_of(graph.ops, [&](const Op& op) {
    const OpInfo& info = op_info(op.kind);
    if (info.writes == nullptr || std::ranges::find(op.inputs, tensor) == op.inputs.end())
      return false;
    return std::ranges::any_of(info.writes(signature_of(graph, op)), [&](int32_t input) {
      return op.inputs[static_cast<size_t>(input)] == tensor;
    });
  });
}

}  // namespace

std::optional<std::vector<OpId>> ops_from_data(const Graph& graph, TensorId tensor) {
  std::set<OpId> found;
  std::vector<TensorId> open = {tensor};
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    const Tensor& made = graph[id];
    const bool data = made.role == TensorRole::Input || made.role == TensorRole::Label;
    const bool rests = made.role == TensorRole::Buffer && !is_written(graph, id);
    if (data || made.constant >= 0 || rests) continue;
    if (!made.producer.valid()) return std::nullopt;
    const Op& op = graph[made.producer];
    if (op.kind == OpKind::Random || op.kind == OpKind::Dropout) return std::nullopt;
    if (!found.insert(made.producer).second) continue;
    for (TensorId input : op.inputs)
      if (input.valid()) open.push_back(input);
  }
  return std::vector<OpId>(found.begin(), found.end());
}

}  // namespace windlass

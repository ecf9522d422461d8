#include "windlass/graph/from_data.h"

#include <set>

namespace windlass {

std::optional<std::vector<OpId>> ops_from_data(const Graph& graph, TensorId tensor) {
  std::set<OpId> found;
  std::vector<TensorId> open = {tensor};
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    const Tensor& made = graph[id];
    const bool data = made.role == TensorRole::Input || made.role == TensorRole::Label;
    if (data || made.constant >= 0) continue;
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

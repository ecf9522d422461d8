#include "windlass/strategy/expert_parallel.h"

#include "windlass/base/error.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/strategy/follow_axis.h"

namespace windlass {

std::vector<Split> expert_splits(const Graph& graph, size_t forward_ops, int32_t parts) {
  if (!has_expert_slots(graph))
    fail_input("ep={}: the network has no experts with rows in slots; give --expert-capacity",
               parts);
  if (const int64_t experts = experts_of(graph); experts % parts != 0)
    fail_input("ep={}: {} experts cannot be shared out equally", parts, experts);
  AxisFollower follower(graph);
  std::vector<Split> result;
  for (size_t i = 0; i < forward_ops; ++i) {
    const Op& op = graph.ops[i];
    int32_t loop = -1;
    if (op.kind == OpKind::Dispatch)
      for (TensorId id : op.outputs) follower.mark(id, 0);
    else if (op.kind != OpKind::Collect)
      loop = follower.visit(op, parts);
    result.push_back({loop, parts});
  }
  return result;
}

}  // namespace windlass

#include "windlass/strategy/follow_axis.h"

namespace windlass {
namespace {

bool keeps_apart(const AxisMap& map) {
  return map.loop >= 0 && map.stride == 1 && map.offset == 0 && map.window == 1 && map.blocks == 1;
}

}  // namespace

int32_t AxisFollower::visit(const Op& op, int64_t parts, int32_t other) {
  const LoopNest nest = loops_of(graph_, op);
  for (size_t k = 0; k < op.inputs.size(); ++k) {
    if (!op.inputs[k].valid() || axis_[op.inputs[k].index()] < 0) continue;
    const AxisMap& map = nest.inputs[k][static_cast<size_t>(axis_[op.inputs[k].index()])];
    if (!keeps_apart(map) || map.loop == other) continue;
    const LoopDim& dim = nest.loops[static_cast<size_t>(map.loop)];
    const bool apart = dim.role == LoopRole::Free || dim.role == LoopRole::Reduced;
    if (!apart || dim.size % parts != 0) continue;
    for (size_t o = 0; o < op.outputs.size(); ++o)
      for (size_t a = 0; a < nest.outputs[o].size(); ++a)
        if (op.outputs[o].valid() && nest.outputs[o][a].loop == map.loop &&
            keeps_apart(nest.outputs[o][a]))
          mark(op.outputs[o], static_cast<int32_t>(a));
    return map.loop;
  }
  return -1;
}

}  // namespace windlass

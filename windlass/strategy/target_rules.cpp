#include "windlass/strategy/target_rules.h"

#include <algorithm>

#include "windlass/strategy/context_parallel.h"

namespace windlass {

bool shares_heads(const Graph& network, int64_t tp) {
  return std::ranges::all_of(network.ops, [&](const Op& op) {
    if (op.kind != OpKind::Attention) return true;
    const int64_t heads = network[op.inputs[0]].type.shape[1];
    const int64_t groups = network[op.inputs[1]].type.shape[1];
    return heads % tp == 0 && (groups % tp == 0 || tp % groups == 0);
  });
}

bool shares_positions(const Graph& network, int64_t cp) {
  return cp == 1 || positions_of(network) % (2 * cp) == 0;
}

}  // namespace windlass

#include "windlass/strategy/target_rules.h"

#include <algorithm>

#include "windlass/strategy/context_parallel.h"

namespace windlass {

bool shares_heads(const Graph& network, int64_t tp) {
  const auto shared = [&](int64_t heads) { return heads % tp == 0; };
  const auto groups_shared = [&](int64_t groups) { return shared(groups) || tp % groups == 0; };
  return std::ranges::all_of(network.ops, [&](const Op& op) {
    const Shape shape = op.inputs.empty() ? Shape{} : network[op.inputs[0]].type.shape;
    switch (op.kind) {
      case OpKind::Attention:
        return shared(shape[1]) && groups_shared(network[op.inputs[1]].type.shape[1]);
      // As unfuse_attention() leaves it: scores of [batch, heads, queries, keys], and keys and
      // values of groups of heads repeated for each of these.
      case OpKind::Softmax:
        return shape.size() != 4 || std::get<SoftmaxAttrs>(op.attrs).axis != 3 || shared(shape[1]);
      case OpKind::Expand: return shape.size() != 5 || shape[2] != 1 || groups_shared(shape[1]);
      default: return true;
    }
  });
}

bool shares_positions(const Graph& network, int64_t cp) {
  return cp == 1 || positions_of(network) % (2 * cp) == 0;
}

}  // namespace windlass

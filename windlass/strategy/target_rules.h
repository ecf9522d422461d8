// What other systems that carry a strategy out can be told.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// What one system can be told.
struct TargetRules {
  std::string_view name = {}, target = {};  // for people; as --to and --for take it
  bool tensor = true, pipeline = true, interleave = true;
  int zero_with_pipeline = 3;  // the highest stage of ZeRO beside a pipeline
  std::vector<int> zero = {0, 1, 2, 3};
  bool selective = false;  // recompute within attention
  // Norms are split along positions over the tensor parts: if wanted, always.
  bool sequence = false, always_sequence = false;
  bool host_states = true, part_of_states = true;
  int host_states_from = 1;  // the lowest stage of ZeRO for that
  bool by_block = false;     // saved tensors by block: keep, recompute, offload
  bool host_weights = true;
  int host_weights_from = 3;   // the lowest stage of ZeRO for that
  bool host_together = false;  // weights, gradients and optimizer state go to the host as one
  bool host_alone = false;     // the host serves a single replica too, as that stage of ZeRO
  // The lowest stage of ZeRO beside split positions, beside split experts; none: it has no words.
  std::optional<int> context = {}, experts = {};
};

// Whether the heads of each attention, and the groups of keys, can be shared out equally over so
// many tensor parts, as all these systems want it. Keys of fewer groups than parts are repeated.
bool shares_heads(const Graph& network, int64_t tp);

// Whether positions can be shared out over so many parts in the way of these systems: each has a
// piece from the front and one from the back, so that causal attention is even.
bool shares_positions(const Graph& network, int64_t cp);

}  // namespace windlass

// From a training graph under a strategy to the chains that the dynamic program solves: one for
// each group of devices, with prices from a simulated step.
#pragma once

#include <functional>
#include <vector>

#include "windlass/search/chain/chain.h"
#include "windlass/search/chain/piece_options.h"

namespace windlass {

class ChainMemo;

struct ChainSearchOptions {
  bool send = true;          // saved tensors may go to the host
  int compress = 0;          // fewest bits that they may be stored in; 0: as they are
  size_t most_pieces = 100;  // in a stage
  // Simulations of best_on_chain: along the frontier, and to improve what was found.
  int64_t probes = 12, polish = 12;
  // Asked between them, once something was found: whether it will do.
  std::function<bool()> stop = {};
  // Where to keep what does not depend on limits, for the next search of the same strategy; none:
  // nowhere.
  ChainMemo* memo = nullptr;
};

// The stages of a group in a row: on one device they share the memory.
struct GroupChain {
  int32_t group = 0;
  Chain chain = {};
  std::vector<ChainPiece> pieces = {};             // parallel to the blocks
  std::vector<std::vector<Actions>> actions = {};  // by block and option; none for second runs
};

struct ChainProfile {
  Nanoseconds makespan = 0;  // everything kept, without limits
  // Backward ops ahead that what was sent is fetched, so that it is there in time.
  int32_t prefetch = 0;
  std::vector<bool> decides = {};       // by saved tensor: whether a chain decides about it
  std::vector<GroupChain> groups = {};  // none: passes of a stage on different groups, paging
};

// Saved tensors that no chain decides about are treated as `base` says, the others' actions do not
// matter (but for Regather). Takes one simulation, one more if tensors may be sent, one more if
// they may be compressed.
ChainProfile profile_chain(const TrainingGraph& training, const Strategy& base,
                           Evaluator& evaluator, const ChainSearchOptions& options);

// Enters what a schedule of a group's chain says into the actions of saved tensors.
void apply_schedule(const GroupChain& group, const std::vector<ChainStep>& steps, Actions& saved);

}  // namespace windlass

// Packs that are given, and memory to spend on them: what stays on the devices.
#pragma once

#include <functional>

#include "windlass/search/packs/stream_bounds.h"
#include "windlass/search/packs/stream_pricer.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// Called with every strategy that fits; returns what it counts.
using NoteStrategy = std::function<double(const PackStrategy&, const StreamCost&)>;

class StreamFill {
 public:
  // All must outlive it.
  StreamFill(ChainTables& chain, StreamPricer& pricer, int64_t limit)
      : chain_(chain), pricer_(pricer), limit_(limit) {}

  // Fills memory in the order of what a byte saves: activations, if that is possible; inputs of
  // packs, two bytes of traffic a byte and replica; shares of weights, one; whole weights, as long
  // as a strategy counts less than `enough`. Returns the least that one counts, or kDoesNotFit.
  // `on_host`, unless empty: where inputs of packs are to wait.
  double fill(PipelineShape shape, const HarmonyPlan& packs, const NoteStrategy& note,
              const std::function<double()>& enough, const std::vector<uint8_t>& on_host = {});

  // Changes what becomes of single packs while that counts less and `spent` is false. Returns the
  // strategy that counts least, of those noted.
  PackStrategy refine(PackStrategy strategy, double counts, const NoteStrategy& note,
                      const std::function<bool()>& spent);

  // The least limit that would have done for the first strategy of any packs that were filled.
  int64_t least_limit() const { return least_limit_; }
  // Bytes left free for pieces of weights that arrive early.
  int64_t room_ahead() const;

 private:
  template <typename Set>
  size_t most_packs(PackStrategy& strategy, StreamCost& cost, Set set);
  void keep_shares(PackStrategy& strategy, StreamCost& cost);
  int64_t pack_state(const PackStrategy& strategy) const;
  // A strategy that does not fit gets a smaller window for weights.
  StreamCost price(PackStrategy& strategy);

  ChainTables& chain_;
  StreamPricer& pricer_;
  int64_t limit_;
  int64_t least_limit_ = INT64_MAX;
};

}  // namespace windlass

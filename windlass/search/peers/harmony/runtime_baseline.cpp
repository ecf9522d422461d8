#include "windlass/search/peers/harmony/runtime_baseline.h"

#include "windlass/search/peers/harmony/packers.h"

namespace windlass {

std::optional<StreamCost> harmony_that_fits(ChainTables& chain, StreamPricer& pricer,
                                            HarmonyMode mode, int32_t devices, int64_t minibatch,
                                            int64_t limit) {
  std::optional<StreamCost> best;
  for (double part : {1.0, 0.94, 0.88, 0.8, 0.7, 0.5}) {
    for (bool prefetch : {false, true}) {
      const auto cap = static_cast<int64_t>(part * static_cast<double>(limit));
      const auto own = harmony_own_search(chain, mode, devices, minibatch, cap, prefetch);
      if (!own) continue;
      const StreamCost cost = pricer.price(harmony_runtime(own->plan));
      if (cost.fits && (!best || cost.seconds < best->seconds)) best = cost;
    }
    if (best) break;
  }
  return best;
}

}  // namespace windlass

// How other systems search, in the same simulator, for comparison. Each is a reading of what is
// published or released of them: docs/search.md says what was taken and what was not.
//
//   time-only   Markov chain, memory is no matter
//   flexflow    Markov chain over single ops, splits of the batch (and of dense layers); memory is
//               the sum of all that ops touch, and each MB above the limit costs 1 ms
//   memflow     the same with a flag a tensor for recomputation, and the peak of what is live at a
//               time instead of the sum
//   unity       a weighted sum of time and memory, the weight found by bisection
//
// None of them knows a hard limit: what they return may not fit.
#pragma once

#include <string_view>
#include <vector>

#include "windlass/search/search.h"

namespace windlass {

struct PeerOptions {
  int64_t simulations = 2000;  // of one walk
  uint64_t seed = 0;
  std::function<bool()> stop = {};
};

struct PeerResult {
  Strategy strategy;
  bool fits = false;  // inside of the limits
  Seconds step_time;  // inside of the limits, or without if it does not fit
  Bytes peak;         // without limits, of the fullest device
  int64_t simulated = 0;
};

const std::vector<std::string_view>& peer_names();
// For the whole batch in one pass, as these systems do. Throws Error{Input} if the machine or the
// model does not allow data parallelism, from which they start.
PeerResult search_as(std::string_view peer, const Problem& problem,
                     const PeerOptions& options = {});

}  // namespace windlass

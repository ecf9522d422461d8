// Local changes to a strategy on the simulator: what sums of prices do not see (overlap, order,
// waiting) decides here.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/search/book/evaluate.h"
#include "windlass/search/exact/sharding/sharding_problem.h"

namespace windlass {

struct PolishOptions {
  int64_t evaluations = 1000;              // at most
  std::function<bool()> out_of_time = {};  // asked before each
};

// Improves `best`, which fits, by taking the ops after some cut (or before it) as another strategy
// has them, and then by changing single ops to the shardings that add least to the sum of times, as
// long as simulation says it is faster and fits. All strategies are for the same training graph, on
// one group of all devices with the same micro-batches. Returns the time.
Nanoseconds polish(const TrainingGraph& training, const ShardingProblem& sharding,
                   const std::vector<Strategy>& others, Evaluator& evaluator, Strategy& best,
                   Nanoseconds time, const PolishOptions& options);

}  // namespace windlass

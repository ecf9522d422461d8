// Local search over packs and micro-batch sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/base/rng.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// What a plan costs; kDoesNotFit if it does not fit. Must not depend on what was asked before.
using PlanCost = std::function<double(const HarmonyPlan&)>;

// A plan and what it costs.
struct CostedPlan {
  HarmonyPlan plan;
  double cost = 0;
};

// Walks from plan to plan by small changes: borders that move alone, in runs, or in both passes at
// once; packs merged and split; the next micro-batch size. Deterministic.
class LocalSearch {
 public:
  // `chain` and `sizes` must outlive it. `spent` counts effort in any unit; searching stops when it
  // reaches a limit.
  LocalSearch(ChainTables& chain, const MicroBatchSizes& sizes, PlanCost cost,
              std::function<int64_t()> spent)
      : chain_(chain), sizes_(sizes), cost_(std::move(cost)), spent_(std::move(spent)) {}

  // Takes the first improvement until none is left or the effort reaches `limit`.
  void descend(CostedPlan& best, int64_t limit);
  // Simulated annealing from `best`, which it replaces by what it finds better. Temperatures fall
  // from `hot` to `cold`, as shares of the cost, while effort goes up to `limit`.
  void anneal(CostedPlan& best, int64_t limit, double hot, double cold, uint64_t seed);

 private:
  // Calls `visit(plan)` for each neighbour until it returns true. Whether it did.
  bool for_each_neighbour(const HarmonyPlan& plan,
                          const std::function<bool(const HarmonyPlan&)>& visit);
  // A random neighbour in scratch_. False if the draw is not a plan.
  bool random_neighbour(const HarmonyPlan& plan, Rng& rng);

  // These change scratch_ and say whether the result is a plan. Borders are numbered from 1: border
  // i lies before pack i. In both passes: forward borders that lie where backward ones do follow.
  bool shift_backward(size_t from, size_t to, int32_t by, bool both);
  bool shift_forward(size_t from, size_t to, int32_t by);
  bool merge(bool backward, size_t border, bool both);
  bool split(bool backward, size_t pack, int32_t at, bool both);
  int32_t middle(Pack pack, bool backward);
  bool fit_forward();  // makes the forward packs end where the loss pack begins

  ChainTables& chain_;
  const MicroBatchSizes& sizes_;
  PlanCost cost_;
  std::function<int64_t()> spent_;
  HarmonyPlan scratch_;
};

}  // namespace windlass

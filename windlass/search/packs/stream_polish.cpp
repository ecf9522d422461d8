// From good strategies to better ones, by small changes.
#include <algorithm>

#include "windlass/search/packs/stream_searcher.h"

namespace windlass {

// What becomes of single packs of what counts least, and of what stays inside of Harmony's traffic.
void StreamSearcher::refine_best() {
  const int64_t limit = effort() + options_.effort / 4;
  const auto noted = [&](const PackStrategy& s, const StreamCost& c) { return note(s, c); };
  const auto refined = [&] { return effort() >= limit; };
  fill_.refine(*best_, best_counts_, noted, refined);
  const StreamFront::Entry* frugal = front_.fastest(harmony_swaps_);
  if (!frugal || frugal->strategy == *best_) return;
  const StreamFront::Entry start = *frugal;
  fill_.refine(start.strategy, counts(start.cost), noted, refined);
}

// Changes of single packs that move less and take no longer than `most`.
void StreamSearcher::spare_traffic(const StreamFront::Entry& start, double most) {
  const int64_t limit = effort() + options_.effort / 4;
  fill_.refine(
      start.strategy, static_cast<double>(start.swapped),
      [&](const PackStrategy& s, const StreamCost& c) {
        note(s, c);
        return c.seconds <= most ? static_cast<double>(c.volume.swapped()) : kDoesNotFit;
      },
      [&] { return effort() >= limit; });
}

// Of the fastest, if it moves more than Harmony would; and of what would be chosen.
void StreamSearcher::spare_traffic() {
  const StreamFront::Entry* frugal = front_.fastest(harmony_swaps_);
  const StreamFront::Entry fastest = front_.entries().front();
  if (frugal && fastest.swapped > harmony_swaps_) spare_traffic(fastest, frugal->cost.seconds);
  const double most = accepted_seconds();
  spare_traffic(StreamFront::Entry(*front_.least_swapped(most)), most);
}

// Inputs of packs wait where they do in the best of those that are polished.
std::vector<uint8_t> StreamSearcher::like_polished(const HarmonyPlan& plan) const {
  const PackStrategy& known = polished_.strategy;
  std::vector<uint8_t> on_host;
  size_t at = 0;
  for (Pack pack : plan.backward_packs) {
    while (known.backward_packs[at].last < pack.first) ++at;
    on_host.push_back(known.stash_on_host[at]);
  }
  return on_host;
}

// From the best; of data parallel ones also from the one that computes least of those that are not
// much worse, for the same effort.
void StreamSearcher::polish() {
  constexpr double kMuch = 1.03;
  std::vector<Costed> starts;
  for (const auto& [loss, known] : by_loss_)
    if (known.cost <= kMuch * best_counts_) starts.push_back(known);
  std::ranges::stable_sort(starts, {}, [&](const Costed& start) {
    return start.cost == best_counts_ ? 0
                                      : computing({start.strategy.replicas, start.strategy.depth},
                                                  harmony_plan_of(start.strategy));
  });
  const size_t most = best_->depth == 1 ? 2 : 1;
  if (starts.size() > most) starts.resize(most);
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t left = options_.effort - effort();
    if (left > 0) polish(starts[i], effort() + left / static_cast<int64_t>(starts.size() - i));
  }
}

void StreamSearcher::polish(const Costed& start, int64_t limit) {
  const Shape shape{start.strategy.replicas, start.strategy.depth};
  const MicroBatchSizes known = sizes(share(shape));
  polished_ = start;
  LocalSearch local(
      chain_, known,
      [&](const HarmonyPlan& plan) {
        skipped_ += 100;
        if (computing(shape, plan) >= best_counts_) return kDoesNotFit;
        return consider(shape, plan, like_polished(plan));
      },
      [&] { return effort(); });
  CostedPlan from{harmony_plan_of(start.strategy), start.cost};
  local.anneal(from, limit, 0.0005, 0.00005, 3);
}

}  // namespace windlass

#include "windlass/search/book/spend_memory.h"

#include <algorithm>

namespace windlass {
namespace {

Strategy kept(Strategy strategy) {
  std::ranges::fill(strategy.saved, MemoryAction::Keep);
  return strategy;
}

// Runs of tensors at a time: halved where a whole run does not fit.
void try_actions(Evaluator& evaluator, Candidate& best, const std::vector<size_t>& order,
                 MemoryAction action, const std::function<bool()>& out_of_time) {
  std::vector<std::pair<size_t, size_t>> runs;
  const size_t first = std::max<size_t>(1, order.size() / 16);
  for (size_t begin = 0; begin < order.size(); begin += first)
    runs.emplace_back(begin, std::min(order.size(), begin + first));
  std::ranges::reverse(runs);
  // When memory is full, hardly anything more fits.
  constexpr int kMostFailures = 24;
  int failures = 0;
  while (!runs.empty() && failures < kMostFailures && !out_of_time()) {
    const auto [begin, end] = runs.back();
    runs.pop_back();
    Strategy changed = best.strategy;
    bool differs = false;
    for (size_t i = begin; i < end; ++i) {
      differs |= changed.saved[order[i]] != action;
      changed.saved[order[i]] = action;
    }
    if (!differs) continue;
    const auto found = evaluator.evaluate_below(changed, best.time - 1);
    if (found && found->fits && found->time < best.time) {
      best = {std::move(changed), found->time};
      failures = 0;
      continue;
    }
    ++failures;
    if (end - begin > 1) {
      const size_t middle = begin + (end - begin) / 2;
      runs.emplace_back(middle, end);
      runs.emplace_back(begin, middle);
    }
  }
}

}  // namespace

void spend_memory(const TrainingGraph& training, Evaluator& evaluator, Candidate& best,
                  const std::function<bool()>& out_of_time) {
  const auto& times = evaluator.forward_times(kept(best.strategy));
  std::vector<size_t> order;
  for (size_t s = 0; s < training.saved.size(); ++s)
    if (best.strategy.saved[s] != MemoryAction::Keep && training.saved[s].producer.valid())
      order.push_back(s);
  const auto worth = [&](size_t s) {
    const auto time = static_cast<double>(times[training.saved[s].producer.index()]);
    return time / static_cast<double>(std::max<int64_t>(1, training.saved[s].bytes.value));
  };
  std::ranges::stable_sort(order, std::greater<>{}, worth);
  try_actions(evaluator, best, order, MemoryAction::Keep, out_of_time);
  // What still is recomputed may be cheaper to move, and the other way round.
  for (const MemoryAction action : {MemoryAction::Offload, MemoryAction::Recompute}) {
    std::erase_if(order, [&](size_t s) { return best.strategy.saved[s] == MemoryAction::Keep; });
    try_actions(evaluator, best, order, action, out_of_time);
  }
}

}  // namespace windlass

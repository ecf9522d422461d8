#include "windlass/search/packs/stream_pricer.h"

#include <algorithm>

namespace windlass {

StreamCost StreamPricer::price_long_run(const PackStrategy& strategy) {
  constexpr int32_t kSteps = 10;
  const StreamCost cost = price(strategy, 2);
  return cost.came_round ? cost : price(strategy, kSteps);
}

StreamCost StreamPricer::price(const PackStrategy& strategy, int32_t count) {
  ++runs_;
  StreamCost cost;
  const PackSteps* steps =
      lowering_.lower(strategy, minibatch_, strategy.streams ? count : 1, false);
  if (!steps) return cost;
  const Repetition* repetition = strategy.streams ? &steps->repetition : nullptr;
  const SimResult& result = simulator_.run(*steps->graph, *steps->times,
                                           {.enforce_limits = false, .repetition = repetition});
  priced_ = &result;
  // A task that is not simulated takes about a third of the time.
  tasks_ += static_cast<int64_t>((steps->graph->size() + 2 * result.ended) / 3);
  cost.came_round = result.came_round || !repetition;
  cost.seconds = static_cast<double>(repetition ? result.period : result.makespan) * 1e-9;
  for (size_t m = 0; m + 1 < result.peaks.size(); ++m)
    cost.peak_bytes = std::max(cost.peak_bytes, result.peaks[m].bytes);
  cost.host_bytes = result.peaks.back().bytes;
  cost.volume = steps->volume;
  cost.fits = result.status == SimStatus::Done && cost.peak_bytes <= limit_;
  return cost;
}

std::vector<int64_t> StreamPricer::peaks() const {
  std::vector<int64_t> bytes;
  for (const MemoryPeak& peak : priced_->peaks) bytes.push_back(peak.bytes);
  return bytes;
}

std::optional<PackRun> StreamPricer::run(const PackStrategy& strategy) {
  const PackSteps* steps = lowering_.lower(strategy, minibatch_, strategy.streams ? 3 : 1, false);
  if (!steps) return std::nullopt;
  return PackRun{steps, &simulator_.run(*steps->graph, *steps->times, {.enforce_limits = false})};
}

}  // namespace windlass

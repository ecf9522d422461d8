#include "windlass/search/harmony/stream_pricer.h"

#include <algorithm>

namespace windlass {

StreamCost StreamPricer::price(const PackStrategy& strategy) {
  ++runs_;
  StreamCost cost;
  const int32_t steps = strategy.streams ? 2 : 1;
  steps_ = lowering_.lower(strategy, minibatch_, steps, false);
  if (!steps_) return cost;
  tasks_ += static_cast<int64_t>(steps_->graph->size());
  const SimResult& result =
      simulator_.run(*steps_->graph, *steps_->times, {.enforce_limits = false});
  simulation_ = &result;
  Nanoseconds before = 0, end = 0;
  for (size_t step = 0; step + 1 < steps_->begin.size(); ++step) {
    before = end;
    for (size_t i = steps_->begin[step]; i < steps_->begin[step + 1]; ++i)
      end = std::max(end, result.end[i]);
  }
  cost.seconds = static_cast<double>(end - before) * 1e-9;
  for (size_t m = 0; m + 1 < result.peaks.size(); ++m)
    cost.peak_bytes = std::max(cost.peak_bytes, result.peaks[m].bytes);
  cost.host_bytes = result.peaks.back().bytes;
  cost.volume = steps_->volume;
  cost.fits = result.status == SimStatus::Done && cost.peak_bytes <= limit_;
  return cost;
}

}  // namespace windlass

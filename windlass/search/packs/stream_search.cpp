// Computing dominates a good plan and is known before any simulation: its bound, for a pair of
// micro-batch sizes, prunes nearly all of them. For those left, a plan's memory is filled in the
// order of what a byte saves: inputs of packs (two bytes of traffic a byte), then weights.
#include "windlass/search/packs/stream_search.h"

#include <algorithm>
#include <cmath>

#include "windlass/search/packs/stream_searcher.h"
#include "windlass/search/peers/harmony/volume.h"

namespace windlass {

double StreamSearcher::counts(const StreamCost& cost) const {
  if (!cost.fits) return kDoesNotFit;
  const int64_t swapped = cost.volume.swapped();
  const int64_t excess = std::max<int64_t>(0, swapped - harmony_swaps_);
  return cost.seconds + kTrafficWeight * static_cast<double>(swapped) +
         2 * kByteSeconds * static_cast<double>(excess);
}

std::vector<PipelineShape> StreamSearcher::shapes() const {
  const auto all = static_cast<int32_t>(machine_.devices.size());
  const bool data = options_.mode != HarmonyMode::Pipeline;
  const bool pipeline = options_.mode != HarmonyMode::Data;
  std::vector<Shape> result;
  for (int32_t n = options_.devices > 0 ? options_.devices : all; n >= 1; --n) {
    if (data && n <= minibatch_) result.push_back({n, 1});
    if (pipeline && (n > 1 || !data)) result.push_back({1, n});
    for (int32_t depth = 2; depth < n && data && pipeline; ++depth)
      if (n % depth == 0 && n / depth <= minibatch_) result.push_back({n / depth, depth});
    if (options_.devices > 0) break;
  }
  if (options_.equal_shares)
    std::erase_if(result, [&](Shape shape) { return minibatch_ % shape.replicas != 0; });
  return result;
}

// Keeps what is best; returns what it counts.
double StreamSearcher::note(const PackStrategy& strategy, const StreamCost& cost) {
  front_.add(strategy, cost);
  const double result = counts(cost);
  if (result < polished_.cost) polished_ = {strategy, result};
  if (result < kDoesNotFit) {
    Costed& known = by_loss_[strategy.backward_packs.back().first];
    if (result < known.cost) known = {strategy, result};
  }
  if (result < best_counts_) {
    best_counts_ = result;
    best_ = strategy;
    best_seconds_ = cost.seconds;
  }
  return result;
}

const std::optional<HarmonyBaseline>& StreamSearcher::own_search(Shape shape, int64_t cap,
                                                                 bool prefetch) {
  const HarmonyMode mode = shape.depth == 1 ? HarmonyMode::Data : HarmonyMode::Pipeline;
  const int32_t devices = shape.replicas * shape.depth;
  const auto [entry, fresh] = own_.try_emplace({mode, devices, cap, prefetch});
  if (fresh) entry->second = harmony_own_search(chain_, mode, devices, minibatch_, cap, prefetch);
  return entry->second;
}

// Harmony's own plans for a pipeline of all devices, as its runtime would carry them out: under
// smaller and smaller caps, since the largest does not always give the fastest. The caps are steps
// of a fixed ladder, so that a larger limit knows the plans of a smaller one.
void StreamSearcher::price_harmony() {
  constexpr double kStep = 1.09, kLeast = 0.75;
  std::vector<int64_t> caps{limit_};
  const auto limit = static_cast<double>(limit_);
  double cap = std::pow(kStep, std::floor(std::log(limit) / std::log(kStep)));
  for (; cap > kLeast * limit; cap /= kStep) caps.push_back(static_cast<int64_t>(cap));
  for (bool prefetch : {false, true})
    for (int64_t most : caps) {
      const auto& own = own_search({1, device_count()}, most, prefetch);
      if (!own) continue;
      const PackStrategy theirs = harmony_runtime(own->plan);
      if (theirs.depth == device_count()) harmony_plans_.push_back(own->plan);
      const StreamCost cost = pricer_.price(theirs);
      if (!cost.fits) continue;
      harmony_seconds_ = std::min(harmony_seconds_, cost.seconds);
      note(theirs, cost);
    }
}

// No more traffic than Harmony's, unless that costs much time or Harmony itself would be faster;
// and what is nearly as fast as the fastest such strategy is good enough.
double StreamSearcher::accepted_seconds() const {
  // So many times as long is much, or nearly as fast: then less traffic is better.
  constexpr double kMuch = 1.15, kNearly = 1.002;
  const StreamFront::Entry* frugal = front_.fastest(harmony_swaps_);
  double seconds = front_.entries().front().cost.seconds;
  if (frugal && frugal->cost.seconds <= std::min(harmony_seconds_, kMuch * best_seconds_))
    seconds = frugal->cost.seconds;
  else if (best_seconds_ <= harmony_seconds_)
    seconds = best_seconds_;
  return std::min(kNearly * seconds, std::max(seconds, harmony_seconds_));
}

// What the plans of Harmony's own search move at least, in either mode, by Harmony's formulas and
// by the simulator.
int64_t StreamSearcher::swap_of_harmony() {
  int64_t least = INT64_MAX;
  for (Shape shape : {Shape{device_count(), 1}, Shape{1, device_count()}}) {
    if (shape.replicas > minibatch_) continue;
    for (bool prefetch : {false, true})
      if (const auto& own = own_search(shape, limit_, prefetch))
        least = std::min({least, harmony_volume(chain_, own->plan, minibatch_).swapped(),
                          pricer_.price(harmony_runtime(own->plan)).volume.swapped()});
  }
  return least;
}

StreamSearchResult StreamSearcher::run() {
  const std::vector<Shape> all = shapes();
  harmony_swaps_ = swap_of_harmony();
  if (options_.mode != HarmonyMode::Data) price_harmony();
  StreamSearchResult result;
  result.lower_bound = kDoesNotFit;
  for (Shape shape : all) {
    const double least = bounds_.least_step(shape, sizes(share(shape)));
    result.lower_bound = std::min(result.lower_bound, least);
    // A pipeline does not come closer to its bound than that.
    if (spent() || least * (shape.depth > 1 ? 1.02 : 1) >= best_counts_) continue;
    shape.depth == 1 ? search_data(shape) : search_pipeline(shape);
  }
  if (!best_)
    for (Shape shape : all) try_frugal(shape);
  if (!front_.empty()) {
    if (!spent()) {
      polish();
      refine_best();
    }
    spare_traffic();
  }
  while (!front_.empty() && !result.strategy) {
    const StreamFront::Entry& chosen = *front_.least_swapped(accepted_seconds());
    result.cost = pricer_.price_long_run(chosen.strategy);
    if (result.cost.fits)
      result.strategy = chosen.strategy;
    else
      front_.remove(chosen);  // later steps hold more
  }
  result.tried = pricer_.runs();
  result.least_limit = fill_.least_limit();
  return result;
}

StreamSearchResult search_streams(ChainTables& chain, const Machine& machine, int64_t minibatch,
                                  int64_t limit, const StreamSearchOptions& options) {
  return StreamSearcher(chain, machine, minibatch, limit, options).run();
}

}  // namespace windlass

// Computing dominates a good plan and is known before any simulation: its bound, for a pair of
// micro-batch sizes, prunes nearly all of them. For those left, a plan's memory is filled in the
// order of what a byte saves: inputs of packs (two bytes of traffic a byte), then weights.
#include "windlass/search/harmony/stream_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "windlass/search/harmony/local_search.h"
#include "windlass/search/harmony/pack_search.h"
#include "windlass/search/harmony/packers.h"
#include "windlass/search/harmony/partition.h"
#include "windlass/search/harmony/stream_bounds.h"
#include "windlass/search/harmony/stream_fill.h"

namespace windlass {
namespace {

// Seconds a byte that swapping counts beside the simulated time: a tenth of what it takes on a link
// of 12 GB/s. Decides between plans that are nearly equally fast.
constexpr double kByteSeconds = 1 / 12e9;
constexpr double kTrafficWeight = 0.1 * kByteSeconds;

double weighed(const StreamCost& cost) {
  if (!cost.fits) return kDoesNotFit;
  return cost.seconds + kTrafficWeight * static_cast<double>(cost.volume.swapped());
}

// Micro-batch sizes that compute so many times slower than the best one are not looked at.
constexpr double kSlowest = 1.4;

using Shape = PipelineShape;

class StreamSearch {
 public:
  StreamSearch(ChainTables& chain, const Machine& machine, int64_t minibatch, int64_t limit,
               const StreamSearchOptions& options)
      : chain_(chain),
        machine_(machine),
        minibatch_(minibatch),
        limit_(limit),
        options_(options),
        bounds_(chain, minibatch, limit),
        pricer_(chain, machine, minibatch, limit),
        fill_(chain, pricer_, limit) {}

  StreamSearchResult run();

 private:
  std::vector<Shape> shapes() const;
  int64_t swap_of_harmony();
  // Seconds that what Harmony would not move counts.
  double excess(const SwapVolume& volume) const {
    return kByteSeconds *
           static_cast<double>(std::max<int64_t>(0, volume.swapped() - harmony_swaps_));
  }
  int64_t share(Shape shape) const { return shape.share(minibatch_); }
  MicroBatchSizes sizes(int64_t samples) const {
    return micro_batch_sizes(chain_.profile(), samples);
  }
  // Places inputs and weights for given packs and keeps the result if it is the best.
  double consider(Shape shape, const HarmonyPlan& packs) {
    return fill_.fill(
        shape, packs, [&](const PackStrategy& s, const StreamCost& c) { return note(s, c); },
        [&] { return best_weighed_; });
  }
  double note(const PackStrategy& strategy, const StreamCost& cost);
  const std::optional<HarmonyBaseline>& own_search(Shape shape, double part, bool prefetch);
  void consider_harmony(Shape shape);
  double expected(Shape shape, const HarmonyPlan& plan);
  void search_data(Shape shape);
  void search_pipeline(Shape shape);
  void polish(Shape shape, CostedPlan start);
  void try_frugal(Shape shape);
  double lower_bound();
  // Tasks, and plans that were not simulated.
  int64_t effort() const { return pricer_.tasks() + skipped_; }
  bool spent() const { return effort() >= options_.effort; }

  ChainTables& chain_;
  const Machine& machine_;
  int64_t minibatch_, limit_;
  StreamSearchOptions options_;
  StreamBounds bounds_;
  StreamPricer pricer_;
  StreamFill fill_;
  StreamSearchResult best_;
  double best_weighed_ = kDoesNotFit;
  // What moves more than Harmony would is only taken if nothing else is found.
  int64_t harmony_swaps_ = INT64_MAX;
  StreamSearchResult other_;
  double other_weighed_ = kDoesNotFit;
  int64_t skipped_ = 0;
  // Of Harmony's own search, by mode, devices, limit and prefetch.
  std::map<std::tuple<HarmonyMode, int32_t, int64_t, bool>, std::optional<HarmonyBaseline>> own_;
};

std::vector<Shape> StreamSearch::shapes() const {
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
  return result;
}

// Keeps what is best; returns what it counts.
double StreamSearch::note(const PackStrategy& strategy, const StreamCost& cost) {
  const double weight = weighed(cost);
  if (weight < other_weighed_) {
    other_weighed_ = weight;
    other_.strategy = strategy;
    other_.cost = cost;
  }
  if (weight < best_weighed_ && cost.volume.swapped() <= harmony_swaps_) {
    best_weighed_ = weight;
    best_.strategy = strategy;
    best_.cost = cost;
  }
  return weight + excess(cost.volume);
}

const std::optional<HarmonyBaseline>& StreamSearch::own_search(Shape shape, double part,
                                                               bool prefetch) {
  const HarmonyMode mode = shape.depth == 1 ? HarmonyMode::Data : HarmonyMode::Pipeline;
  const int32_t devices = shape.replicas * shape.depth;
  const auto cap = static_cast<int64_t>(part * static_cast<double>(limit_));
  const auto [entry, fresh] = own_.try_emplace({mode, devices, cap, prefetch});
  if (fresh) entry->second = harmony_own_search(chain_, mode, devices, minibatch_, cap, prefetch);
  return entry->second;
}

// Harmony's own plans, as its runtime and as windlass would carry them out.
void StreamSearch::consider_harmony(Shape shape) {
  if (shape.depth > 1 && shape.replicas > 1) return;
  for (double part : {0.88, 1.0})
    for (bool prefetch : {false, true}) {
      const auto& own = own_search(shape, part, prefetch);
      if (!own) continue;
      const PackStrategy theirs = harmony_runtime(own->plan);
      if (theirs.depth != shape.depth) continue;
      note(theirs, pricer_.price(theirs));
      consider(shape, own->plan);
    }
}

// Computing and, roughly, what traffic counts: weights three times, and inputs of packs that do not
// fit beside the largest pack.
double StreamSearch::expected(Shape shape, const HarmonyPlan& plan) {
  const int64_t samples = share(shape), size = plan.backward_microbatch;
  const PassTable& table = chain_.backward(size);
  int64_t largest = 0, stashed = 0;
  for (Pack pack : plan.backward_packs) {
    largest = std::max(largest, bounds_.pack_bytes(table, pack, samples, size));
    if (pack.last + 1 < chain_.layers()) stashed += chain_.input(pack.first, samples);
  }
  const Pack all{0, chain_.layers() - 1};
  const int64_t on_host =
      std::max<int64_t>(0, stashed - std::max<int64_t>(0, limit_ - largest - fill_.room_ahead()));
  StreamCost cost;
  cost.fits = true;
  cost.seconds =
      bounds_.backward_seconds(samples, size) +
      bounds_.forward_seconds(samples, plan.forward_microbatch, plan.backward_packs.back().first);
  cost.volume.weights = 3 * chain_.weight_bytes(all);
  cost.volume.activations = 2 * on_host * shape.replicas;
  return weighed(cost) + excess(cost.volume);
}

void StreamSearch::search_data(Shape shape) {
  const int64_t samples = share(shape);
  const MicroBatchSizes known = sizes(samples);
  std::vector<std::pair<double, int64_t>> forward;  // by the time of computing alone
  for (int64_t u : known.forward)
    forward.push_back({bounds_.forward_seconds(samples, u, chain_.layers()), u});
  std::ranges::sort(forward);
  if (forward.size() > 3) forward.resize(3);
  struct Cut {
    double part;  // of the limit, for a pack
    bool large_loss;
  };
  double fastest = kDoesNotFit;
  for (int64_t ub : known.backward)
    fastest = std::min(fastest, bounds_.backward_seconds(samples, ub));
  std::vector<CostedPlan> candidates;
  for (int64_t ub : known.backward) {
    if (bounds_.backward_seconds(samples, ub) > kSlowest * fastest) continue;
    for (Cut how : {Cut{0.25, false}, Cut{0.35, true}, Cut{0.4, false}, Cut{0.45, true},
                    Cut{0.55, true}, Cut{0.65, true}, Cut{0.75, true}, Cut{0.88, true}}) {
      const auto cap = static_cast<int64_t>(how.part * static_cast<double>(limit_));
      HarmonyPlan plan;
      plan.backward_packs = bounds_.cut(samples, ub, cap, how.large_loss);
      if (plan.backward_packs.empty()) continue;
      plan.backward_microbatch = ub;
      plan.forward_packs.assign(plan.backward_packs.begin(), plan.backward_packs.end() - 1);
      plan.forward_microbatch = ub;
      candidates.push_back({plan, expected(shape, plan)});
      for (const auto& [seconds, uf] : forward) {
        if (uf == ub) continue;
        plan.forward_microbatch = uf;
        candidates.push_back({plan, expected(shape, plan)});
      }
    }
  }
  std::ranges::stable_sort(candidates, {}, &CostedPlan::cost);
  for (const CostedPlan& candidate : candidates) {
    if (spent() || candidate.cost * 0.97 >= best_weighed_) return;
    const HarmonyPlan& plan = candidate.plan;
    if (bounds_.least_seconds(samples, plan.forward_microbatch, plan.backward_microbatch,
                              plan.backward_packs.back().first) >= best_weighed_)
      continue;
    consider(shape, plan);
    // Half of the effort is for polishing.
    if (best_.strategy && effort() > options_.effort / 2) return;
  }
}

void StreamSearch::search_pipeline(Shape shape) {
  const int64_t samples = share(shape);
  // Harmony's estimate, without its tax and with bandwidths like those of the links, finds packs.
  PackSearchOptions options;
  options.constants = {.swap_bandwidth = 6e9 * shape.depth,
                       .peer_bandwidth = 10e9,
                       .message_bandwidth = 1e15,
                       .free_seconds = 0};
  options.effort = 3'000'000;
  options.most_packs = 40;
  consider_harmony(shape);
  struct Try {
    double part;    // of the limit, for a task: weights that arrive early need some
    double weight;  // of traffic
  };
  for (Try how : {Try{0.85, 1}, Try{0.75, 4}}) {
    if (spent()) return;
    options.byte_seconds = how.weight * kTrafficWeight;
    const auto cap = static_cast<int64_t>(how.part * static_cast<double>(limit_));
    const PackSearchResult found =
        search_packs(chain_, HarmonyMode::Pipeline, shape.depth, samples, cap, true, options);
    if (found.plan) consider(shape, *found.plan);
  }
}

void StreamSearch::polish(Shape shape, CostedPlan start) {
  const MicroBatchSizes known = sizes(share(shape));
  LocalSearch local(
      chain_, known,
      [&](const HarmonyPlan& plan) {
        skipped_ += 100;
        const double computing = (bounds_.backward_seconds(share(shape), plan.backward_microbatch) +
                                  bounds_.forward_seconds(share(shape), plan.forward_microbatch,
                                                          plan.backward_packs.back().first)) /
                                 shape.depth;
        return computing >= best_weighed_ ? kDoesNotFit : consider(shape, plan);
      },
      [&] { return effort(); });
  local.anneal(start, options_.effort, 0.004, 0.0002, 1);
}

// What the plans of Harmony's own search move at least, in the modes that may be used.
int64_t StreamSearch::swap_of_harmony() {
  const auto devices =
      options_.devices > 0 ? options_.devices : static_cast<int32_t>(machine_.devices.size());
  int64_t least = INT64_MAX;
  for (HarmonyMode mode : {HarmonyMode::Data, HarmonyMode::Pipeline}) {
    const bool data = mode == HarmonyMode::Data;
    if ((options_.mode && mode != *options_.mode) || (data && devices > minibatch_)) continue;
    for (bool prefetch : {false, true})
      if (const auto& own = own_search({data ? devices : 1, data ? 1 : devices}, 1, prefetch))
        least = std::min(least, harmony_volume(chain_, own->plan, minibatch_).swapped());
  }
  return least;
}

double StreamSearch::lower_bound() {
  double least = kDoesNotFit;
  for (Shape shape : shapes()) least = std::min(least, bounds_.bound(shape, false));
  return least;
}

// Every layer a pack, the smallest micro-batches.
void StreamSearch::try_frugal(Shape shape) {
  const MicroBatchSizes known = sizes(share(shape));
  if (known.backward.empty()) return;
  HarmonyPlan plan;
  plan.forward_microbatch = known.forward.front();
  plan.backward_microbatch = known.backward.front();
  for (int32_t l = 0; l < chain_.layers(); ++l) plan.backward_packs.push_back({l, l});
  plan.forward_packs.assign(plan.backward_packs.begin(), plan.backward_packs.end() - 1);
  consider(shape, plan);
}

StreamSearchResult StreamSearch::run() {
  const std::vector<Shape> all = shapes();
  harmony_swaps_ = swap_of_harmony();
  for (Shape shape : all) {
    if (spent()) break;
    // A pipeline does not come closer to its bound than that.
    if (bounds_.bound(shape, shape.depth > 1) * (shape.depth > 1 ? 1.05 : 1) >= best_weighed_)
      continue;
    shape.depth == 1 ? search_data(shape) : search_pipeline(shape);
  }
  if (!other_.strategy)
    for (Shape shape : all) try_frugal(shape);
  if (other_.strategy && !spent()) {
    const auto counts = [&](const StreamSearchResult& result) {
      return weighed(result.cost) + excess(result.cost.volume);
    };
    const auto start = [&]() -> const StreamSearchResult& {
      return best_.strategy ? best_ : other_;
    };
    const Shape shape{start().strategy->replicas, start().strategy->depth};
    polish(shape, {harmony_plan_of(*start().strategy), counts(start())});
    const int64_t limit = effort() + options_.effort / 4;
    fill_.refine(
        *start().strategy, counts(start()),
        [&](const PackStrategy& s, const StreamCost& c) { return note(s, c); },
        [&] { return effort() >= limit; });
  }
  if (!best_.strategy) best_ = std::move(other_);
  best_.lower_bound = lower_bound();
  best_.tried = pricer_.runs();
  best_.least_limit = fill_.least_limit();
  return std::move(best_);
}

}  // namespace

StreamSearchResult search_streams(ChainTables& chain, const Machine& machine, int64_t minibatch,
                                  int64_t limit, const StreamSearchOptions& options) {
  return StreamSearch(chain, machine, minibatch, limit, options).run();
}

}  // namespace windlass

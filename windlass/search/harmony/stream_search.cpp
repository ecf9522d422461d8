// Computing dominates a good plan and is known before any simulation: its bound, for a pair of
// micro-batch sizes, prunes nearly all of them. For those left, a plan's memory is filled in the
// order of what a byte saves: inputs of packs (two bytes of traffic a byte), then weights.
#include "windlass/search/harmony/stream_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <tuple>

#include "windlass/search/harmony/local_search.h"
#include "windlass/search/harmony/pack_search.h"
#include "windlass/search/harmony/packers.h"
#include "windlass/search/harmony/partition.h"
#include "windlass/search/harmony/stream_bounds.h"
#include "windlass/search/harmony/stream_fill.h"
#include "windlass/search/harmony/stream_front.h"

namespace windlass {
namespace {

// Seconds a byte that swapping counts beside the simulated time: a small part of what it takes on a
// link of 12 GB/s. Decides between plans that are nearly equally fast.
constexpr double kByteSeconds = 1 / 12e9;
constexpr double kTrafficWeight = 0.005 * kByteSeconds;
// So many times as long is nearly as fast: then less traffic is better.
constexpr double kNearly = 1.004;

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
  // Simulated time, and what traffic counts: what Harmony would not move, more than it takes.
  double counts(const StreamCost& cost) const {
    const int64_t excess = std::max<int64_t>(0, cost.volume.swapped() - harmony_swaps_);
    return weighed(cost) + 2 * kByteSeconds * static_cast<double>(excess);
  }
  int32_t device_count() const {
    return options_.devices > 0 ? options_.devices : static_cast<int32_t>(machine_.devices.size());
  }
  int64_t share(Shape shape) const { return shape.share(minibatch_); }
  MicroBatchSizes sizes(int64_t samples) const {
    return micro_batch_sizes(chain_.profile(), samples);
  }
  // Places inputs and weights for given packs and keeps the result if it is the best.
  double consider(Shape shape, const HarmonyPlan& packs, const std::vector<uint8_t>& on_host = {}) {
    return fill_.fill(
        shape, packs, [&](const PackStrategy& s, const StreamCost& c) { return note(s, c); },
        [&] { return best_counts_; }, on_host);
  }
  double note(const PackStrategy& strategy, const StreamCost& cost);
  const std::optional<HarmonyBaseline>& own_search(Shape shape, int64_t cap, bool prefetch);
  void price_harmony();
  double accepted_seconds() const;
  void refine_best();
  void spare_traffic();
  // Packs, where their inputs wait, and what that counts at least, roughly.
  struct Candidate {
    HarmonyPlan plan;
    std::vector<uint8_t> on_host;
    double cost = 0;
  };
  double expected(Shape shape, const Candidate& candidate);
  void add_candidates(Shape shape, int64_t ub, std::span<const int64_t> forward, double part,
                      double weight, std::vector<Candidate>& list);
  void search_data(Shape shape);
  void search_pipeline(Shape shape);
  std::vector<uint8_t> like_best(const HarmonyPlan& plan) const;
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
  StreamFront front_;
  // What counts least so far: what moves more than Harmony would counts much.
  std::optional<PackStrategy> best_;
  double best_counts_ = kDoesNotFit, best_seconds_ = kDoesNotFit;
  int64_t harmony_swaps_ = INT64_MAX;
  std::vector<HarmonyPlan> harmony_plans_;
  double harmony_seconds_ = kDoesNotFit;  // of Harmony's own plans and runtime, if they fit
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
  front_.add(strategy, cost);
  const double result = counts(cost);
  if (result < best_counts_) {
    best_counts_ = result;
    best_ = strategy;
    best_seconds_ = cost.seconds;
  }
  return result;
}

const std::optional<HarmonyBaseline>& StreamSearch::own_search(Shape shape, int64_t cap,
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
void StreamSearch::price_harmony() {
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
double StreamSearch::accepted_seconds() const {
  constexpr double kMuch = 1.15;
  const StreamFront::Entry* frugal = front_.fastest(harmony_swaps_);
  double seconds = front_.entries().front().cost.seconds;
  if (frugal && frugal->cost.seconds <= std::min(harmony_seconds_, kMuch * best_seconds_))
    seconds = frugal->cost.seconds;
  else if (best_seconds_ <= harmony_seconds_)
    seconds = best_seconds_;
  return std::min(kNearly * seconds, std::max(seconds, harmony_seconds_));
}

// What becomes of single packs of what counts least, and of what stays inside of Harmony's traffic.
void StreamSearch::refine_best() {
  const int64_t limit = effort() + options_.effort / 4;
  const auto noted = [&](const PackStrategy& s, const StreamCost& c) { return note(s, c); };
  const auto refined = [&] { return effort() >= limit; };
  fill_.refine(*best_, best_counts_, noted, refined);
  const StreamFront::Entry* frugal = front_.fastest(harmony_swaps_);
  if (!frugal || frugal->strategy == *best_) return;
  const StreamFront::Entry start = *frugal;
  fill_.refine(start.strategy, counts(start.cost), noted, refined);
}

// Changes of single packs that move less and take no longer than is accepted.
void StreamSearch::spare_traffic() {
  const int64_t limit = effort() + options_.effort / 4;
  const double most = accepted_seconds();
  const StreamFront::Entry start = *front_.least_swapped(most);
  fill_.refine(
      start.strategy, static_cast<double>(start.swapped),
      [&](const PackStrategy& s, const StreamCost& c) {
        note(s, c);
        return c.seconds <= most ? static_cast<double>(c.volume.swapped()) : kDoesNotFit;
      },
      [&] { return effort() >= limit; });
}

// Computing and, roughly, what traffic counts: weights three times, and inputs of packs on the
// host.
double StreamSearch::expected(Shape shape, const Candidate& candidate) {
  const HarmonyPlan& plan = candidate.plan;
  const int64_t samples = share(shape);
  const Pack all{0, chain_.layers() - 1};
  StreamCost cost;
  cost.fits = true;
  cost.seconds =
      bounds_.backward_seconds(samples, plan.backward_microbatch) +
      bounds_.forward_seconds(samples, plan.forward_microbatch, plan.backward_packs.back().first);
  cost.volume.weights = 3 * chain_.weight_bytes(all);
  for (size_t p = 0; p < plan.backward_packs.size(); ++p)
    if (candidate.on_host[p])
      cost.volume.activations +=
          2 * shape.replicas * chain_.input(plan.backward_packs[p].first, samples);
  return counts(cost);
}

// Cuts for one backward micro-batch size, with several forward ones.
void StreamSearch::add_candidates(Shape shape, int64_t ub, std::span<const int64_t> forward,
                                  double part, double weight, std::vector<Candidate>& list) {
  const auto cap = static_cast<int64_t>(part * static_cast<double>(limit_));
  StashPartition cut =
      bounds_.cut_and_place(share(shape), ub, cap, weight * kTrafficWeight * shape.replicas);
  skipped_ += cut.work / 20;
  if (cut.packs.empty()) return;
  Candidate candidate;
  candidate.on_host = std::move(cut.on_host);
  candidate.plan.backward_packs = std::move(cut.packs);
  candidate.plan.backward_microbatch = ub;
  candidate.plan.forward_packs.assign(candidate.plan.backward_packs.begin(),
                                      candidate.plan.backward_packs.end() - 1);
  for (int64_t uf : forward) {
    candidate.plan.forward_microbatch = uf;
    candidate.cost = expected(shape, candidate);
    list.push_back(candidate);
  }
}

void StreamSearch::search_data(Shape shape) {
  const int64_t samples = share(shape);
  const MicroBatchSizes known = sizes(samples);
  std::vector<std::pair<double, int64_t>> forward, backward;  // by the time of computing alone
  for (int64_t u : known.forward)
    forward.push_back({bounds_.forward_seconds(samples, u, chain_.layers()), u});
  for (int64_t u : known.backward) backward.push_back({bounds_.backward_seconds(samples, u), u});
  std::ranges::sort(forward);
  std::ranges::sort(backward);
  if (forward.size() > 3) forward.resize(3);
  const auto with = [&](int64_t ub) {
    std::vector<int64_t> sizes{ub};
    for (const auto& [seconds, uf] : forward)
      if (uf != ub) sizes.push_back(uf);
    return sizes;
  };
  // The fastest cut and one with little traffic for each size; more for those that promise most.
  std::vector<Candidate> candidates;
  std::vector<std::pair<double, int64_t>> promising;
  for (const auto& [computing, ub] : backward) {
    if (computing > kSlowest * backward.front().first || computing >= best_counts_) break;
    std::vector<Candidate> own;
    for (double weight : {4.0, 100.0}) add_candidates(shape, ub, with(ub), 0.9, weight, own);
    double least = kDoesNotFit;
    for (const Candidate& candidate : own) least = std::min(least, candidate.cost);
    promising.push_back({least, ub});
    candidates.insert(candidates.end(), own.begin(), own.end());
  }
  std::ranges::sort(promising);
  if (promising.size() > 3) promising.resize(3);
  const int64_t enough = skipped_ + options_.effort / 4;
  for (double part : {0.95, 0.8, 0.98, 0.7, 0.85})
    for (double weight : {4.0, 100.0, 20.0})
      for (const auto& [cost, ub] : promising)
        if (skipped_ < enough) add_candidates(shape, ub, with(ub), part, weight, candidates);
  std::ranges::stable_sort(candidates, {}, &Candidate::cost);
  for (const Candidate& candidate : candidates) {
    // Half of the effort is for polishing.
    if (spent() || (best_ && effort() > options_.effort / 2)) return;
    if (candidate.cost * 0.98 >= best_counts_) return;
    consider(shape, candidate.plan, candidate.on_host);
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
  options.most_packs = 40;
  options.below_harmony = false;
  if (shape.depth == device_count())
    for (const HarmonyPlan& plan : harmony_plans_) consider(shape, plan);
  struct Try {
    double part;    // of the limit, for a task: weights that arrive early need some
    double weight;  // of traffic
  };
  // Where data parallelism is a choice too, pipelines are seldom better.
  const bool alone = options_.mode == HarmonyMode::Pipeline;
  const std::vector<Try> tries =
      alone ? std::vector<Try>{{0.85, 20}, {0.75, 80}, {0.9, 1000}} : std::vector<Try>{{0.85, 30}};
  options.effort = alone ? 2'500'000 : 1'000'000;
  for (Try how : tries) {
    if (spent()) return;
    options.byte_seconds = how.weight * kTrafficWeight;
    const auto cap = static_cast<int64_t>(how.part * static_cast<double>(limit_));
    const PackSearchResult found =
        search_packs(chain_, HarmonyMode::Pipeline, shape.depth, samples, cap, true, options);
    skipped_ += options.effort / 40 + 700 * chain_.layers();
    if (found.plan) consider(shape, *found.plan);
  }
}

// Inputs of packs wait where they do in what counts least so far.
std::vector<uint8_t> StreamSearch::like_best(const HarmonyPlan& plan) const {
  const PackStrategy& known = *best_;
  std::vector<uint8_t> on_host;
  size_t at = 0;
  for (Pack pack : plan.backward_packs) {
    while (known.backward_packs[at].last < pack.first) ++at;
    on_host.push_back(known.stash_on_host[at]);
  }
  return on_host;
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
        if (computing >= best_counts_) return kDoesNotFit;
        return consider(shape, plan, like_best(plan));
      },
      [&] { return effort(); });
  local.anneal(start, options_.effort, 0.0005, 0.00005, 3);
}

// What the plans of Harmony's own search move at least, in either mode, by Harmony's formulas and
// by the simulator.
int64_t StreamSearch::swap_of_harmony() {
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
  if (options_.mode != HarmonyMode::Data) price_harmony();
  for (Shape shape : all) {
    if (spent()) break;
    // A pipeline does not come closer to its bound than that.
    if (bounds_.bound(shape, shape.depth > 1) * (shape.depth > 1 ? 1.05 : 1) >= best_counts_)
      continue;
    shape.depth == 1 ? search_data(shape) : search_pipeline(shape);
  }
  if (!best_)
    for (Shape shape : all) try_frugal(shape);
  StreamSearchResult result;
  if (!front_.empty()) {
    if (!spent()) {
      polish({best_->replicas, best_->depth}, {harmony_plan_of(*best_), best_counts_});
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
  result.lower_bound = lower_bound();
  result.tried = pricer_.runs();
  result.least_limit = fill_.least_limit();
  return result;
}

}  // namespace

StreamSearchResult search_streams(ChainTables& chain, const Machine& machine, int64_t minibatch,
                                  int64_t limit, const StreamSearchOptions& options) {
  return StreamSearch(chain, machine, minibatch, limit, options).run();
}

}  // namespace windlass

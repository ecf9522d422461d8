// Packs to begin with.
#include <algorithm>

#include "windlass/search/packs/pack_search.h"
#include "windlass/search/packs/stream_searcher.h"

namespace windlass {

double StreamSearcher::computing(Shape shape, const HarmonyPlan& plan) {
  const int64_t samples = share(shape);
  return (bounds_.backward_seconds(samples, plan.backward_microbatch) +
          bounds_.forward_seconds(samples, plan.forward_microbatch,
                                  plan.backward_packs.back().first)) /
         shape.depth;
}

// Computing and, roughly, what traffic counts: weights three times, and inputs of packs on the
// host.
double StreamSearcher::expected(Shape shape, const Candidate& candidate) {
  const HarmonyPlan& plan = candidate.plan;
  const int64_t samples = share(shape);
  const Pack all{0, chain_.layers() - 1};
  StreamCost cost;
  cost.fits = true;
  cost.seconds = shape.depth * computing(shape, plan);
  cost.volume.weights = 3 * chain_.weight_bytes(all);
  for (size_t p = 0; p < plan.backward_packs.size(); ++p)
    if (candidate.on_host[p])
      cost.volume.activations +=
          2 * shape.replicas * chain_.input(plan.backward_packs[p].first, samples);
  return counts(cost);
}

// Cuts for one backward micro-batch size, with several forward ones.
void StreamSearcher::add_candidates(Shape shape, int64_t ub, std::span<const int64_t> forward,
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

void StreamSearcher::search_data(Shape shape) {
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
  // Sizes that compute so many times slower than the best one are not looked at.
  constexpr double kSlowest = 1.4;
  // The fastest cut and one with little traffic for each size; more for those that promise most.
  std::vector<Candidate> candidates;
  std::vector<std::pair<double, int64_t>> promising;
  for (const auto& [seconds, ub] : backward) {
    if (seconds > kSlowest * backward.front().first || seconds >= best_counts_) break;
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
  for (double part : {0.95, 1.0, 0.8, 0.98, 0.7, 0.85})
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

void StreamSearcher::search_pipeline(Shape shape) {
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

// Every layer a pack, the smallest micro-batches.
void StreamSearcher::try_frugal(Shape shape) {
  const MicroBatchSizes known = sizes(share(shape));
  if (known.backward.empty()) return;
  HarmonyPlan plan;
  plan.forward_microbatch = known.forward.front();
  plan.backward_microbatch = known.backward.front();
  for (int32_t l = 0; l < chain_.layers(); ++l) plan.backward_packs.push_back({l, l});
  plan.forward_packs.assign(plan.backward_packs.begin(), plan.backward_packs.end() - 1);
  consider(shape, plan);
}

}  // namespace windlass

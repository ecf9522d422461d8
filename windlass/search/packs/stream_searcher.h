// The search of stream_search.h: what it looks at and what it has found so far.
#pragma once

#include <map>
#include <span>
#include <tuple>

#include "windlass/search/packs/local_search.h"
#include "windlass/search/packs/partition.h"
#include "windlass/search/packs/stream_bounds.h"
#include "windlass/search/packs/stream_fill.h"
#include "windlass/search/packs/stream_front.h"
#include "windlass/search/packs/stream_search.h"
#include "windlass/search/peers/harmony/packers.h"

namespace windlass {

class StreamSearcher {
 public:
  StreamSearcher(ChainTables& chain, const Machine& machine, int64_t minibatch, int64_t limit,
                 const StreamSearchOptions& options)
      : chain_(chain),
        machine_(machine),
        minibatch_(minibatch),
        limit_(limit),
        options_(options),
        bounds_(chain, machine, minibatch, limit),
        pricer_(chain, machine, minibatch, limit),
        fill_(chain, pricer_, limit) {}

  StreamSearchResult run();

 private:
  using Shape = PipelineShape;

  // Seconds a byte that swapping counts beside the simulated time: a small part of what it takes on
  // a link of 12 GB/s. Decides between plans that are nearly equally fast.
  static constexpr double kByteSeconds = 1 / 12e9;
  static constexpr double kTrafficWeight = 0.005 * kByteSeconds;

  // Packs, where their inputs wait, and what that counts at least, roughly.
  struct Candidate {
    HarmonyPlan plan;
    std::vector<uint8_t> on_host;
    double cost = 0;
  };
  struct Costed {
    PackStrategy strategy;
    double cost = kDoesNotFit;
  };

  std::vector<Shape> shapes() const;
  int32_t device_count() const {
    return options_.devices > 0 ? options_.devices : static_cast<int32_t>(machine_.devices.size());
  }
  int64_t share(Shape shape) const { return shape.share(minibatch_); }
  MicroBatchSizes sizes(int64_t samples) const {
    return micro_batch_sizes(chain_.profile(), samples);
  }
  // What the search minimises: simulated time, plus a little for each byte that is swapped, plus
  // much for each byte beyond what Harmony would swap.
  double counts(const StreamCost& cost) const;
  // Places inputs and weights for given packs and keeps the result if it is the best.
  double consider(Shape shape, const HarmonyPlan& packs, const std::vector<uint8_t>& on_host = {}) {
    return fill_.fill(
        shape, packs, [&](const PackStrategy& s, const StreamCost& c) { return note(s, c); },
        [&] { return best_counts_; }, on_host);
  }
  double note(const PackStrategy& strategy, const StreamCost& cost);
  double accepted_seconds() const;

  const std::optional<HarmonyBaseline>& own_search(Shape shape, int64_t cap, bool prefetch);
  int64_t swap_of_harmony();
  void price_harmony();

  void search_data(Shape shape);
  void search_pipeline(Shape shape);
  void try_frugal(Shape shape);
  void add_candidates(Shape shape, int64_t ub, std::span<const int64_t> forward, double part,
                      double weight, std::vector<Candidate>& list);
  double expected(Shape shape, const Candidate& candidate);
  // Of the samples of a pipeline, shared out evenly over its devices.
  double computing(Shape shape, const HarmonyPlan& plan);

  void polish();
  void polish(const Costed& start, int64_t limit);
  std::vector<uint8_t> like_polished(const HarmonyPlan& plan) const;
  void refine_best();
  void spare_traffic();
  void spare_traffic(const StreamFront::Entry& start, double most);

  // Tasks, and plans that were not simulated.
  int64_t effort() const { return pricer_.tasks() + skipped_; }
  bool spent() const { return effort() >= options_.effort || (options_.stop && options_.stop()); }

  ChainTables& chain_;
  const Machine& machine_;
  int64_t minibatch_, limit_;
  StreamSearchOptions options_;
  StreamBounds bounds_;
  StreamPricer pricer_;
  StreamFill fill_;
  StreamFront front_;
  // The strategy that counts() least so far.
  std::optional<PackStrategy> best_;
  double best_counts_ = kDoesNotFit, best_seconds_ = kDoesNotFit;
  int64_t harmony_swaps_ = INT64_MAX;
  std::vector<HarmonyPlan> harmony_plans_;
  double harmony_seconds_ = kDoesNotFit;  // of Harmony's own plans and runtime, if they fit
  int64_t skipped_ = 0;
  // The best with each first layer of the loss pack, which local search seldom moves: the packs
  // before it and what waits in memory have to change with it.
  std::map<int32_t, Costed> by_loss_;
  Costed polished_;  // the best since polishing began somewhere
  // Of Harmony's own search, by mode, devices, limit and prefetch.
  std::map<std::tuple<HarmonyMode, int32_t, int64_t, bool>, std::optional<HarmonyBaseline>> own_;
};

}  // namespace windlass

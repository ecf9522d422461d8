// Search: from a problem (a network, a machine with its limits, prices) to the fastest strategy
// that fits, or to the reason why there is none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/plan/step.h"
#include "windlass/plan/termination.h"
#include "windlass/search/book/effort.h"
#include "windlass/sim/simulate.h"
#include "windlass/strategy/baselines.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

struct Problem {
  const Graph& network;  // of the whole batch, with a loss
  const Machine& machine;
  TrainingOptions training = {};
  const CostModel& cost;
  Reprice reprice = {};
  // Seconds that `reprice` has spent measuring so far, if it measures.
  std::function<Seconds()> measuring = {};
  // The same network with rows of experts in slots (graph/expert_slots.h), if its experts may be
  // split over devices; must outlive the problem.
  const Graph* with_slots = nullptr;
};

// How far a search is.
struct SearchProgress {
  int64_t tried = 0;  // strategies simulated
  Seconds seconds;
  std::optional<Seconds> best = {}, bound = {};  // step, and what it cannot be below
  double proposals_per_second = 0;               // of Markov chains, while they run
};

// A strategy to start from, for the training graph of one of its micro-batches.
struct StartStrategy {
  Strategy strategy;
  std::string origin;  // for messages
};

// Decisions that the user has made. 0 or none: open.
struct FixedDecisions {
  int64_t dp = 0, tp = 0, pp = 0, cp = 0, ep = 0;
  int zero = -1;
  std::optional<RecomputePolicy> recompute;
  std::optional<bool> offload, host_weights, host_update;

  bool structure() const { return dp > 0 || tp > 0 || pp > 0 || cp > 0 || ep > 1; }
  // Whether a named strategy agrees. Sharing out means nothing without replicas.
  bool allows(const BaselineSpec& spec) const {
    const auto open = [](int64_t decided, int64_t value) {
      return decided == 0 || value == 0 || decided == value;
    };
    return open(dp, spec.dp) && open(tp, spec.tp) && open(pp, spec.pp) && open(cp, spec.cp) &&
           open(ep, spec.ep) && (zero < 0 || spec.dp * spec.cp == 1 || zero == spec.zero) &&
           (!recompute || *recompute == spec.recompute) && (!offload || *offload == spec.offload) &&
           (!host_update || *host_update == spec.host_update) &&
           (!host_weights || *host_weights == spec.host_weights);
  }
  // Whether a strategy leaves out what was ruled out, tensor by tensor and weight by weight.
  bool allows(const Strategy& strategy) const {
    const auto ruled_out = [](const std::optional<bool>& decided) { return decided && !*decided; };
    const auto has = [&](MemoryAction action) {
      return std::ranges::find(strategy.saved, action) != strategy.saved.end();
    };
    return !(ruled_out(offload) && has(MemoryAction::Offload)) &&
           !(recompute == RecomputePolicy::None && has(MemoryAction::Recompute)) &&
           !(ruled_out(host_weights) && std::ranges::any_of(strategy.weights, &Residency::host)) &&
           !(ruled_out(host_update) &&
             std::ranges::any_of(strategy.weights, &Residency::host_update));
  }
  bool any() const {
    return structure() || zero >= 0 || recompute || offload || host_weights || host_update;
  }
};

// Throws Error{Input} if no strategy for the network and machine can have these degrees: it says
// why, and which could be had.
void check_fixed(const FixedDecisions& fixed, const Graph& network, const Machine& machine);

struct SearchOptions {
  // A cap, after which the best so far is returned, and stages say what was cut. What is found does
  // not depend on it unless it cuts: stages have an effort, not a time. Measuring is no search: it
  // takes what it takes, but is not begun for another number of micro-batches once the limit is
  // over and something fits.
  Seconds time_limit{60};
  // The only number to try; 0: any. Error{Input} if the batch cannot be cut so.
  int64_t micro_batches = 0;
  int threads = 0;    // of the search; 0: all cores. The result does not depend on it
  uint64_t seed = 0;  // of random choices; the same one gives the same result
  double effort = 1;  // relative to the usual
  // Fewest bits that saved tensors may be stored in: 8, 4 or 2; 0: not at all. Changes the
  // mathematics.
  int compress = 0;
  FixedDecisions fixed = {};
  // A plan of the same step that is known: what takes as long is of no interest.
  std::optional<Seconds> below = {};
  // Of structures, only those that split experts over replicas: the others were searched for
  // before.
  bool experts_split = false;
  std::optional<HarmonyMode> pack_mode = {};  // of packs of layers; none: whichever is faster
  std::vector<StartStrategy> starts = {};
  // Asked now and then: whether to return the best so far.
  std::function<bool()> stop = {};
  // What time it is, in seconds, for tests; by default a clock's.
  std::function<double()> clock = {};
  std::function<void(const SearchProgress&)> progress = {};
};

struct SearchResult {
  Termination termination = Termination::Infeasible;
  int64_t samples = 0;     // of the batch
  TrainingGraph training;  // that the strategy is for: of one micro-batch, for packs of the batch
  Strategy strategy;       // if infeasible: the one that needs least
  bool in_slots = false;   // both are for Problem::with_slots
  Seconds step_time;
  // A plan with more moving parts (packs of layers) that is faster by no more than noise.
  std::optional<Seconds> passed_over = {};
  Seconds lower_bound;
  // The least limit of each device at which something that was tried runs. Exact to the byte for
  // that strategy. Always there when nothing fits, unless a host is too small.
  std::optional<Bytes> least_limit;
  int64_t tried = 0;      // strategies simulated
  int64_t proposals = 0;  // of Markov chains, simulated or not
  // Simulated: limits ascending, times descending. Empty if the method has none.
  std::vector<FrontierPoint> frontier = {};

  // Exact search: the sum of times that was minimised, what it cannot be below, how it was done.
  std::optional<Seconds> objective = {}, objective_bound = {};
  double largest_table = 0;  // cells
  int64_t options = 0;       // shardings of all ops together
  bool out_of_time = false;
  // Whether the trade of time against bytes was found in full, up to this resolution of bytes.
  bool frontier_exact = false;
  Bytes frontier_resolution = {};
  // Whether recomputation of single ops was among its options; if not, why.
  bool frontier_recompute = false;
  std::string recompute_left_out = {};

  // What was spent on what, in order, and what was left out.
  std::vector<StageEffort> stages = {};
  Seconds seconds;  // of all of it, with what was spent measuring
};

// One device: every saved tensor is kept, recomputed or moved to the host, weights and optimizer
// state stay or are streamed, the batch is cut into micro-batches. Starts from several frugal
// strategies and then keeps, in the order of time saved per byte, whatever still fits, each choice
// checked by the simulator. If keeping everything fits, that is the answer. Never Optimal; the
// lower bound is the plain work of the cuts that were tried.
SearchResult search_one_device(const Problem& problem, const SearchOptions& options = {});

// All devices as one group, each op split in its own way: the sum of all times is minimised exactly
// (search/exact/sharding/sharding_problem.h says what is in it), and so is its trade against
// memory. What is found is simulated, and beside it the strategies that a user would name; the
// fastest that fits is returned. Optimal: the sum is proven least. The lower bound is the work that
// no sharding avoids.
SearchResult search_exact(const Problem& problem, const SearchOptions& options = {});

// Several groups of devices: replicas x tensor-parallel parts x pipeline stages, micro-batches, and
// the usual remedies against full memory, all simulated; the fastest that fits. On all devices, and
// on some of them where that may be faster (search/grid/subsets.h). Never Optimal.
SearchResult search_grid(const Problem& problem, const SearchOptions& options = {});

// All devices as one group of replicas, or one device: numbers of micro-batches, homes of weights,
// and for each what becomes of every saved tensor by dynamic programming over the chain of blocks
// (search/chain/chain.h). Never Optimal.
SearchResult search_chain(const Problem& problem, const SearchOptions& options = {});

// Markov chains over everything that a strategy decides, from the strategies that a user would name
// and from SearchOptions::starts. Never Optimal.
SearchResult search_mcmc(const Problem& problem, const SearchOptions& options = {});

// Packs of layers that pass through the devices, weights streamed from the host, for networks
// larger than all device memory (search/packs/). Found by layers, simulated op by op. Never
// Optimal. Throws Error{Unsupported} if the network cannot be carried out in packs, Error{Input} if
// SearchOptions has decisions that packs know nothing of.
SearchResult search_harmony(const Problem& problem, const SearchOptions& options = {});

// search/auto.cpp: all methods that suit the machine, then Markov chains from the best they found;
// the same on some of the devices where that may be faster. On rungs that do not depend on the
// limit (search/ladder.h), so that a larger one never gives a slower plan, nor none; where devices
// have unlike limits, or prices are measured, at the limits alone. The lower bound is that of
// work_bound().
SearchResult search_all(const Problem& problem, const SearchOptions& options = {});

// No step is faster: what its kernels take, each cut as suits it best, shared out evenly over all
// devices, and updates over devices and hosts; where devices are alike, with what pieces exchange
// and what pipelines wait (bounds/split_bound.h), unless search may go on from strategies that this
// is not known of. With measured prices, arithmetic at full speed.
Seconds work_bound(const Problem& problem, const SearchOptions& options = {});

// Methods by name.
struct SearchMethod {
  std::string_view name;
  std::string_view what;  // one line for people
  std::function<SearchResult(const Problem& problem, const SearchOptions& options)> search;
};
const std::vector<SearchMethod>& search_methods();
// "auto" is the method for the machine. Throws Error{Input} if there is no such method, or it is
// not one for this machine.
const SearchMethod& find_search_method(std::string_view name, const Machine& machine);

}  // namespace windlass

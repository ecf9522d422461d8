// The search method "harmony": packs of layers for a network. They are searched on its chain of
// layers (search_layers.h) and enter the book like everything else: simulated op by op, one step,
// with what it takes on the host. What fits by layers but not by ops is searched again under a
// limit that is lower by what was missing.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/cost/model_chain.h"
#include "windlass/graph/network_layers.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/packs/search_layers.h"

namespace windlass {
namespace {

constexpr int kTries = 6;
constexpr int64_t kLeastStep = 256;  // of the limit, so that tries come to an end

// Throws what lowering would throw of any packs of the network, before the search begins.
void expect_packs(const TrainingGraph& training, const Machine& machine, int64_t samples) {
  HarmonyPlan plan = {
      .mode = HarmonyMode::Data, .forward_microbatch = samples, .backward_microbatch = samples};
  plan.backward_packs = {{0, find_layers(training.graph).back()}};
  lower(training, strategy_of_packs(harmony_runtime(plan)), machine);
}

// Where nothing fits: the packs that need least, op by op. From a limit at which layers fit,
// halving what lies between one at which packs were found and one at which there are none.
void seek_least(Ledger& ledger, const LayerProfile& chain, int64_t enough) {
  constexpr int kHalvings = 9;
  constexpr double kEffort = 0.05;  // what is found need not be fast
  const LayerSearchOptions options = {.mode = ledger.options().pack_mode,
                                      .equal_shares = true,
                                      .baselines = false,
                                      .effort = kEffort,
                                      .stop = [&] { return ledger.interrupted(); }};
  Machine machine = ledger.problem().machine;
  Evaluator& evaluator = *ledger.cut(1).evaluator;
  std::optional<int64_t> least;
  // Whether layers fit; what the ops of the packs then need is kept.
  const auto try_limit = [&](int64_t limit) {
    for (Device& device : machine.devices) device.limit = Bytes(limit);
    const LayerSearchResult found = search_layers(chain, machine, ledger.batch().samples, options);
    ledger.count(found.tried);
    if (!found.strategy) return false;
    const Strategy strategy = strategy_of_packs(*found.strategy);
    const std::optional<int64_t> needs = evaluator.least_limit(strategy);
    if (needs && (!least || *needs < *least)) {
      least = needs;
      ledger.add_frugal(strategy, 1);
      ledger.consider(strategy, 1);
    }
    return true;
  };
  int64_t too_little = 0;
  for (int i = 0; i < kHalvings && !ledger.interrupted() && !ledger.fits(); ++i) {
    const int64_t middle = i == 0 ? enough : too_little + (enough - too_little) / 2;
    (try_limit(middle) ? enough : too_little) = middle;
  }
}

}  // namespace

bool suits_packs(const Machine& machine) {
  return machine.nodes.size() == 1 && std::ranges::all_of(machine.devices, [&](const Device& d) {
           return d.type == machine.devices.front().type;
         });
}

void run_packs(Ledger& ledger) {
  ledger.begin("packs of layers", kStructureUnits);
  const Problem& problem = ledger.problem();
  const int64_t samples = ledger.batch().samples;
  const LayerProfile chain =
      chain_of_network(problem.network, problem.training, problem.machine, problem.cost);
  expect_packs(ledger.cut(1).training, problem.machine, samples);
  const LayerSearchOptions options = {.mode = ledger.options().pack_mode,
                                      .equal_shares = true,
                                      .baselines = false,
                                      .effort = ledger.options().effort,
                                      .stop = [&] { return ledger.interrupted(); }};
  Machine machine = problem.machine;
  for (int tries = 0; tries < kTries; ++tries) {
    const LayerSearchResult found = search_layers(chain, machine, samples, options);
    ledger.count(found.tried);
    if (!found.strategy) {
      if (!ledger.answered() && found.least_limit) seek_least(ledger, chain, *found.least_limit);
      return;
    }
    const Evaluation ops = ledger.consider(strategy_of_packs(*found.strategy), 1);
    ledger.report();
    if (ops.fits || ops.host_lacks || ledger.beaten(ops.free_time)) return;
    for (Device& device : machine.devices)
      device.limit -= Bytes(std::max(ops.missing, device.limit.value / kLeastStep));
  }
  if (!ledger.answered()) seek_least(ledger, chain, problem.machine.devices[0].limit.value);
}

void try_packs(Ledger& ledger) {
  const Problem& problem = ledger.problem();
  const SearchOptions& options = ledger.options();
  if (!suits_packs(problem.machine) || problem.reprice || problem.cost.runner_costs() != nullptr ||
      problem.training.clip_norm > 0 || options.micro_batches > 0 || options.fixed.any() ||
      !options.starts.empty() || options.below)
    return;
  const auto on_host = [](const Residency& weight) { return weight.host || weight.host_update; };
  if (ledger.fits() && std::ranges::none_of(ledger.entries().front().strategy.weights, on_host))
    return;
  try {
    run_packs(ledger);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Unsupported) throw;  // else: not a network for packs
  }
}

SearchResult search_harmony(const Problem& problem, const SearchOptions& options) {
  if (options.micro_batches > 0 || options.fixed.any())
    fail_input(
        "--search harmony: packs choose micro-batches of their own in each pass, and decide for "
        "layers, not for ops; leave --micro-batches and --fix out");
  Ledger ledger(problem, options);
  run_packs(ledger);
  SearchResult result = ledger.finish();
  result.lower_bound = ledger.bound();
  return result;
}

}  // namespace windlass

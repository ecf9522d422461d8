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
  bool larger = false;  // than the machine has
  for (int tries = 0; tries < kTries && !larger; ++tries) {
    LayerSearchResult found = search_layers(chain, machine, samples, options);
    ledger.count(found.tried);
    if (!found.strategy) {
      if (ledger.answered() || !found.least_limit) return;
      // Nothing fits: what would, with more memory, may be what needs least.
      for (Device& device : machine.devices) device.limit = Bytes(*found.least_limit);
      found = search_layers(chain, machine, samples, options);
      if (!found.strategy) return;
      larger = true;
    }
    const Evaluation ops = ledger.consider(strategy_of_packs(*found.strategy), 1);
    ledger.report();
    if (ops.fits || ops.host_lacks || ledger.beaten(ops.free_time)) return;
    for (Device& device : machine.devices)
      device.limit -= Bytes(std::max(ops.missing, device.limit.value / kLeastStep));
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
  result.lower_bound = work_bound(problem);
  return result;
}

}  // namespace windlass

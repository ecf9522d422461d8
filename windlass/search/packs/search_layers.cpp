#include "windlass/search/packs/search_layers.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/search/packs/pack_search.h"
#include "windlass/search/packs/stream_bounds.h"
#include "windlass/search/packs/stream_search.h"
#include "windlass/search/packs/timeline.h"
#include "windlass/search/peers/harmony/packers.h"
#include "windlass/search/peers/harmony/runtime_baseline.h"
#include "windlass/search/peers/paging/paging.h"
#include "windlass/sim/summary.h"

namespace windlass {
namespace {

int64_t check_problem(const LayerProfile& profile, const Machine& machine, int64_t minibatch,
                      int32_t devices) {
  if (devices < 0 || static_cast<size_t>(devices) > machine.devices.size())
    fail_input("{} devices, but {} has {}", devices, machine.name, machine.devices.size());
  if (machine.nodes.size() != 1)
    fail_unsupported("{}: packs of layers are planned for one node, this machine has {}",
                     machine.name, machine.nodes.size());
  int64_t limit = machine.devices.front().limit.value;
  for (const Device& device : machine.devices) {
    if (device.type != machine.devices.front().type)
      fail_unsupported("{}: packs of layers are planned for devices that are alike", machine.name);
    limit = std::min(limit, device.limit.value);
  }
  if (minibatch < 1) fail_input("a batch of {} samples, expected at least one", minibatch);
  if (minibatch > (int64_t{1} << 20))
    fail_unsupported("a batch of {} samples: packs of layers are planned for up to {}", minibatch,
                     int64_t{1} << 20);
  if (profile.forward.sizes.front() > minibatch || profile.backward.sizes.front() > minibatch)
    fail_input("a batch of {} samples, but the profile's smallest micro-batch has {}", minibatch,
               std::max(profile.forward.sizes.front(), profile.backward.sizes.front()));
  return limit;
}

void add_paging(LayerSearchResult& result, const ChainTables& chain, int64_t minibatch,
                int32_t devices) {
  for (HarmonyMode mode : {HarmonyMode::Data, HarmonyMode::Pipeline}) {
    const int64_t samples = samples_of_device(mode, minibatch, devices);
    const int64_t size = std::min(samples, result.plan.backward_microbatch);
    result.baselines.push_back(
        {mode == HarmonyMode::Data ? "data parallel, paging on demand"
                                   : "pipeline parallel, paging on demand",
         std::nullopt,
         paging_volume(chain, mode, devices, minibatch, (samples + size - 1) / size)});
  }
}

// By Harmony's estimate, in the modes that were asked for.
LayerSearchResult by_estimate(ChainTables& chain, const Machine& machine, int64_t minibatch,
                              int64_t limit, const LayerSearchOptions& options) {
  LayerSearchResult result;
  const auto devices =
      options.devices > 0 ? options.devices : static_cast<int32_t>(machine.devices.size());
  std::vector<HarmonyMode> modes;
  if (options.mode) modes.push_back(*options.mode);
  if (!options.mode) modes = {HarmonyMode::Pipeline, HarmonyMode::Data};
  PackSearchOptions effort;
  effort.effort /= static_cast<int64_t>(modes.size());
  for (HarmonyMode mode : modes) {
    if (mode == HarmonyMode::Data && minibatch < devices) continue;
    const PackSearchResult found =
        search_packs(chain, mode, devices, minibatch, limit, options.prefetch, effort);
    result.tried += found.tried;
    if (found.least_limit > 0 && (!result.least_limit || found.least_limit < *result.least_limit))
      result.least_limit = found.least_limit;
    if (!found.plan) continue;
    result.lower_bound = result.termination == Termination::Feasible
                             ? std::min(result.lower_bound, found.lower_bound)
                             : found.lower_bound;
    if (result.termination == Termination::Feasible && found.seconds >= result.step_seconds)
      continue;
    result.termination = Termination::Feasible;
    result.plan = *found.plan;
    result.step_seconds = found.seconds;
  }
  if (result.termination == Termination::Infeasible) {
    if (!result.least_limit)
      fail_input("no micro-batch size of the profile cuts {} samples for {} devices", minibatch,
                 devices);
    result.reason = "the largest task of the most frugal packs is larger than the limit";
    return result;
  }
  result.least_limit.reset();
  const int64_t peak = harmony_peak_bytes(chain, result.plan);
  for (size_t d = 0; d < static_cast<size_t>(devices); ++d)
    result.devices.push_back({machine.devices[d].name, peak, machine.devices[d].limit.value});
  result.volume = harmony_volume(chain, result.plan, minibatch);
  result.host_bytes = host_bytes(chain, harmony_stash_bytes(chain, result.plan, minibatch));
  result.links = {{"host to devices and back", result.volume.swapped()},
                  {"device to device", result.volume.peers},
                  {"host to host", result.volume.messages}};
  const auto own =
      harmony_own_search(chain, result.plan.mode, devices, minibatch, limit, options.prefetch);
  if (own)
    result.baselines.push_back(
        {"Harmony's own search", own->seconds, harmony_volume(chain, own->plan, minibatch)});
  add_paging(result, chain, minibatch, devices);
  return result;
}

// Demand paging at its best micro-batch size of a few; those that take too long to simulate are
// left out.
void time_paging(LayerSearchResult& result, ChainTables& chain, const Machine& machine,
                 int64_t minibatch, int32_t devices, int64_t limit) {
  constexpr int64_t kMostTasks = 100'000;
  for (HarmonyMode mode : {HarmonyMode::Data, HarmonyMode::Pipeline}) {
    const int64_t samples = samples_of_device(mode, minibatch, devices);
    LayerBaseline best{mode == HarmonyMode::Data ? "data parallel, paging on demand"
                                                 : "pipeline parallel, paging on demand",
                       std::nullopt,
                       {}};
    for (int64_t size : {1, 2, 4, 8, 16}) {
      const LayerProfile& profile = chain.profile();
      if (samples % size != 0 || !profile.forward.covers(size) || !profile.backward.covers(size) ||
          samples / size * 6 * chain.layers() > kMostTasks)
        continue;
      const PagingCost cost =
          simulate_paging(chain, machine, mode, devices, minibatch, size, limit);
      if (best.seconds && *best.seconds <= cost.seconds) continue;
      best.seconds = cost.seconds;
      best.volume = cost.volume;
    }
    if (best.seconds) result.baselines.push_back(best);
  }
}

// What the simulator says of a strategy.
void describe(LayerSearchResult& result, ChainTables& chain, const Machine& machine,
              int64_t minibatch, int64_t limit, const PackStrategy& strategy) {
  result.strategy = strategy;
  result.plan = harmony_plan_of(strategy);
  StreamPricer pricer(chain, machine, minibatch, limit);
  const StreamCost cost = pricer.price_long_run(strategy);
  if (cost.peak_bytes == 0) fail_input("{}", small_window_text(strategy));
  result.step_seconds = cost.seconds;
  result.volume = cost.volume;
  result.host_bytes = cost.host_bytes;
  const std::vector<int64_t> peaks = pricer.peaks();
  for (int32_t d = 0; d < strategy.devices(); ++d) {
    const Device& device = machine.devices[static_cast<size_t>(d)];
    result.devices.push_back(
        {device.name, peaks[static_cast<size_t>(d % strategy.depth)], device.limit.value});
  }
  const std::optional<PackRun> run = pricer.run(strategy);
  result.timeline = draw_timeline(*run->steps, *run->simulation);
  const auto steps = static_cast<int64_t>(run->steps->begin.size()) - 1;
  for (const LinkLoad& load : link_bytes(*run->steps->graph, *run->simulation)) {
    const Link& link = machine[load.direction.link];
    const auto name = [&](EndpointId id) { return machine[id].name; };
    result.links.push_back({load.direction.forward
                                ? fmt::format("{} -> {}", name(link.a), name(link.b))
                                : fmt::format("{} -> {}", name(link.b), name(link.a)),
                            load.bytes.value / steps});
  }
}

// By the simulator, on the machine's links.
LayerSearchResult by_simulator(ChainTables& chain, const Machine& machine, int64_t minibatch,
                               int64_t limit, const LayerSearchOptions& options) {
  LayerSearchResult result;
  StreamSearchOptions streams = {.mode = options.mode,
                                 .devices = options.devices,
                                 .equal_shares = options.equal_shares,
                                 .stop = options.stop};
  streams.effort = std::llround(static_cast<double>(streams.effort) * options.effort);
  const StreamSearchResult found = search_streams(chain, machine, minibatch, limit, streams);
  result.tried = found.tried;
  if (!found.strategy) {
    if (found.tried == 0)
      fail_input("no micro-batch size of the profile cuts {} samples for these devices", minibatch);
    result.least_limit = found.least_limit;
    result.reason = "the most frugal packs need more than the limit";
    return result;
  }
  result.termination = Termination::Feasible;
  result.lower_bound = found.lower_bound;
  describe(result, chain, machine, minibatch, limit, *found.strategy);
  return result;
}

// Host memory, whatever the devices have.
void look_at_host(LayerSearchResult& result, const ChainTables& chain, const Machine& machine,
                  int64_t minibatch) {
  result.least = least_volume(chain, minibatch);
  result.host_limit = machine.nodes.front().memory.value;
  if (result.termination == Termination::Infeasible || result.host_bytes <= result.host_limit)
    return;
  result.termination = Termination::Infeasible;
  result.host_needed = result.host_bytes;
  result.reason = "weights, gradients, optimizer state and stashes do not fit into host memory";
}

void add_simulated_baselines(LayerSearchResult& result, ChainTables& chain, const Machine& machine,
                             int64_t minibatch, int64_t limit) {
  const int32_t devices = result.plan.devices;
  StreamPricer pricer(chain, machine, minibatch, limit);
  for (HarmonyMode mode : {HarmonyMode::Data, HarmonyMode::Pipeline}) {
    if (mode == HarmonyMode::Data && minibatch < devices) continue;
    const auto cost = harmony_that_fits(chain, pricer, mode, devices, minibatch, limit);
    if (!cost) continue;
    result.baselines.push_back(
        {fmt::format("Harmony's own search and runtime, {}", harmony_mode_name(mode)),
         cost->seconds, cost->volume});
  }
  time_paging(result, chain, machine, minibatch, devices, limit);
}

}  // namespace

LayerSearchResult search_layers(const LayerProfile& profile, const Machine& machine,
                                int64_t minibatch, const LayerSearchOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const int64_t limit = check_problem(profile, machine, minibatch, options.devices);
  ChainTables chain(profile);
  const bool simulated = options.cost == LayerCost::Windlass;
  LayerSearchResult result = simulated ? by_simulator(chain, machine, minibatch, limit, options)
                                       : by_estimate(chain, machine, minibatch, limit, options);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  look_at_host(result, chain, machine, minibatch);
  if (simulated && options.baselines && result.termination != Termination::Infeasible)
    add_simulated_baselines(result, chain, machine, minibatch, limit);
  return result;
}

LayerSearchResult simulate_packs(const LayerProfile& profile, const Machine& machine,
                                 int64_t minibatch, const PackStrategy& strategy, bool baselines) {
  const int64_t limit = check_problem(profile, machine, minibatch, 0);
  check_pack_strategy(profile, strategy, minibatch, static_cast<int64_t>(machine.devices.size()));
  ChainTables chain(profile);
  LayerSearchResult result;
  result.termination = Termination::Feasible;
  describe(result, chain, machine, minibatch, limit, strategy);
  StreamBounds bounds(chain, machine, minibatch, limit);
  const PipelineShape shape{strategy.replicas, strategy.depth};
  MicroBatchSizes sizes = micro_batch_sizes(profile, shape.share(minibatch));
  sizes.forward.push_back(strategy.forward_microbatch);
  sizes.backward.push_back(strategy.backward_microbatch);
  result.lower_bound = bounds.least_step(shape, sizes);
  int64_t peak = 0;
  for (const LayerDevice& device : result.devices) peak = std::max(peak, device.peak_bytes);
  if (peak > limit) {
    result.termination = Termination::Infeasible;
    result.least_limit = peak;
    result.reason = "the packs need more than the limit";
  }
  look_at_host(result, chain, machine, minibatch);
  if (baselines && result.termination != Termination::Infeasible)
    add_simulated_baselines(result, chain, machine, minibatch, limit);
  return result;
}

}  // namespace windlass

#include "windlass/search/packs/network_packs.h"

#include <algorithm>

#include "windlass/plan/packs/op_grain.h"

namespace windlass {

LayerSearchResult search_network_packs(const Graph& network, const TrainingOptions& training,
                                       const LayerProfile& chain, const Machine& machine,
                                       const CostModel& cost, int64_t samples,
                                       const LayerSearchOptions& given) {
  constexpr int kTries = 6;
  constexpr int64_t kLeastStep = 256;  // of the limit, so that tries come to an end
  LayerSearchOptions options = given;
  options.equal_shares = true;
  const TrainingGraph step = differentiate(network, training);
  Machine tighter = machine;
  LayerSearchResult result;
  for (int tries = 0; tries < kTries; ++tries) {
    result = search_layers(chain, tighter, samples, options);
    for (LayerDevice& device : result.devices)
      device.limit_bytes +=
          machine.devices.front().limit.value - tighter.devices.front().limit.value;
    if (result.termination == Termination::Infeasible || !result.strategy) return result;
    const OpGrainStep ops = simulate_op_grain(step, *result.strategy, machine, cost);
    result.simulated_only = ops.obstacle;
    if (!ops.obstacle.empty()) return result;
    result.op_step_seconds = ops.seconds;
    result.op_peak_bytes = std::ranges::max(ops.device_peaks);
    if (ops.fits) return result;
    if (ops.host_lacks) {
      result.termination = Termination::Infeasible;
      result.host_needed = result.host_limit + ops.missing;
      result.reason = "weights, optimizer state, stashes and data do not fit into host memory";
      return result;
    }
    for (Device& device : tighter.devices)
      device.limit -= Bytes(std::max(ops.missing, device.limit.value / kLeastStep));
  }
  result.termination = Termination::Infeasible;
  result.reason = "what fits by layers does not fit op by op";
  result.least_limit = machine.devices.front().limit.value + kLeastStep;
  return result;
}

}  // namespace windlass

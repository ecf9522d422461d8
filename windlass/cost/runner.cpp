#include "windlass/cost/runner.h"

#include <algorithm>
#include <cmath>

#include "windlass/graph/autocast.h"
#include "windlass/graph/fuse.h"

namespace windlass {
namespace {

Bytes taken_beside_tensors(const Runner& runner, const Machine& machine, DeviceId device) {
  const Bytes context = runner.context.value_or(machine.type_of(device).reserved);
  return machine.devices.size() > 1 ? context + runner.communicator : context;
}

}  // namespace

bool is_windlass(const Runner& runner) {
  Runner plain;
  plain.description = runner.description;
  plain.sources = runner.sources;
  return runner == plain;
}

Graph graph_under(const Runner& runner, const Graph& graph, std::optional<DType> dtype) {
  Graph result = graph;
  if (!runner.fuses_attention) unfuse_attention(result);
  if (!runner.fuses_tanh_gelu) unfuse_tanh_gelu(result);
  if (!runner.fuses_rms_norm) unfuse_rms_norms(result);
  if (runner.fuses_scores) fuse_scores(result);
  if (runner.autocast) {
    const bool narrow = dtype == DType::F16 || dtype == DType::BF16;
    return autocast(result, narrow ? *dtype : *runner.autocast);
  }
  return runner.fp32_losses ? with_fp32_losses(result) : result;
}

std::optional<DType> weight_dtype(const Runner& runner, std::optional<DType> asked) {
  return runner.autocast ? std::optional(DType::F32) : asked;
}

void set_training(const Runner& runner, TrainingOptions& options) {
  if (runner.gradient_dtype && !options.gradient_dtype)
    options.gradient_dtype = runner.gradient_dtype;
  options.keeps_gradients = runner.keeps_gradients;
  options.ties_have_state = runner.ties_have_state;
  options.overlaps_reduction = runner.overlaps_reduction;
}

Machine machine_under(const Runner& runner, Machine machine) {
  if (is_windlass(runner)) return machine;
  for (size_t d = 0; d < machine.devices.size(); ++d) {
    Device& device = machine.devices[d];
    const Bytes beside = taken_beside_tensors(runner, machine, DeviceId(d));
    const Bytes left(
        std::max<int64_t>(1, machine.device_types[device.type].memory.value - beside.value));
    const double tensors =
        static_cast<double>(std::min(device.limit, left).value) / runner.fragmentation;
    device.limit = Bytes(std::max<int64_t>(1, static_cast<int64_t>(std::floor(tensors))));
  }
  if (machine.devices.size() == 1)
    for (Link& link : machine.links) link.bandwidth = link.bandwidth * runner.copy_share;
  return machine;
}

Bytes footprint(const Runner& runner, const Machine& machine, DeviceId device, Bytes tensors) {
  const double reserved = static_cast<double>(tensors.value) * runner.fragmentation;
  return Bytes(static_cast<int64_t>(std::ceil(reserved))) +
         taken_beside_tensors(runner, machine, device);
}

AnalyticOptions analytic_options(const Runner& runner) {
  AnalyticOptions options;
  options.update_passes = runner.update_passes;
  options.compression_passes = runner.compression_passes;
  options.tf32 = runner.tf32;
  if (runner.host)
    options.runner = RunnerCosts{.host = *runner.host,
                                 .loss_copies = runner.loss_copies,
                                 .loss_backward_copies = runner.loss_backward_copies,
                                 .update_copies = runner.update_copies,
                                 .bucket_copies = runner.bucket_copies,
                                 .library_workspace = runner.library_workspace.value_or(Bytes(0))};
  if (runner.library_workspace) options.product_workspace = Bytes(0);
  return options;
}

}  // namespace windlass

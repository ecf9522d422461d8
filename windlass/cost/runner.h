// Who carries a step out: windlass itself, or a framework that a plan is for. What a step costs
// depends on it: how long the host takes to issue an op, what stays in memory that nobody reads any
// more, in which types things are computed, what a context takes. Plain data; a runner is a JSON
// file (docs/runners.md) or one of runners/, which the program carries with it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"

namespace windlass {

struct Runner {
  std::string name = "windlass";
  std::string description = {};
  // None: the host is a launch overhead of the device away from each op and kernel, which each op
  // pays if it is shorter (docs/cost_model.md).
  std::optional<HostCosts> host = {};

  // --- memory of a device
  std::optional<Bytes> context = {};  // none: what the machine file reserves
  Bytes communicator = {};            // beside it, if a machine has several devices
  double fragmentation = 1;           // memory that the allocator takes over what tensors take
  // Gradients keep their memory from step to step; else it is free until the backward pass.
  bool keeps_gradients = false;
  // A group that computes with a weight of another group (tied embeddings at both ends of a
  // pipeline) has its own optimizer state for it.
  bool ties_have_state = false;
  // Beyond what the loss reads and writes: copies of the predictions while it runs, and while its
  // backward op does.
  double loss_copies = 0, loss_backward_copies = 0;
  // Copies of all gradients of a device while it updates weights.
  double update_copies = 0;
  // Copies of all gradients for the whole run where replicas sum them up with each other: buckets.
  double bucket_copies = 0;
  // Workspace of products that the libraries keep for the run; none: each product takes its own.
  std::optional<Bytes> library_workspace = {};

  // --- numbers
  std::optional<DType> gradient_dtype = {};  // of 16-bit weights; none: that of the weights
  std::optional<DType> autocast = {};        // default type of products; weights are fp32
  bool fp32_losses = false;                  // of 16-bit predictions
  Tf32 tf32 = Tf32::Off;

  // --- time on a device
  double update_passes = 1;        // times that an update goes over its operands
  double compression_passes = 1;   // times that compressing takes what one fused kernel would
  bool overlaps_reduction = true;  // of gradients, with the backward pass
  // Copies of saved tensors between device and host memory run beside kernels; and the share of the
  // link's bandwidth that they reach (pageable memory). The share is counted on machines with one
  // device: on others links also carry what devices send each other.
  bool overlaps_copies = true;
  double copy_share = 1;
  bool fuses_attention = true;  // one kernel that keeps no matrix of scores
  bool fuses_tanh_gelu = true;  // one kernel; else eight, four of which keep something
  bool fuses_rms_norm = true;   // one kernel; else six, and conversions
  bool fuses_scores = false;  // scaling and masking of unfused attention's scores with its softmax

  std::map<std::string, std::string> sources = {};  // by constant, "host.forward_op"

  bool operator==(const Runner&) const = default;
};

// Whether its steps are those that the runtime of this program carries out.
bool is_windlass(const Runner& runner);

struct RunnerPreset {
  std::string_view name;
  std::string_view text;
};
std::vector<RunnerPreset> runner_presets();

// By the name of a preset or the path of a file. Throws Error{Input} with the names there are, or
// naming the key; constants without a source are refused.
Runner find_runner(const std::string& name_or_path);
Runner runner_from_json(std::string_view text, const std::string& where);
nlohmann::ordered_json runner_to_json(const Runner& runner);

std::vector<std::string> tf32_names();  // "off", "convolutions", "all"
std::optional<Tf32> tf32_from_name(std::string_view name);

// --- what it means for each part of a prediction

// The network as the runner computes it. `dtype`: what the user asked for.
Graph graph_under(const Runner& runner, const Graph& graph, std::optional<DType> dtype);
// Type that weights are loaded in: fp32 under autocast, else what the user asked for.
std::optional<DType> weight_dtype(const Runner& runner, std::optional<DType> asked);
// Adds what the runner says to what the user does.
void set_training(const Runner& runner, TrainingOptions& options);
// Limits of devices as tensors have them: without context and communicators, and what
// fragmentation takes. Unchanged for windlass.
Machine machine_under(const Runner& runner, Machine machine);
// What a device's card then shows for tensors of so many bytes: the inverse.
Bytes footprint(const Runner& runner, const Machine& machine, DeviceId device, Bytes tensors);
AnalyticOptions analytic_options(const Runner& runner);

}  // namespace windlass

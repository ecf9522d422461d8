// Prices: how long a piece of work takes on a kind of device, and how much workspace it needs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "windlass/cost/work.h"

namespace windlass {

struct Price {
  Seconds time;
  Bytes workspace;  // beside operands and results, while it runs
};

// Time that a framework's host spends to hand work to a device. It runs ahead of the device: what
// an op takes is up to the device as long as the host is early (sim/host_time.h).
struct HostCosts {
  Seconds forward_op;   // on an op of the forward pass, views around it included, and again on each
                        // op that is recomputed
  Seconds backward_op;  // on an op of the backward pass
  // On a convolution of the forward pass, if it is more than on another op; in the backward pass as
  // many times that as there on another one.
  Seconds convolution_op;
  Seconds cast;         // on a conversion of types, and on the sum of two gradients
  Seconds collective;   // on a transfer between devices
  Seconds micro_batch;  // on each micro-batch beside its ops
  Seconds weight;       // on each weight, when it is updated
  Seconds step;         // on a step beside all that, when nothing runs on the device
  bool waits_each_pass =
      false;  // its lead ends with each pass of a micro-batch; else with the step
  bool operator==(const HostCosts&) const = default;
};

// What a task takes beside the price of its work, by who runs the step (runner.h).
struct RunnerCosts {
  HostCosts host;
  double loss_copies = 0, loss_backward_copies = 0;
  double update_copies = 0;
  // All along the step: copies of the gradients that replicas sum up among them, and what libraries
  // keep for their products.
  double bucket_copies = 0;
  Bytes library_workspace = {};
  bool operator==(const RunnerCosts&) const = default;
};

// The seam between the analytic model and a table measured on the user's own devices.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual Price price(const Work& work, const DeviceType& device) const = 0;
  // No more than the pieces of the work take on devices of this kind together, however it is cut.
  // 0: nothing is known.
  virtual Seconds least_time(const Work& work, const DeviceType& device) const {
    (void)work, (void)device;
    return {};
  }
  // On the host's cores: `memory_bandwidth` and `peak` of the node.
  virtual Price price_on_host(const Work& work, const Node& node) const = 0;
  // Once per step and device: what no kernel accounts for (data loading, the framework's own work).
  virtual Seconds step_overhead(const DeviceType& device) const = 0;
  // None: price() has all there is. Else price() is of the device alone, and tasks get the rest
  // when they are priced together.
  virtual const RunnerCosts* runner_costs() const { return nullptr; }
  // Where the numbers come from, for reports: "analytic", "calibrated on ...".
  virtual std::string provenance() const = 0;
};

enum class CalibrationEnd : uint8_t { Usual, Low, High };

// Which fp32 products run in tf32 where the device has it: none, those of convolutions and
// recurrent layers (what a framework leaves to cuDNN), or all.
enum class Tf32 : uint8_t { Off, Convolutions, All };

// Constants of the analytic model, the same for all devices; docs/cost_model.md has the formulas
// and names the source of each. Shares are of what the device's data sheet promises.
struct AnalyticOptions {
  // Share of the peak that the largest products reach: where 16-bit or tf32 arithmetic is faster
  // than fp32 (matrix units), and elsewhere.
  double matrix_share = 0.78;
  double vector_share = 0.85;
  // Of these, what convolutions and fused attention reach.
  double convolution_share = 0.95;
  double attention_share = 0.70;
  // How much faster 3 x 3 convolutions of stride 1 are by Winograd's algorithm: where there are no
  // matrix units for the precision, on devices of at least so much fp32 peak.
  double winograd_gain = 1.6;
  FlopsPerSecond winograd_peak = FlopsPerSecond(4e12);
  // Share of the fp32 peak that scalar operations reach, and products without tiles: a matrix times
  // a vector, depthwise convolutions.
  double pointwise_share = 0.25;
  // Inner size at which a product spends as long on filling its pipeline and writing its results as
  // on multiplying; and the least inner size that is split to occupy more of the device.
  double inner_half = 48;
  double split_inner = 1024;
  // Share of the memory bandwidth: long runs of bytes, and rows or windows here and there.
  double stream_share = 0.85;
  double scattered_share = 0.65;
  // In units of DeviceType::launch_overhead: what a kernel takes beside its work, to start and to
  // drain, which is the device's; what the host spends on an op beside launching its kernels, and
  // on a step, which is its own and is not counted where `runner` says what it is.
  double kernel_tail = 0.5;
  double op_issue = 1;
  double step_issue = 500;
  std::optional<RunnerCosts> runner = {};
  // Times that an update reads and writes its operands; and times that compression and its way
  // back take what one fused kernel would.
  double update_passes = 1;
  double compression_passes = 1;
  // Of calibrated devices: what kernels usually take, or the lower or upper end of it.
  CalibrationEnd calibration_end = CalibrationEnd::Usual;
  Tf32 tf32 = Tf32::Off;
  // Most that libraries take for split sums of a product, and for a convolution's unfolded input.
  Bytes product_workspace = Bytes(8 << 20);
  Bytes convolution_workspace = Bytes(32 << 20);
  // Convolutions by libraries that copy operands into blocks of channels (Kernel::blocked), as
  // those of CPUs do, instead of the above.
  bool blocked_convolutions = false;
  // Of the host: share of its bandwidth, and time to wake its cores for a kernel.
  double host_stream_share = 0.70;
  Seconds host_start = Seconds(10e-6);
};

// time = max(host, device): the host issues kernels ahead of the device, which runs them one after
// the other, each in max(arithmetic, memory) and a tail. Growing work never gets cheaper.
std::unique_ptr<CostModel> analytic_cost_model(const AnalyticOptions& options = {});

}  // namespace windlass

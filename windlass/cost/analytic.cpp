#include <algorithm>

#include "windlass/cost/calibrated.h"
#include "windlass/cost/cost_model.h"
#include "windlass/cost/efficiency.h"

namespace windlass {
namespace {

bool scattered(OpFamily family) {
  switch (family) {
    case OpFamily::Layout:
    case OpFamily::Lookup:
    case OpFamily::Routing:
    case OpFamily::Pooling: return true;
    default: return false;
  }
}

Bytes moved(const Kernel& kernel) { return kernel.read + kernel.written; }

// Matrix units want channels last, tensors have them second: a kernel before and one after the
// convolution transpose operands and results. Convolutions in many groups run without these units.
bool is_transposed(const Kernel& kernel, const DeviceType& device) {
  return kernel.family == OpFamily::Convolution && !kernel.grouped &&
         has_matrix_units(device, kernel.precision);
}

class Analytic : public CostModel {
 public:
  explicit Analytic(const AnalyticOptions& options) : options_(options) {}

  Price price(const Work& work, const DeviceType& device) const override {
    Price result;
    if (work.kernels.empty()) return result;
    for (const Kernel& kernel : work.kernels)
      result.workspace = std::max(result.workspace, workspace(kernel));
    result.time = time(work, device, efficiency);
    if (!device.calibration.any()) return result;
    result.time = calibrated(work, result.time, device.calibration, options_.calibration_end);
    if (const auto seen = calibrated_workspace(work, device.calibration)) result.workspace = *seen;
    return result;
  }

  Seconds least_time(const Work& work, const DeviceType& device) const override {
    if (work.kernels.empty()) return Seconds();
    return time(work, device, best_efficiency) *
           least_ratio(device.calibration, options_.calibration_end);
  }

  Price price_on_host(const Work& work, const Node& node) const override {
    Price result;
    for (const Kernel& kernel : work.kernels) {
      const Seconds memory = moved(kernel) / (node.memory_bandwidth * options_.host_stream_share);
      const Seconds arithmetic =
          Flops(2 * kernel.multiply_adds) / (node.peak * options_.vector_share) +
          Flops(kernel.pointwise) / (node.peak * options_.pointwise_share);
      result.time += std::max(memory, arithmetic) + options_.host_start * kernel.launches;
      result.workspace = std::max(result.workspace, workspace(kernel));
    }
    return result;
  }

  Seconds step_overhead(const DeviceType& device) const override {
    if (options_.runner) return options_.runner->host.step;
    // Measured devices have no driver and no framework.
    if (device.calibration.any()) return {};
    return device.launch_overhead * options_.step_issue;
  }

  const RunnerCosts* runner_costs() const override {
    return options_.runner ? &*options_.runner : nullptr;
  }

  std::string provenance() const override { return "analytic"; }

 private:
  using Efficiency = double(const Kernel&, const DeviceType&, const AnalyticOptions&);

  Seconds time(const Work& work, const DeviceType& device, Efficiency& share) const {
    Seconds sum;
    double launches = options_.op_issue;
    for (const Kernel& kernel : work.kernels) {
      launches += kernel.launches;
      sum += kernel_time(kernel, device, share);
    }
    if (options_.runner) return sum;
    return std::max(sum, device.launch_overhead * launches);
  }

  bool in_tf32(OpFamily family) const {
    switch (options_.tf32) {
      case Tf32::Off: return false;
      case Tf32::Convolutions:
        return family == OpFamily::Convolution || family == OpFamily::Recurrent;
      case Tf32::All: return true;
    }
    return false;
  }

  // All launches of a kernel on the device, as if the host were never late.
  Seconds kernel_time(Kernel kernel, const DeviceType& device, Efficiency& share) const {
    if (kernel.precision == Precision::Fp32 && in_tf32(kernel.family) &&
        device.peak.contains(Precision::Tf32))
      kernel.precision = Precision::Tf32;
    Seconds busy = memory_time(kernel, device);
    if (kernel.multiply_adds > 0)
      busy = std::max(busy, Flops(2 * kernel.multiply_adds) / (peak_of(device, kernel.precision) *
                                                               share(kernel, device, options_)));
    const FlopsPerSecond scalar = peak_of(device, Precision::Fp32) * options_.pointwise_share;
    busy = std::max(busy, Flops(kernel.pointwise) / scalar);
    if (is_transposed(kernel, device)) busy += memory_time(kernel, device) * 2;
    if (kernel.compression) busy = busy * options_.compression_passes;
    return busy + device.launch_overhead * options_.kernel_tail * kernel.launches;
  }

  Seconds memory_time(const Kernel& kernel, const DeviceType& device) const {
    double share = scattered(kernel.family) ? options_.scattered_share : options_.stream_share;
    if (device.stream_share > 0) share *= device.stream_share / options_.stream_share;
    const Seconds once = moved(kernel) / (device.memory_bandwidth * share);
    return kernel.family == OpFamily::Update ? once * options_.update_passes : once;
  }

  // A product split along its inner size keeps at least one more copy of its result in fp32; a
  // convolution unfolds its input, or part of it.
  Bytes workspace(const Kernel& kernel) const {
    Bytes result = kernel.scratch;
    if (kernel.multiply_adds <= 0 || kernel.family == OpFamily::Attention) return result;
    const bool unfolds = kernel.family == OpFamily::Convolution;
    if (unfolds && options_.blocked_convolutions) return result + kernel.blocked;
    const Bytes most = unfolds ? options_.convolution_workspace : options_.product_workspace;
    const double wanted = 4.0 * static_cast<double>(kernel.batch) * static_cast<double>(kernel.m) *
                          static_cast<double>(unfolds ? kernel.k : kernel.n);
    const double taken = std::min(wanted, static_cast<double>(most.value));
    return result + Bytes(static_cast<int64_t>(taken));
  }

  AnalyticOptions options_;
};

}  // namespace

std::unique_ptr<CostModel> analytic_cost_model(const AnalyticOptions& options) {
  return std::make_unique<Analytic>(options);
}

}  // namespace windlass

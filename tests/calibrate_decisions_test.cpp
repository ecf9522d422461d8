// Plans made on two calibrations of one host, whose kernels never take the same time twice.

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/cli/pricing.h"
#include "windlass/cost/calibrated.h"
#include "windlass/machine/local.h"
#include "windlass/plan/case_networks.h"
#include "windlass/run/calibrate.h"
#include "windlass/run/made_up_runtime.h"
#include "windlass/search/search.h"

namespace windlass {
namespace {

constexpr double kNoise = 0.1;  // of a kernel, either way

// A host whose kernels take 1.5 times what the model says, more or less.
class NoisyRuntime final : public MadeUpRuntime {
 public:
  NoisyRuntime(const DeviceType& device, uint64_t seed) : device_(device), rng_(seed) {}
  KernelPrice measure_op(const KernelRun& run, int, int) override {
    const LoopNest nest = loops_of(*run.graph, *run.op);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    return {noisy(work_of(*run.graph, *run.op, nest, sizes)), 0};
  }
  Nanoseconds measure_update(const UpdateVariant& v, int64_t elements, int, int) override {
    return noisy(
        update_work(v.optimizer, static_cast<double>(elements), v.weight, v.gradient, v.master));
  }
  Nanoseconds measure_compression(const CompressionVariant& v, int64_t elements, int,
                                  int) override {
    const Bytes plain(4 * elements), packed(compressed_bytes(elements, v.bits));
    return noisy(v.back ? decompression_work(elements, packed, plain)
                        : compression_work(elements, plain, packed));
  }

 private:
  Nanoseconds noisy(const Work& work) {
    const Seconds time = analytic_cost_model()->price(work, device_).time;
    const double factor = 1.5 * (1 + kNoise * rng_.uniform(-1, 1));
    return std::max<Nanoseconds>(1, std::llround(factor * time.value * 1e9));
  }
  const DeviceType& device_;
  Rng rng_;
};

HostFigures figures() {
  HostFigures host;
  host.cores = 2;
  host.memory = kGiB * 4;
  host.peak_one = FlopsPerSecond(50e9), host.peak_all = FlopsPerSecond(100e9);
  host.triad_one = BytesPerSecond(8e9), host.triad_all = BytesPerSecond(12e9);
  host.copy_one = BytesPerSecond(5e9), host.copy_all = BytesPerSecond(8e9);
  return host;
}

// A local machine as `windlass calibrate` would write it.
Machine calibrated_host(const TrainingGraph& network, uint64_t seed) {
  Machine machine = local_machine({.host = figures()});
  const DeviceType plain = machine.device_types[0];
  NoisyRuntime runtime(plain, seed);
  machine.device_types[0] = calibrated_type(
      plain, calibrate(runtime, {.networks = {&network}, .device = plain, .repeats = 5}));
  machine.name = kCalibrated;
  return machine;
}

TEST(CalibratedPlans, TwoCalibrationsDecideAlike) {
  const Graph network = cases::mlp(64, 6);
  const TrainingGraph training = differentiate(network, {});
  const Machine first = calibrated_host(training, 1), second = calibrated_host(training, 2);
  EXPECT_TRUE(runs_here(first));
  EXPECT_FALSE(measured_here(first));
  const auto cost = analytic_cost_model();
  const auto plan = [&](Machine machine, Bytes limit) {
    for (Device& device : machine.devices) device.limit = limit;
    return search_one_device(
        {.network = network, .machine = machine, .training = {}, .cost = *cost, .reprice = {}},
        {.time_limit = Seconds(20), .micro_batches = 1});
  };
  const SearchResult plain = plan(first, kGiB);
  const SimulatedStep step = simulate_step(plain.training, plain.strategy, first, *cost);
  Bytes whole;
  for (const MemoryPeak& peak : step.whole().peaks) whole = std::max(whole, Bytes(peak.bytes));
  for (const double share : {1.0, 0.9, 0.8}) {
    const Bytes limit(static_cast<int64_t>(share * static_cast<double>(whole.value)));
    const SearchResult a = plan(first, limit), b = plan(second, limit);
    ASSERT_EQ(a.termination == Termination::Infeasible, b.termination == Termination::Infeasible);
    if (a.termination == Termination::Infeasible) continue;
    EXPECT_EQ(a.strategy.saved, b.strategy.saved) << share;
    EXPECT_EQ(a.strategy.weights, b.strategy.weights) << share;
    EXPECT_EQ(a.strategy.micro_batches, b.strategy.micro_batches) << share;
    EXPECT_NEAR(a.step_time / b.step_time, 1, kNoise) << share;
    // What one calibration predicts lies in the other's range.
    const auto at = [&](CalibrationEnd end) {
      AnalyticOptions options;
      options.calibration_end = end;
      return simulate_step(b.training, b.strategy, with_copies_at(second, end),
                           *analytic_cost_model(options))
          .step_time();
    };
    EXPECT_GE(a.step_time, at(CalibrationEnd::Low)) << share;
    EXPECT_LE(a.step_time, at(CalibrationEnd::High)) << share;
  }
}

}  // namespace
}  // namespace windlass

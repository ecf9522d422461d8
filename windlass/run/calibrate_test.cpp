#include "windlass/run/calibrate.h"

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/cost/calibrated.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"
#include "windlass/plan/case_networks.h"
#include "windlass/run/made_up_runtime.h"

namespace windlass {
namespace {

// Every kernel takes twice what the analytic model says, but compression ten times.
class SlowRuntime final : public MadeUpRuntime {
 public:
  explicit SlowRuntime(const DeviceType& device) : device_(device) {}
  KernelPrice measure_op(const KernelRun& run, int, int) override {
    const LoopNest nest = loops_of(*run.graph, *run.op);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    return {times(2, work_of(*run.graph, *run.op, nest, sizes)), 0};
  }
  Nanoseconds measure_update(const UpdateVariant& v, int64_t elements, int, int) override {
    return times(
        2, update_work(v.optimizer, static_cast<double>(elements), v.weight, v.gradient, v.master));
  }
  Nanoseconds measure_compression(const CompressionVariant& v, int64_t elements, int,
                                  int) override {
    const Bytes plain(4 * elements), packed(compressed_bytes(elements, v.bits));
    return times(10, v.back ? decompression_work(elements, packed, plain)
                            : compression_work(elements, plain, packed));
  }

 private:
  Nanoseconds times(double factor, const Work& work) const {
    AnalyticOptions options;
    options.step_issue = 0;
    const Seconds time = analytic_cost_model(options)->price(work, device_).time;
    return static_cast<Nanoseconds>(std::llround(factor * time.value * 1e9));
  }
  const DeviceType& device_;
};

TEST(Calibrate, FindsWhatIsThere) {
  Machine machine = load_machine("1x3090");
  SlowRuntime runtime(machine.device_types[0]);
  const TrainingGraph network = differentiate(cases::mlp(64, 3), {});
  const CalibrationResult result =
      calibrate(runtime, {.networks = {&network}, .device = machine.device_types[0], .repeats = 2});
  EXPECT_EQ(result.rounds, 2);
  for (const auto& [family, points] : result.calibration.families)
    for (const KernelRatio& point : points) {
      EXPECT_NEAR(point.ratio, family == "compression" ? 10 : 2, 0.01) << family;
      EXPECT_NEAR(point.low, point.high, 0.02 * point.ratio) << family;
    }
  EXPECT_EQ(result.calibration.beside_copies, 1);
  // Prices then are what the runtime takes; and the file says the same.
  DeviceType device = machine.device_types[0];
  device.calibration = result.calibration;
  const Work work = compression_work(100'000, Bytes(400'000), Bytes(60'000));
  const auto cost = analytic_cost_model();
  EXPECT_NEAR(cost->price(work, device).time / cost->price(work, machine.device_types[0]).time, 10,
              0.1);
  machine.device_types[0] = device;
  const Machine again = machine_from_json(machine_to_json(machine), "again.json");
  EXPECT_EQ(machine_to_json(again), machine_to_json(machine));
  EXPECT_EQ(cost->price(work, again.device_types[0]).time, cost->price(work, device).time);
}

KernelTiming timing(double analytic, std::vector<double> ratios) {
  KernelTiming made = {"contraction", Seconds(analytic), {}};
  for (double ratio : ratios) made.measured.emplace_back(ratio * analytic);
  return made;
}

TEST(Calibrate, MediansAndRanges) {
  // Two sizes far apart: medians 2 and 3, one wild value in each that the range leaves out in part.
  const Calibration found = summarise({timing(1e-6, {1.8, 2, 2.2}), timing(1.5e-6, {2, 2, 90}),
                                       timing(1e-3, {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3.1})});
  const std::vector<KernelRatio>& points = found.families.at("contraction");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_DOUBLE_EQ(points[0].ratio, 2);
  EXPECT_LE(points[0].low, 2);
  EXPECT_LT(points[0].high, 90);
  EXPECT_DOUBLE_EQ(points[1].ratio, 3);
  EXPECT_DOUBLE_EQ(points[1].high, 3);
}

// Whatever was measured: larger work is never cheaper, no price is below its bound, and the file
// can be read.
TEST(Calibrate, RandomTimings) {
  Rng rng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<KernelTiming> kernels;
    for (int64_t i = rng.integer(1, 30); i > 0; --i) {
      const double analytic = std::exp(-16 + 12 * rng.uniform());
      kernels.push_back(timing(analytic, {std::exp(4 * rng.uniform() - 2), 1 + rng.uniform()}));
    }
    Machine machine = load_machine("1x3090");
    machine.device_types[0].calibration = summarise(kernels);
    const Calibration& found = machine.device_types[0].calibration;
    EXPECT_NO_THROW(machine_from_json(machine_to_json(machine), "m.json"));
    Kernel kernel;
    kernel.family = OpFamily::Contraction;
    const Work work = {{kernel}};
    Seconds before;
    for (double log = -20; log < 0; log += 0.1) {
      const Seconds analytic(std::exp(log));
      const Seconds price = calibrated(work, analytic, found, CalibrationEnd::Usual);
      EXPECT_GE(price.value, before.value * (1 - 1e-12));
      EXPECT_GE(price.value,
                analytic.value * least_ratio(found, CalibrationEnd::Usual) * (1 - 1e-12));
      EXPECT_LE(calibrated(work, analytic, found, CalibrationEnd::Low).value,
                price.value * (1 + 1e-12));
      EXPECT_GE(calibrated(work, analytic, found, CalibrationEnd::High).value,
                price.value * (1 - 1e-12));
      before = price;
    }
  }
}

}  // namespace
}  // namespace windlass

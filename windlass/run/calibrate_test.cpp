#include "windlass/run/calibrate.h"

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/cost/calibrated.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"
#include "windlass/plan/case_networks.h"
#include "windlass/run/made_up_runtime.h"

namespace windlass {
namespace {

// Every kernel takes twice what the analytic model says, but compression ten times, and holds half
// as much as its operands beside them. The smallest op is as the model has it.
class SlowRuntime final : public MadeUpRuntime {
 public:
  explicit SlowRuntime(const DeviceType& device) : device_(device) {}
  KernelPrice measure_op(const KernelRun& run, int, int) override {
    const LoopNest nest = loops_of(*run.graph, *run.op);
    LocalSizes sizes;
    for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
    const Work work = work_of(*run.graph, *run.op, nest, sizes);
    int64_t operands = 0;
    for (const Kernel& kernel : work.kernels)
      operands = std::max(operands, (kernel.read + kernel.written).value);
    return {times(operands <= 12 ? 1 : 2, work), operands / 2};
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
  EXPECT_NEAR(result.op_time / machine.device_types[0].launch_overhead, 2, 0.01);
  EXPECT_NEAR(result.calibration.workspace.at("contraction"), 0.5, 0.01);
  EXPECT_TRUE(result.calibration.copies.empty());
  // Prices then are what the runtime takes; and the file says the same.
  DeviceType device = machine.device_types[0];
  device = calibrated_type(device, result);
  const Work work = compression_work(100'000, Bytes(400'000), Bytes(60'000));
  const auto cost = analytic_cost_model();
  EXPECT_NEAR(cost->price(work, device).time / cost->price(work, machine.device_types[0]).time, 10,
              0.1);
  machine.device_types[0] = device;
  const Machine again = machine_from_json(machine_to_json(machine), "again.json");
  EXPECT_EQ(machine_to_json(again), machine_to_json(machine));
  EXPECT_EQ(cost->price(work, again.device_types[0]).time, cost->price(work, device).time);
}

// 5 us and 10 GB/s, with every fifth copy half as slow again.
TEST(Calibrate, CopiesGiveTheLink) {
  Machine machine = load_machine("1x3090");
  SlowRuntime runtime(machine.device_types[0]);
  const TrainingGraph network = differentiate(cases::mlp(8, 2), {});
  int count = 0;
  const auto copy = [&](Bytes bytes) {
    const double time = 5e-6 + static_cast<double>(bytes.value) / 10e9;
    return Seconds(++count % 5 == 0 ? 1.5 * time : time);
  };
  const CalibrationResult result = calibrate(
      runtime,
      {.networks = {&network}, .device = machine.device_types[0], .repeats = 3, .copy = copy});
  const std::vector<CopyTime>& copies = result.calibration.copies;
  ASSERT_GE(copies.size(), 4U);
  const CopyLine line = line_of(copies);
  EXPECT_NEAR(line.latency.value, 5e-6, 1e-8);
  EXPECT_NEAR(line.bandwidth.value, 10e9, 1e7);
  for (const CopyTime& point : copies) EXPECT_NEAR(point.high / point.time, 1.5, 1e-6);
  // The file holds them; and at the upper end the device's link is slower, the others are not.
  machine.device_types[0] = calibrated_type(machine.device_types[0], result);
  const Machine again = machine_from_json(machine_to_json(machine), "again.json");
  EXPECT_EQ(machine_to_json(again), machine_to_json(machine));
  const Machine slow = with_copies_at(again, CalibrationEnd::High);
  EXPECT_NEAR(slow.links[0].bandwidth / again.links[0].bandwidth, 1 / 1.5, 1e-6);
  EXPECT_EQ(slow.links[1].bandwidth, again.links[1].bandwidth);
}

TEST(Calibrate, CopiesInMemoryTakeTime) {
  CopyTimer timer;
  for (const int64_t bytes : {1, 1 << 16, 1 << 26, 1 << 26, 1 << 12})
    EXPECT_GT(timer.time(Bytes(bytes)).value, 0);
  const CopyLine one = line_of({{Bytes(100), Seconds(1), Seconds(1), Seconds(1)}});
  EXPECT_EQ(one.latency, Seconds(0));
  EXPECT_NEAR(one.bandwidth.value, 100, 1e-9);
}

TEST(Calibrate, BrokenCopiesAreNamed) {
  Machine machine = load_machine("1x3090");
  DeviceType& device = machine.device_types[0];
  device.calibration.families["contraction"] = {{Seconds(1e-6), 1, 1, 1}};
  const auto refused = [&](std::vector<CopyTime> copies) {
    device.calibration.copies = std::move(copies);
    EXPECT_THROW(machine_from_json(machine_to_json(machine), "m.json"), Error);
  };
  refused({{Bytes(8), Seconds(2), Seconds(3), Seconds(4)}});
  refused({{Bytes(8), Seconds(0), Seconds(0), Seconds(0)}});
  refused({{Bytes(8), Seconds(1), Seconds(1), Seconds(1)},
           {Bytes(8), Seconds(1), Seconds(1), Seconds(1)}});
  refused({{Bytes(0), Seconds(1), Seconds(1), Seconds(1)}});
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

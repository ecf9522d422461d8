#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/cost/cost_model.h"
#include "windlass/cost/efficiency.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

DeviceType a100() { return load_machine("8xa100-80g").device_types[0]; }

// A core complex of 8 cores: 0.5 TFLOPS, 40 GB/s.
DeviceType cpu() {
  DeviceType type;
  type.name = "cpu";
  type.peak[Precision::Fp32] = FlopsPerSecond(0.5e12);
  type.memory_bandwidth = BytesPerSecond(40e9);
  type.launch_overhead = Seconds(1e-6);
  return type;
}

Kernel product(int64_t m, int64_t n, int64_t k, Precision precision = Precision::Fp16,
               int64_t batch = 1) {
  Kernel kernel;
  kernel.family = OpFamily::Contraction;
  kernel.precision = precision;
  kernel.batch = batch;
  kernel.m = m, kernel.n = n, kernel.k = k;
  kernel.multiply_adds = static_cast<double>(batch) * static_cast<double>(m) *
                         static_cast<double>(n) * static_cast<double>(k);
  const int64_t element = precision == Precision::Fp32 ? 4 : 2;
  kernel.read = Bytes(element * batch * (m * k + k * n));
  kernel.written = Bytes(element * batch * m * n);
  return kernel;
}

double teraflops(const Kernel& kernel, const DeviceType& device) {
  const Seconds time = analytic_cost_model()->price({{kernel}}, device).time;
  return 2 * kernel.multiply_adds / time.value / 1e12;
}

TEST(Analytic, LargeProductsReachMostOfThePeak) {
  // The best shape reaches 268 of 312 TFLOPS on an A100 (docs/cost_model.md), others less.
  EXPECT_NEAR(teraflops(product(8192, 8192, 8192), a100()), 240, 12);
  EXPECT_NEAR(teraflops(product(8192, 8192, 8192, Precision::Fp32), a100()), 16, 1);
  // A product of 2048 x 4608 with 576 tiles loses part of its last wave.
  EXPECT_NEAR(teraflops(product(2048, 4608, 12288), a100()), 222, 12);
}

TEST(Analytic, SmallProductsAreLaunches) {
  const DeviceType device = a100();
  const Price price = analytic_cost_model()->price({{product(64, 64, 64)}}, device);
  // An op and its kernel: two times the launch overhead.
  EXPECT_DOUBLE_EQ(price.time.value, 2 * 4e-6);
  // 512^3 is 268 MFLOP: 1.1 us at full rate, but it occupies few units.
  EXPECT_LT(teraflops(product(512, 512, 512), device), 60);
}

// Pieces of a product, however it is cut, take no less than the bound on all of them.
TEST(Analytic, NoCutIsBetterThanTheLeastTime) {
  Rng rng(5);
  const auto cost = analytic_cost_model();
  double closest = INFINITY;
  for (int round = 0; round < 3000; ++round) {
    const auto size = [&] { return int64_t{1} << rng.integer(0, 13); };
    const Precision precision = rng.chance(0.5) ? Precision::Fp16 : Precision::Fp32;
    const int64_t m = size(), n = size(), k = size(), batch = int64_t{1} << rng.integer(0, 6);
    const DeviceType device = rng.chance(0.5) ? a100() : cpu();
    Kernel whole = product(m, n, k, precision, batch);
    if (rng.chance(0.3)) whole.family = OpFamily::Attention;
    if (rng.chance(0.3)) {
      whole.family = OpFamily::Convolution, whole.winograd = rng.chance(0.5);
      whole.grouped = whole.batch > 1;
    }
    const auto parts = [&](int64_t all) { return std::min(all, int64_t{1} << rng.integer(0, 4)); };
    const int64_t pm = parts(m), pn = parts(n), pk = parts(k), pb = parts(batch);
    Kernel piece = product(m / pm, n / pn, k / pk, precision, batch / pb);
    piece.family = whole.family;
    piece.winograd = whole.winograd, piece.grouped = whole.grouped;
    const double pieces =
        static_cast<double>(pm * pn * pk * pb) * cost->price({{piece}}, device).time.value;
    const double least = cost->least_time({{whole}}, device).value;
    ASSERT_LE(least, pieces * (1 + 1e-12)) << m << " " << n << " " << k << " " << batch;
    closest = std::min(closest, pieces / least);
  }
  EXPECT_LT(closest, 1.05);
}

TEST(Analytic, NarrowProductsAreBoundByMemory) {
  // A matrix of 16384 x 16384 times a vector reads 512 MiB.
  const DeviceType device = a100();
  const Kernel kernel = product(1, 16384, 16384);
  const double least = 2.0 * 16384 * 16384 / (2039e9 * 0.85);
  const double time = analytic_cost_model()->price({{kernel}}, device).time.value;
  EXPECT_GE(time, least);
  EXPECT_LE(time, 1.3 * least);
}

TEST(Analytic, DepthwiseConvolutionsAreNotTiled) {
  // 256 groups of 1 x 9 on 64 x 56 x 56 points: 0.46 GMAC, 0.2 GB each way in fp16.
  Kernel kernel = product(int64_t{64} * 56 * 56, 1, 9, Precision::Fp16, 256);
  kernel.family = OpFamily::Convolution, kernel.grouped = true;
  kernel.read = kernel.written = Bytes(int64_t{2} * 256 * 64 * 56 * 56);
  const double time = analytic_cost_model()->price({{kernel}}, a100()).time.value;
  EXPECT_LT(time, 3 * 2 * 2.0 * 256 * 64 * 56 * 56 / 2039e9);
}

TEST(Analytic, WinogradWhereThereAreNoMatrixUnits) {
  // 512 channels on 32 x 28 x 28 points.
  const auto gain = [](Precision precision, const DeviceType& device) {
    Kernel kernel = product(int64_t{32} * 28 * 28, 512, int64_t{512} * 9, precision);
    kernel.family = OpFamily::Convolution;
    const double plain = teraflops(kernel, device);
    kernel.winograd = true;
    return teraflops(kernel, device) / plain;
  };
  EXPECT_NEAR(gain(Precision::Fp32, a100()), 1.6, 0.01);
  EXPECT_DOUBLE_EQ(gain(Precision::Fp16, a100()), 1);
  EXPECT_DOUBLE_EQ(gain(Precision::Fp32, cpu()), 1);
}

TEST(Analytic, MemoryBoundKernels) {
  // 1 GiB read and written at 85 % of 2039 GB/s, and a tail of 2 us.
  const Work copy = memory_work(kGiB, kGiB);
  EXPECT_DOUBLE_EQ(analytic_cost_model()->price(copy, a100()).time.value,
                   2.0 * static_cast<double>(kGiB.value) / (2039e9 * 0.85) + 2e-6);
  EXPECT_EQ(analytic_cost_model()->price(copy, a100()).workspace.value, 0);
}

// A runner whose compression is no fused kernel pays for each pass; nothing else changes.
TEST(Analytic, CompressionPasses) {
  const DeviceType device = load_machine("1x3090").device_types[0];
  const auto fused = analytic_cost_model();
  const auto passes = analytic_cost_model({.compression_passes = 8});
  const Work work = compression_work(int64_t{1} << 28, kGiB, Bytes(kGiB.value / 8));
  const Work copy = memory_work(kGiB, Bytes(kGiB.value / 8));
  EXPECT_NEAR(passes->price(work, device).time.value / fused->price(work, device).time.value, 8,
              0.01);
  EXPECT_EQ(passes->price(copy, device).time.value, fused->price(copy, device).time.value);
  EXPECT_GE(fused->price(work, device).time.value, fused->price(copy, device).time.value);
}

TEST(Analytic, FusedAttention) {
  // 32 heads, 4096 x 4096, depth 128: its authors report 50 to 73 % of the peak forward, less
  // backward.
  Kernel kernel = product(4096, 4096, 128, Precision::Fp16, 32);
  kernel.family = OpFamily::Attention;
  kernel.multiply_adds *= 2;
  kernel.read = Bytes(int64_t{3} * 2 * 32 * 4096 * 128);
  kernel.written = Bytes(int64_t{2} * 32 * 4096 * 128);
  EXPECT_GT(teraflops(kernel, a100()), 110);
  EXPECT_LT(teraflops(kernel, a100()), 190);
}

TEST(Analytic, CpuDevices) {
  const DeviceType device = cpu();
  const double large = teraflops(product(2048, 2048, 2048, Precision::Fp32), device);
  EXPECT_GT(large, 0.33);
  EXPECT_LT(large, 0.5);
  // A few microseconds, not the milliseconds of a large one.
  const Price small =
      analytic_cost_model()->price({{product(64, 64, 64, Precision::Fp32)}}, device);
  EXPECT_LT(small.time.value, 20e-6);
  // fp64 at half the rate where nothing else is said.
  EXPECT_DOUBLE_EQ(peak_of(device, Precision::Fp64).value, 0.25e12);
}

TEST(Analytic, HostUpdates) {
  // 1e9 weights, Adam with master: 28 GB at 70 % of 380 GB/s.
  Node node;
  node.memory_bandwidth = BytesPerSecond(380e9);
  node.peak = FlopsPerSecond(6e12);
  const Work work = update_work(OptimizerKind::Adam, 1e9, DType::F16, DType::F16, true);
  EXPECT_NEAR(analytic_cost_model()->price_on_host(work, node).time.value, 28e9 / (380e9 * 0.7),
              1e-3);
}

TEST(Analytic, Workspace) {
  const auto model = analytic_cost_model();
  // One fp32 copy of a small result; never more than 8 MiB.
  EXPECT_EQ(model->price({{product(64, 64, 64)}}, a100()).workspace.value, 4 * 64 * 64);
  EXPECT_EQ(model->price({{product(8192, 8192, 64)}}, a100()).workspace, Bytes(8 << 20));
  // Kernels follow each other: the largest counts.
  EXPECT_EQ(model->price({{product(64, 64, 64), product(128, 64, 64)}}, a100()).workspace.value,
            4 * 128 * 64);
}

TEST(Analytic, Tf32IsAChoice) {
  const auto time = [](Tf32 tf32, OpFamily family, const DeviceType& device) {
    AnalyticOptions options;
    options.tf32 = tf32;
    Kernel kernel = product(4096, 4096, 4096, Precision::Fp32);
    kernel.family = family;
    return analytic_cost_model(options)->price({{kernel}}, device).time.value;
  };
  constexpr OpFamily kProduct = OpFamily::Contraction, kConvolution = OpFamily::Convolution;
  EXPECT_GT(time(Tf32::Off, kProduct, a100()) / time(Tf32::All, kProduct, a100()), 5);
  EXPECT_EQ(time(Tf32::Off, kProduct, a100()), time(Tf32::Convolutions, kProduct, a100()));
  for (const OpFamily family : {kConvolution, OpFamily::Recurrent}) {
    EXPECT_GT(time(Tf32::Off, family, a100()) / time(Tf32::Convolutions, family, a100()), 5);
    EXPECT_EQ(time(Tf32::Convolutions, family, a100()), time(Tf32::All, family, a100()));
  }
  // Devices before it was there.
  const DeviceType v100 = load_machine("1xv100-16g").device_types[0];
  EXPECT_EQ(time(Tf32::Off, kConvolution, v100), time(Tf32::All, kConvolution, v100));
}

TEST(Analytic, NothingCostsNothing) {
  EXPECT_EQ(analytic_cost_model()->price({}, a100()).time.value, 0);
  EXPECT_EQ(analytic_cost_model()->provenance(), "analytic");
  EXPECT_DOUBLE_EQ(analytic_cost_model()->step_overhead(a100()).value, 2e-3);
}

TEST(Efficiency, WavesAreContinuousAndGrow) {
  EXPECT_DOUBLE_EQ(waves(0.2), 1);
  EXPECT_DOUBLE_EQ(waves(1), 1);
  EXPECT_DOUBLE_EQ(waves(2), 2.25);
  EXPECT_NEAR(waves(100), 100.5, 0.01);
}

TEST(Efficiency, UnitsOfKnownDevices) {
  // Streaming multiprocessors: A100 108, V100 80, H100 132, RTX 3090 82.
  EXPECT_NEAR(parallel_units(a100()), 108, 20);
  EXPECT_NEAR(parallel_units(load_machine("4xv100-16g").device_types[0]), 80, 20);
  EXPECT_NEAR(parallel_units(load_machine("8xh100-80g").device_types[0]), 132, 30);
  EXPECT_NEAR(parallel_units(load_machine("4x3090").device_types[0]), 82, 20);
}

TEST(Efficiency, RandomWorkIsPricedMonotonically) {
  Rng rng(3);
  const auto model = analytic_cost_model();
  const auto size = [&] { return int64_t{1} << rng.integer(0, 13); };
  for (const DeviceType& device : {a100(), cpu(), load_machine("4x2080ti").device_types[0]}) {
    for (int i = 0; i < 2000; ++i) {
      const Precision precision = rng.integer(0, 1) == 0 ? Precision::Fp32 : Precision::Fp16;
      int64_t sizes[4] = {size() + rng.integer(0, 40), size() + rng.integer(0, 40),
                          size() + rng.integer(0, 40), rng.integer(1, 20)};
      const auto make = [&] {
        Kernel kernel = product(sizes[0], sizes[1], sizes[2], precision, sizes[3]);
        kernel.family = i % 3 == 0 ? OpFamily::Attention : OpFamily::Contraction;
        return kernel;
      };
      const Kernel before = make();
      const double share = efficiency(before, device, {});
      ASSERT_GT(share, 0);
      ASSERT_LE(share, 1);
      int64_t& grown = sizes[rng.integer(0, 3)];
      grown += rng.integer(1, 1 + grown);
      ASSERT_LE(model->price({{before}}, device).time.value,
                model->price({{make()}}, device).time.value * (1 + 1e-12))
          << before.m << " " << before.n << " " << before.k << " " << before.batch;
    }
  }
}

}  // namespace
}  // namespace windlass

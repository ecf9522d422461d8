#include "windlass/run/profile.h"

#include <gtest/gtest.h>

#include "windlass/plan/cases.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

// Between two sizes that are known, and beyond the largest, prices follow a line.
TEST(Profile, UpdatesLieBetweenSizes) {
  KernelProfile profile;
  profile.know({{"Update adam fp32 fp32 1", 100, 0},
                {"Update adam fp32 fp32 1024", 1123, 0},
                {"Update adam fp32 fp32 16384", 16483, 0},
                {"Update adam fp32 fp32 262144", 500000, 0},
                {"Update adam fp32 fp32 4194304", 8364320, 0}});
  const size_t known = profile.kernels();
  const UpdateVariant adam;
  EXPECT_EQ(profile.update_price(adam, 1), 100);
  EXPECT_EQ(profile.update_price(adam, 513), 612);  // 100 + 512 * 1023 / 1023
  EXPECT_EQ(profile.update_price(adam, 1024), 1123);
  EXPECT_EQ(profile.update_price(adam, 2048), 2147);         // 1123 + 1024 * 15360 / 15360
  EXPECT_EQ(profile.update_price(adam, 8388608), 16752928);  // 2 ns more for each element
  EXPECT_EQ(profile.kernels(), known);
}

TEST(Profile, CompressionLiesBetweenSizes) {
  KernelProfile profile;
  profile.know({{"Compress fp32 4 bits 64", 100, 0},
                {"Compress fp32 4 bits 4096", 4132, 0},
                {"Compress fp32 4 bits 65536", 126'012, 0},
                {"Compress fp32 4 bits 1048576", 2'092'092, 0}});
  const CompressionVariant four;
  EXPECT_EQ(profile.compression_price(four, 64), 100);
  EXPECT_EQ(profile.compression_price(four, 2080), 2116);        // 100 + 2016 * 4032 / 4032
  EXPECT_EQ(profile.compression_price(four, 2097152), 4189244);  // 2 ns more for each element
  EXPECT_EQ(profile.kernels(), 4u);
}

// A plan brings along all that its prices are made of: with it nothing is measured.
TEST(Profile, WhatAPlanUsesIsEnoughForIt) {
  for (const char* strategy :
       {"single", "single:host-update=on", "single:host-weights=on", "single:compress=4"}) {
    SCOPED_TRACE(strategy);
    testing_runs::TestRun run(cases::mlp(8, 3), strategy);
    run.begin();
    const SimulatedStep& step = run.predicted();
    const auto used = testing_runs::profile().used_by(run.training(), step.tasks);
    size_t updates = 0, compressions = 0;
    for (const MeasuredKernel& kernel : used) {
      EXPECT_GT(kernel.time_ns, 0) << kernel.kernel;
      updates += kernel.kernel.starts_with("Update ") ? 1 : 0;
      compressions += kernel.kernel.starts_with("Compress ") ? 1 : 0;
    }
    EXPECT_GE(updates, 2u);
    EXPECT_EQ(compressions > 0, std::string_view(strategy) == "single:compress=4");
    KernelProfile fresh;
    fresh.know(used);
    TaskTimes times = step.times;
    std::ranges::fill(times.duration, 1);
    fresh.reprice(run.training(), step.tasks, times);
    EXPECT_EQ(fresh.kernels(), used.size());
    // One that was made when updates were not measured keeps what they had.
    std::vector<MeasuredKernel> older = used;
    std::erase_if(older, [](const MeasuredKernel& k) { return k.kernel.starts_with("Update "); });
    KernelProfile before;
    before.know(older);
    TaskTimes kept = step.times;
    std::ranges::fill(kept.duration, 1);
    before.reprice(run.training(), step.tasks, kept);
    EXPECT_EQ(before.kernels(), older.size());
    for (size_t i = 0; i < step.tasks.size(); ++i) {
      if (moves(step.tasks.tasks[i].kind)) continue;
      const TaskKind kind = step.tasks.tasks[i].kind;
      const bool update = kind == TaskKind::Update || kind == TaskKind::HostUpdate;
      EXPECT_EQ(kept.duration[i], update ? 1 : step.times.duration[i]) << i;
      EXPECT_EQ(times.duration[i], step.times.duration[i]) << i;
    }
  }
}

}  // namespace
}  // namespace windlass

// `windlass train` on several hosts that a network joins (host_network.h).

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/host_network.h"
#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

using namespace rank_runs;
using testing::HasSubstr;

// Kernels of as many threads wherever they run: a host that a process has for itself would have all
// cores, and sums of another order.
Words steady(const std::string& strategy, const Words& more) {
  return tiny(strategy, joined({"--threads", "1"}, more));
}

// The same strategy as one process carries it out on as many devices, and a process on each host.
void expect_same_on_hosts(int hosts, const Words& run) {
  const HostNetwork network(hosts);
  SKIP_WITHOUT(network);
  const ScratchFolder folder;
  Words alone = run;
  std::ranges::replace(alone, std::string("--hosts"), std::string("--devices"));
  run_well(joined(alone, {"--save", folder / "one"}));
  RankPrograms ranks(hosts, HostNetwork::address(0));
  network.start_all(ranks, joined(run, {"--save", folder / "many"}));
  for (int rank = 0; rank < hosts; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_TRUE(bytes_of(folder / "one") == bytes_of(folder / "many"));
}

Words transformer(int hosts, const std::string& strategy) {
  return {"train",     kTiny,   "--seq",      "16",      "--batch",
          "8",         "--on",  "local",      "--hosts", std::to_string(hosts),
          "--memory",  "64MiB", "--strategy", strategy,  "--data",
          kRankText,   "--lr",  "3e-3",       "--steps", "3",
          "--threads", "1"};
}
Words images(int hosts, const std::string& strategy) {
  return {"train",      "resnet-18:classes=10",
          "--image",    "32",
          "--batch",    "4",
          "--on",       "local",
          "--hosts",    std::to_string(hosts),
          "--memory",   "1GiB",
          "--strategy", strategy,
          "--data",     "synthetic",
          "--steps",    "2",
          "--threads",  "1"};
}

TEST(TrainHosts, DataParallel) { expect_same_on_hosts(2, transformer(2, "data-parallel")); }
TEST(TrainHosts, DataParallelOfImages) { expect_same_on_hosts(2, images(2, "data-parallel")); }
TEST(TrainHosts, FourWithTensorAndPipelineParallel) {
  expect_same_on_hosts(4, transformer(4, "megatron:tp=2,pp=2,micro-batches=2"));
}
TEST(TrainHostsSlow, TensorParallel) { expect_same_on_hosts(2, transformer(2, "megatron:tp=2")); }
TEST(TrainHostsSlow, Pipeline) { expect_same_on_hosts(2, transformer(2, "gpipe:micro-batches=4")); }
TEST(TrainHostsSlow, ZeroOne) { expect_same_on_hosts(2, transformer(2, "data-parallel:zero=1")); }
TEST(TrainHostsSlow, ZeroTwo) { expect_same_on_hosts(2, transformer(2, "data-parallel:zero=2")); }
TEST(TrainHostsSlow, ZeroThree) { expect_same_on_hosts(4, transformer(4, "data-parallel:zero=3")); }
TEST(TrainHostsSlow, FourWithImages) { expect_same_on_hosts(4, images(4, "data-parallel")); }

// Packs are for the devices of one host: a process for each, in namespaces of their own.
TEST(TrainHosts, PacksOfLayers) {
  const HostNetwork network(2);
  SKIP_WITHOUT(network);
  const ScratchFolder folder;
  const std::string plan = folder / "plan.json";
  run_well({"plan", kTiny, "--seq", "16", "--batch", "8", "--on", "local", "--devices", "2",
            "--memory", "64MiB", "--search", "harmony", "-o", plan});
  run_well(training(plan, {"--threads", "1", "--steps", "3", "--save", folder / "one"}));
  RankPrograms ranks(2, HostNetwork::address(0));
  network.start_all(ranks,
                    training(plan, {"--threads", "1", "--steps", "3", "--save", folder / "two"}));
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_TRUE(bytes_of(folder / "one") == bytes_of(folder / "two"));
}

// Both ranks end with exit code 3 and name the other one, or the one where all meet, and the step;
// the last checkpoint is whole: one process goes on from it, to the weights of an undisturbed run.
void cut_a_host(const std::string& strategy) {
  HostNetwork network(2);
  SKIP_WITHOUT(network);
  const ScratchFolder folder;
  const SmallRun run(folder / ".", 2, strategy);
  RankPrograms ranks(2, HostNetwork::address(0));
  network.start_all(ranks,
                    run.ranks({"--time-out", "3", "--steps", "1000000", "--json", "--checkpoints",
                               folder / "kept", "--checkpoint-every", "3"}));
  ASSERT_TRUE(ranks[0].wait_for_lines(8)) << ranks[0].wait().err;
  network.cut(1);
  const ProgramResult first = ranks[0].wait(), second = ranks[1].wait();
  EXPECT_EQ(first.exit_code, 3);
  EXPECT_EQ(second.exit_code, 3);
  EXPECT_THAT(first.err, HasSubstr("rank 1 is lost: no sign of life for 3 s"));
  EXPECT_THAT(second.err, HasSubstr("rank 0, where all meet, is "));
  EXPECT_THAT(first.err, HasSubstr("step "));
  EXPECT_THAT(second.err, HasSubstr("step "));
  const auto straight = [&](const Words& more) {
    return run_windlass(run.alone(joined({"--steps", "400"}, more)));
  };
  const ProgramResult again = straight({"--resume", folder / "kept", "--save", folder / "resumed"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  if (again.out.find("nothing left to do") != std::string::npos) return;
  EXPECT_EQ(straight({"--save", folder / "straight"}).exit_code, 0);
  EXPECT_TRUE(bytes_of(folder / "straight") == bytes_of(folder / "resumed"));
}

TEST(CutHosts, EndOnBothSides) { cut_a_host("data-parallel"); }
TEST(CutHostsSlow, Packs) { cut_a_host(""); }
TEST(CutHostsSlow, Pipeline) { cut_a_host("gpipe:micro-batches=4"); }

// While they start, meet or connect: whoever has not gone through with it says who is lost.
TEST(CutHosts, WhileTheyConnect) {
  const ScratchFolder folder;
  const SmallRun run(folder / ".", 2, "data-parallel");
  for (const int tenths : {4, 8, 12, 16}) {
    if (hurried() && tenths != 8) continue;
    SCOPED_TRACE(tenths);
    HostNetwork network(2);
    SKIP_WITHOUT(network);
    RankPrograms ranks(2, HostNetwork::address(0));
    network.start_all(ranks, run.ranks({"--time-out", "3", "--steps", "1000000"}));
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * tenths));
    network.cut(1);
    const auto begin = std::chrono::steady_clock::now();
    const ProgramResult first = ranks[0].wait(), second = ranks[1].wait();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25));
    EXPECT_EQ(first.exit_code, 3);
    EXPECT_EQ(second.exit_code, 3);
    EXPECT_THAT(first.err, HasSubstr("rank 1"));
    EXPECT_THAT(second.err, HasSubstr("rank 0"));
  }
}

// Two of four lose each other, but not the rank where all meet.
TEST(CutHosts, ALinkBetweenTwoEndsTheRun) {
  HostNetwork network(4);
  SKIP_WITHOUT(network);
  RankPrograms ranks(4, HostNetwork::address(0));
  network.start_all(ranks, steady("data-parallel", {"--hosts", "4", "--time-out", "4", "--steps",
                                                    "1000000", "--json"}));
  ASSERT_TRUE(ranks[0].wait_for_lines(8)) << ranks[0].wait().err;
  ASSERT_TRUE(network.part(1, 2));
  for (int rank = 0; rank < 4; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                testing::AnyOf(HasSubstr("rank 1 is gone"), HasSubstr("rank 2 is gone")));
    EXPECT_THAT(result.err, HasSubstr("step "));
  }
}

// A hundredth of what the link had is slow, but nobody is lost: the same weights.
void slow_a_host(const std::string& strategy) {
  HostNetwork network(2);
  SKIP_WITHOUT(network);
  const ScratchFolder folder;
  const SmallRun run(folder / ".", 2, strategy);
  if (!network.slow(1, "4mbit")) GTEST_SKIP() << "links cannot be made slower here";
  RankPrograms ranks(2, HostNetwork::address(0));
  network.start_all(ranks,
                    run.ranks({"--steps", "3", "--time-out", "10", "--save", folder / "slow"}));
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  run_well(run.ranks({"--steps", "3", "--save", folder / "quick"}));
  EXPECT_TRUE(bytes_of(folder / "quick") == bytes_of(folder / "slow"));
}

TEST(SlowHosts, EndWithTheSameWeights) { slow_a_host("data-parallel"); }
TEST(SlowHostsSlow, Packs) { slow_a_host(""); }
TEST(SlowHostsSlow, Pipeline) { slow_a_host("gpipe:micro-batches=4"); }

// The disk of one rank is full while its part of a checkpoint is written: none of that step is
// left, and all ranks end.
void fill_a_disk(const std::string& strategy, int full) {
  HostNetwork network(2);
  SKIP_WITHOUT(network);
  const ScratchFolder folder;
  const std::string kept = folder / "kept";
  const SmallRun run(folder / ".", 2, strategy);
  const Words checkpoints = {"--checkpoints", kept, "--checkpoint-every", "2"};
  run_well(run.ranks(joined(checkpoints, {"--steps", "2"})));
  RankPrograms ranks(2, HostNetwork::address(0));
  const Words more = run.ranks(joined(checkpoints, {"--steps", "8", "--resume", kept}));
  network.start(ranks, 1 - full, more);
  network.start(ranks, full, more, {.file_bytes = 100'000});
  const ProgramResult other = ranks[1 - full].wait(), result = ranks[full].wait();
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(other.err, HasSubstr(fmt::format("rank {} has failed: checkpoint of step 4", full)));
  EXPECT_THAT(result.err, HasSubstr("checkpoint of step 4"));
  EXPECT_FALSE(std::filesystem::exists(kept + "/checkpoint-00000004/model.safetensors.index.json"));
  run_well(run.alone({"--steps", "6", "--resume", kept, "--save", folder / "resumed"}));
  run_well(run.alone({"--steps", "6", "--save", folder / "straight"}));
  EXPECT_TRUE(bytes_of(folder / "straight") == bytes_of(folder / "resumed"));
}

TEST(FullHosts, TheLastCheckpointStays) { fill_a_disk("data-parallel", 1); }
// Weights of packs lie on the host, which is the first process's.
TEST(FullHostsSlow, Packs) { fill_a_disk("", 0); }
TEST(FullHostsSlow, Pipeline) { fill_a_disk("gpipe:micro-batches=4", 1); }

}  // namespace
}  // namespace windlass

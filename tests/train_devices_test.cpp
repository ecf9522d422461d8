// `windlass train` on several devices of this host, as a user runs it.

#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>
#include <thread>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_effort.h"
#include "windlass/base/test_places.h"

namespace windlass {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

const std::string kHarbour = source_folder() + "/examples/data/harbour.txt";
const std::string kSmall = "gpt2:layers=2,hidden=32,heads=2,vocab=256";

Arguments with(Arguments all, const Arguments& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// Trains the small model for a few steps.
Arguments run_arguments(int devices, const std::string& strategy, const Arguments& more = {},
                        int steps = 6) {
  return with({"train", kSmall, "--seq", "16", "--batch", "8", "--on", "local", "--devices",
               std::to_string(devices), "--data", kHarbour, "--strategy", strategy, "--steps",
               std::to_string(steps), "--lr", "3e-3", "--json"},
              more);
}

std::vector<json> steps_of(const ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<json> lines;
  std::istringstream stream(result.out);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Losses of the steps; that no device goes beyond what was predicted, or its limit.
std::vector<double> losses(const Arguments& arguments) {
  const std::vector<json> lines = steps_of(run_windlass(arguments));
  std::vector<double> found;
  for (const json& line : lines)
    if (line.contains("loss")) found.push_back(line["loss"]);
  EXPECT_EQ(found.size(), 6u);
  const json& last = lines.back();
  EXPECT_FALSE(last["measured"]["devices"].empty());
  for (size_t d = 0; d < last["measured"]["devices"].size(); ++d)
    EXPECT_LE(last["measured"]["devices"][d]["peak_bytes"],
              last["predicted"]["devices"][d]["peak_bytes"]);
  return found;
}

const std::vector<std::pair<int, std::string>> kWays = {
    {2, "data-parallel"},
    {3, "data-parallel:zero=1"},
    {2, "data-parallel:zero=3,micro-batches=2"},
    {2, "megatron:tp=2"},
    {4, "megatron:tp=2,pp=2,micro-batches=2"},
    {2, "gpipe:micro-batches=4"},
    {2, "recompute-all:host-update=on"},
    {2, "offload-all:host-weights=on"},
    {2, "data-parallel:zero=2,micro-batches=3"},
    {2, "1f1b:stages=2,micro-batches=3"},
    {1, "recompute-all:micro-batches=3"},
};

// All of them, or each third.
std::vector<std::pair<int, std::string>> tried_ways(size_t first) {
  if (thorough()) return kWays;
  std::vector<std::pair<int, std::string>> some;
  for (size_t i = first; i < kWays.size(); i += 3) some.push_back(kWays[i]);
  return some;
}

TEST(TrainDevicesSlow, EveryStrategyComputesTheSame) {
  const std::vector<double> expected = losses(run_arguments(1, "single"));
  for (const auto& [devices, strategy] : tried_ways(0)) {
    SCOPED_TRACE(strategy);
    const std::vector<double> found = losses(run_arguments(devices, strategy));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 1e-4 * std::abs(expected[i])) << "step " << i + 1;
  }
}

TEST(TrainDevicesSlow, TwiceTheSameBits) {
  const ScratchFolder scratch;
  for (const std::string strategy : {"data-parallel:zero=2", "megatron:tp=2"}) {
    const std::string first = scratch / "first.safetensors",
                      second = scratch / "second.safetensors";
    losses(run_arguments(2, strategy, {"--save", first}));
    losses(run_arguments(2, strategy, {"--save", second}));
    EXPECT_TRUE(contents(first) == contents(second)) << strategy;
  }
}

// Killed again and again at any moment, a run goes on from its last checkpoint and ends with the
// bits of one that was not killed; two times under a plan that decides otherwise about memory.
TEST(TrainDevicesSlow, RunsThatAreKilledEndTheSame) {
  const int rounds = thorough() ? 50 : 6, steps = 6 * rounds;
  const ScratchFolder scratch;
  const std::string folder = scratch / "run", straight = scratch / "straight.safetensors",
                    pieced = scratch / "pieced.safetensors";
  steps_of(run_windlass(run_arguments(2, "data-parallel", {"--save", straight}, steps)));
  const Arguments pieces = {"--checkpoints", folder, "--checkpoint-every", "1", "--resume", folder,
                            "--save",        pieced};
  std::mt19937 random(3);
  int64_t furthest = 0;
  for (int round = 0; round < rounds; ++round) {
    const bool other = round == rounds / 3 || round == 2 * rounds / 3;
    const std::string strategy = !other                ? "data-parallel"
                                 : round == rounds / 3 ? "data-parallel:recompute=full"
                                                       : "data-parallel:offload=on,zero=1";
    RunningProgram running(run_arguments(2, strategy, pieces, steps));
    // The first is killed before it has done anything, others while they write a checkpoint; those
    // under another plan get as far as to leave one.
    const auto lines = static_cast<int64_t>(round == 0 ? 0 : other ? 2 : random() % 4);
    ASSERT_TRUE(running.wait_for_lines(lines)) << running.wait().err;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    running.signal(SIGKILL);
    const ProgramResult killed = running.wait();
    ASSERT_EQ(killed.exit_code, -1) << killed.err;
    std::istringstream stream(killed.out);
    for (std::string line; std::getline(stream, line) && !stream.eof();) {
      const int64_t step = json::parse(line)["step"];
      EXPECT_LE(step, furthest + 1) << "steps were left out";
      furthest = std::max(furthest, step);
    }
  }
  const ProgramResult last = run_windlass(run_arguments(2, "data-parallel", pieces, steps));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_TRUE(contents(pieced) == contents(straight));
}

TEST(TrainDevicesSlow, GoesOnOnOtherDevices) {
  const ScratchFolder scratch;
  // Other devices and decisions, the same weights and optimizer state.
  const std::string other = scratch / "other";
  const ProgramResult half =
      run_windlass(run_arguments(2, "data-parallel:zero=3", {"--checkpoints", other}, 3));
  ASSERT_EQ(half.exit_code, 0) << half.err;
  const std::vector<double> expected = losses(run_arguments(1, "single"));
  for (const auto& [devices, strategy] : std::vector<std::pair<int, std::string>>{
           {1, "single"}, {3, "data-parallel"}, {2, "gpipe"}}) {
    SCOPED_TRACE(strategy);
    const std::vector<json> lines =
        steps_of(run_windlass(run_arguments(devices, strategy, {"--resume", other})));
    ASSERT_GE(lines.size(), 3u);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(lines[i]["loss"].get<double>(), expected[3 + i], 1e-4 * expected[3 + i]);
  }
}

// On the devices of the plan, without a note that it was elsewhere, and the same loss.
TEST(TrainDevicesSlow, EveryStrategyEvaluatesTheSame) {
  const auto evaluations = [](int devices, const std::string& strategy) {
    const ProgramResult result = run_windlass(
        run_arguments(devices, strategy, {"--eval-every", "1", "--eval-batches", "3"}, 2));
    EXPECT_EQ(result.err, "");
    std::vector<double> found;
    for (const json& line : steps_of(result))
      if (line.contains("eval_loss")) found.push_back(line["eval_loss"]);
    return found;
  };
  const std::vector<double> expected = evaluations(1, "single");
  ASSERT_EQ(expected.size(), 2u);
  for (const auto& [devices, strategy] : tried_ways(1)) {
    SCOPED_TRACE(strategy);
    const std::vector<double> found = evaluations(devices, strategy);
    ASSERT_EQ(found.size(), 2u);
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(found[i], expected[i], 1e-5 * expected[i]);
  }
}

TEST(TrainDevicesSlow, DemandPagingTrainsTheSame) {
  const std::vector<double> expected = losses(run_arguments(1, "single"));
  for (const auto& [devices, strategy] : std::vector<std::pair<int, std::string>>{
           {1, "lru"}, {2, "lru:micro-batches=2"}, {2, "lru:pp=2,micro-batches=2"}}) {
    SCOPED_TRACE(strategy);
    const std::vector<json> lines =
        steps_of(run_windlass(run_arguments(devices, strategy, {"--memory", "1200KiB"})));
    ASSERT_GE(lines.size(), 3u);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_NEAR(lines[i]["loss"].get<double>(), expected[i], 1e-4 * expected[i]);
    for (const json& device : lines[2]["devices"]) EXPECT_LE(device["peak_bytes"], 1200 * 1024);
  }
}

TEST(TrainDevicesSlow, PlansAreCarriedOut) {
  const ScratchFolder scratch;
  const std::string plan = scratch / "plan.json";
  const ProgramResult planned =
      run_windlass({"plan", kSmall, "--seq", "16", "--batch", "8", "--on", "local", "--devices",
                    "2", "--memory", "700KiB", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("train it with"));
  const std::vector<json> lines =
      steps_of(run_windlass({"train", plan, "--data", kHarbour, "--steps", "4", "--json"}));
  ASSERT_EQ(lines.size(), 5u);
  ASSERT_EQ(lines[0]["devices"].size(), 2u);
  for (const json& device : lines[3]["devices"]) EXPECT_LE(device["peak_bytes"], 700 * 1024);
}

}  // namespace
}  // namespace windlass

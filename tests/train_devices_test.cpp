// `windlass train` on several devices of this host, as a user runs it.

#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <random>
#include <sstream>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Arguments = std::vector<std::string>;

const std::string kHarbour = WINDLASS_SOURCE_DIR "/examples/data/harbour.txt";
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
};

TEST(TrainDevicesSlow, EveryStrategyComputesTheSame) {
  const std::vector<double> expected = losses(run_arguments(1, "single"));
  for (const auto& [devices, strategy] : kWays) {
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

// Killed at any moment, a run goes on from its last checkpoint; also on another number of devices.
TEST(TrainDevicesSlow, GoesOnAfterBeingKilled) {
  const ScratchFolder scratch;
  const std::string folder = scratch / "run", straight = scratch / "straight.safetensors",
                    pieced = scratch / "pieced.safetensors";
  losses(run_arguments(2, "data-parallel", {"--save", straight}));
  const Arguments pieces = {"--checkpoints", folder, "--checkpoint-every", "1", "--resume", folder,
                            "--save",        pieced};
  std::mt19937 random(3);
  bool done = false;
  for (int attempt = 0; attempt < 10 && !done; ++attempt) {
    RunningProgram running(run_arguments(2, "data-parallel", pieces));
    running.wait_for_lines(static_cast<int64_t>(1 + random() % 3));
    running.signal(SIGKILL);
    done = running.wait().exit_code == 0;
  }
  const ProgramResult last = run_windlass(run_arguments(2, "data-parallel", pieces));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_TRUE(contents(pieced) == contents(straight));

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

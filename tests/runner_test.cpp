// `--runner`: who carries the step out, on every verb that predicts.

#include "windlass/cost/runner.h"

#include <filesystem>
#include <fstream>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

using testing::HasSubstr;

nlohmann::json simulated_json(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "simulate");
  return windlass_json(std::move(arguments));
}

std::vector<std::string> runner_step(const std::string& runner) {
  return {"gpt2:layers=2,hidden=64,vocab=500",
          "--seq",
          "32",
          "--batch",
          "8",
          "--on",
          "4x3090",
          "--strategy",
          "data-parallel",
          "--runner",
          runner};
}

TEST(Runners, WindlassIsTheDefault) {
  std::vector<std::string> plain = runner_step("windlass");
  nlohmann::json named = simulated_json(plain);
  plain.resize(plain.size() - 2);
  EXPECT_EQ(simulated_json(plain), named);
  EXPECT_EQ(named["runner"], "windlass");
}

TEST(Runners, EachOneSaysItsName) {
  for (const RunnerPreset& preset : runner_presets()) {
    SCOPED_TRACE(preset.name);
    EXPECT_EQ(simulated_json(runner_step(std::string(preset.name)))["runner"], preset.name);
  }
}

// 500 ops and more of some 45 us each: no small step is faster under a framework.
TEST(Runners, AHostHasItsPrice) {
  const double own = simulated_json(runner_step("windlass"))["step_time_s"];
  for (const char* runner : {"pytorch", "pytorch-2", "pytorch-amp", "megatron", "deepspeed"})
    EXPECT_GT(simulated_json(runner_step(runner))["step_time_s"].get<double>(), own) << runner;
}

// What is kept from step to step adds to a peak in the forward or backward pass, never takes from
// it.
TEST(Runners, FrameworksKeepMore) {
  const auto peak = [](const std::string& runner) {
    return simulated_json(runner_step(runner))["devices"][0]["peak_bytes"].get<int64_t>();
  };
  EXPECT_GE(peak("pytorch"), peak("windlass"));
  EXPECT_GE(peak("pytorch-2"), peak("windlass"));
  const nlohmann::json device = simulated_json(runner_step("pytorch"))["devices"][0];
  EXPECT_GT(device["footprint_bytes"].get<int64_t>(),
            device["peak_bytes"].get<int64_t>() + (int64_t{1} << 30));
}

// DDP's buckets hold the gradients once more, in every phase; one replica has none, and neither
// have replicas that scatter their sums.
TEST(Runners, BucketsTakeTheGradientsOnceMore) {
  const ScratchFolder folder;
  nlohmann::json without = runner_to_json(find_runner("pytorch"));
  without["memory"].erase("bucket_copies");
  std::ofstream(folder / "views.json") << without;
  const auto taken = [&](const std::string& strategy) {
    const auto peak = [&](const std::string& runner) {
      std::vector<std::string> step = runner_step(runner);
      step[8] = strategy;
      return simulated_json(step)["devices"][0];
    };
    const nlohmann::json with = peak("pytorch"), views = peak(folder / "views.json");
    EXPECT_EQ(with["gradient_bytes"], views["gradient_bytes"]);
    return std::pair(with["peak_bytes"].get<int64_t>() - views["peak_bytes"].get<int64_t>(),
                     with["gradient_bytes"].get<int64_t>());
  };
  const auto [more, gradients] = taken("data-parallel");
  EXPECT_EQ(more, gradients);
  EXPECT_GT(more, 0);
  EXPECT_EQ(taken("single").first, 0);
  EXPECT_EQ(taken("zero:stage=2").first, 0);
}

// 500 x 64 embeddings at both ends of the pipeline: Megatron's last stage has 12 bytes of state for
// each of them, and everybody 2 bytes more of gradient.
TEST(Runners, MegatronsLastStageHasTheEmbeddingsState) {
  const auto run = [](const std::string& runner) {
    return simulated_json({"gpt2:layers=2,hidden=64,vocab=500", "--seq", "32", "--batch", "8",
                           "--on", "4x3090", "--strategy", "megatron:pp=2,dp=1,micro=2", "--dtype",
                           "bf16", "--runner", runner});
  };
  const nlohmann::json own = run("windlass"), megatron = run("megatron");
  const auto state = [](const nlohmann::json& parsed, size_t device) {
    return parsed["devices"][device]["optimizer_bytes"].get<int64_t>();
  };
  EXPECT_EQ(state(megatron, 0), state(own, 0));
  EXPECT_EQ(state(megatron, 1) - state(own, 1), 500 * 64 * 12);
  EXPECT_GT(megatron["devices"][0]["gradient_bytes"].get<int64_t>(),
            own["devices"][0]["gradient_bytes"].get<int64_t>());
}

TEST(Runners, PlansRememberTheirs) {
  const ScratchFolder folder;
  for (const RunnerPreset& preset : runner_presets()) {
    SCOPED_TRACE(preset.name);
    const std::string path = folder / (std::string(preset.name) + ".json");
    std::vector<std::string> arguments = runner_step(std::string(preset.name));
    arguments.insert(arguments.end(), {"--save", path});
    const nlohmann::json made = simulated_json(arguments);
    const ProgramResult checked = run_windlass({"check", path});
    EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
    const nlohmann::json again = simulated_json({path});
    EXPECT_EQ(again["runner"], preset.name);
    EXPECT_EQ(again["step_time_s"], made["step_time_s"]);
    EXPECT_EQ(again["devices"], made["devices"]);
    if (preset.name == "windlass") continue;
    const ProgramResult trained = run_windlass({"train", path, "--data", "synthetic"});
    EXPECT_EQ(trained.exit_code, 1);
    EXPECT_THAT(trained.err, HasSubstr("plan again without --runner"));
  }
}

TEST(Runners, SearchIsUnderTheRunner) {
  const ProgramResult result =
      run_windlass({"plan", "gpt2:layers=2,hidden=64,vocab=500", "--seq", "32", "--batch", "8",
                    "--on", "1x3090", "--runner", "pytorch-2", "--memory", "40MiB", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json plan = nlohmann::json::parse(result.out);
  EXPECT_EQ(plan["runner"], "pytorch-2");
  EXPECT_LE(plan["devices"][0]["peak_bytes"].get<double>(), 40.0 * (1 << 20) / 1.05);
  EXPECT_LE(plan["lower_bound_s"].get<double>(), plan["step_time_s"].get<double>());
}

// Convolutions of an A100 have tf32 under PyTorch unasked, its matrix products if it is told to.
TEST(Runners, Tf32IsAChoiceOfFrameworks) {
  const ScratchFolder folder;
  const auto step = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {model, "--batch", "64", "--on", "1xa100-40g", "--strategy", "single",
                               "--runner", "pytorch-2"});
    return simulated_json(more);
  };
  const auto time = [](const nlohmann::json& parsed) {
    return parsed["step_time_s"].get<double>();
  };
  const nlohmann::json usual = step("vgg16", {}), off = step("vgg16", {"--tf32", "off"});
  EXPECT_EQ(step("vgg16", {"--tf32", "convolutions"}), usual);
  EXPECT_EQ(usual["runner"], "pytorch-2");
  EXPECT_EQ(off["runner"], "pytorch-2 (tf32 off)");
  EXPECT_GT(time(off), 1.5 * time(usual));
  const nlohmann::json all = step("vit-b-16", {"--tf32", "all", "--save", folder / "plan.json"});
  EXPECT_GT(time(step("vit-b-16", {})), 1.5 * time(all));
  EXPECT_EQ(simulated_json({folder / "plan.json"})["runner"], "pytorch-2 (tf32 all)");
  const ProgramResult refused =
      run_windlass({"simulate", "vgg16", "--batch", "8", "--on", "1xa100-40g", "--strategy",
                    "single", "--tf32", "all"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("give --runner as well"));
}

TEST(Runners, UnknownOnesAreRefused) {
  const ProgramResult result = run_windlass({"simulate", "mlp", "--batch", "8", "--on", "1x3090",
                                             "--strategy", "single", "--runner", "pytorhc"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("pytorch"));
  EXPECT_THAT(run_windlass({"plan", "mlp", "--batch", "8", "--on", "1x3090", "--search", "harmony",
                            "--runner", "pytorch"})
                  .err,
              HasSubstr("windlass's own"));
}

}  // namespace
}  // namespace windlass

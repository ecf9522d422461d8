// `windlass simulate` and `windlass validate` as a user runs them.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include "tests/run_program.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

ProgramResult simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "simulate");
  return run_windlass(arguments);
}

TEST(Simulate, TellsPeopleTimeAndMemory) {
  const ProgramResult result =
      simulate({"resnet-18", "--on", "4x3090", "--strategy", "data-parallel", "--batch", "64"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* text : {"resnet-18 on 4x3090, data-parallel", "samples/s", "where the time goes",
                           "memory at its peak", "gpu0..gpu3", "links by utilisation",
                           "simulated, analytic cost model"})
    EXPECT_THAT(result.out, HasSubstr(text));
}

TEST(Simulate, TellsProgramsTheSame) {
  const ProgramResult result =
      simulate({"gpt2:layers=4,hidden=256", "--on", "4x3090", "--strategy",
                "megatron:tp=2,pp=2,micro=2", "--batch", "8", "--dtype", "fp16", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  EXPECT_EQ(answer["termination"], "done");
  EXPECT_EQ(answer["strategy"], "megatron:tp=2,pp=2,micro=2");
  EXPECT_EQ(answer["micro_batches"], 4);
  const double step = answer["step_time_s"];
  EXPECT_GT(step, 0);
  EXPECT_NEAR(answer["samples_per_s"].get<double>(), 8 / step, 1e-6 * 8 / step);
  ASSERT_EQ(answer["devices"].size(), 4u);
  int64_t kept = 0;
  for (const auto& device : answer["devices"]) {
    EXPECT_GT(device["peak_bytes"], 0);
    EXPECT_LE(device["peak_bytes"], device["limit_bytes"]);
    EXPECT_GE(device["peak_bytes"].get<int64_t>(),
              device["weight_bytes"].get<int64_t>() + device["optimizer_bytes"].get<int64_t>());
    kept = std::max(kept, device["activation_peak_bytes"].get<int64_t>());
  }
  EXPECT_EQ(answer["activation_peak_bytes"], kept);
  EXPECT_FALSE(answer["links"].empty());
  double parts = answer["step_overhead_s"];
  for (const auto& [key, value] : answer["breakdown"].items()) parts += value.get<double>();
  EXPECT_NEAR(parts, step, 1e-6 * step + 1e-8);
  // Kinds and workspace make up the peak.
  for (const auto& memory : answer["memories"]) {
    int64_t sum = 0;
    for (const auto& [key, value] : memory["at_peak"].items()) sum += value.get<int64_t>();
    EXPECT_EQ(sum, memory["peak_bytes"].get<int64_t>()) << memory["name"];
  }
}

TEST(Simulate, PrintsTheTaskGraph) {
  std::vector<std::string> arguments = {"mlp",          "--on",    "4x3090", "--strategy",
                                        "zero:stage=2", "--batch", "8",      "--tasks"};
  const ProgramResult text = simulate(arguments);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* part : {"groups of devices: 1", "forward layers.0, micro-batch 0, by g0 split",
                           "reduce-scatter among 4 members", "shared out to 4 members"})
    EXPECT_THAT(text.out, HasSubstr(part));
  arguments.push_back("--json");
  const ProgramResult parsed = simulate(arguments);
  ASSERT_EQ(parsed.exit_code, 0) << parsed.err;
  const auto graph = nlohmann::json::parse(parsed.out);
  EXPECT_EQ(graph["groups"][0].size(), 4u);
  EXPECT_FALSE(graph["buffers"].empty());
  int reduced = 0;
  for (const auto& task : graph["tasks"]) {
    if (task["kind"] != "reduce") continue;
    ++reduced;
    EXPECT_EQ(task["movement"]["collective"], "reduce-scatter");
    EXPECT_EQ(task["movement"]["digits"][0]["parts"], 4);
  }
  EXPECT_GT(reduced, 0);
}

// What simulate saves, check accepts and simulate takes again; a plan that promises something else
// is found out.
TEST(Simulate, PlansAreSavedAndChecked) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("windlass_plan_{}", ::getpid());
  fs::create_directories(directory);
  const std::string plan = (directory / "plan.json").string();
  const ProgramResult saved =
      simulate({"gpt2:layers=4,hidden=256", "--on", "4x3090", "--strategy",
                "megatron:tp=2,pp=2,micro=2,zero=1", "--batch", "8", "--save", plan, "--json"});
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const ProgramResult checked = run_windlass({"check", plan, "--json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.out;
  EXPECT_TRUE(nlohmann::json::parse(checked.out)["valid"].get<bool>());
  const ProgramResult again = simulate({plan, "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["step_time_s"],
            nlohmann::json::parse(saved.out)["step_time_s"]);

  std::ifstream file(plan);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t at = text.find("\"peak_bytes\": ");
  ASSERT_NE(at, std::string::npos);
  text.insert(at + 14, "1");
  std::ofstream(plan) << text;
  EXPECT_EQ(run_windlass({"check", plan}).exit_code, 1);
  fs::remove_all(directory);
}

TEST(Simulate, SaysWhatDoesNotFit) {
  const std::vector<std::string> arguments = {"gpt2-small", "--on",    "4x3090", "--strategy",
                                              "single",     "--batch", "8",      "--memory"};
  auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), more.begin(), more.end());
    return simulate(all);
  };
  const ProgramResult text = with({"3GiB"});
  EXPECT_EQ(text.exit_code, 2);
  for (const char* part : {"does not fit", "gpu0", "missing", "limit of 3.00 GiB", "would need",
                           "to start forward", "alive in gpu0 then"})
    EXPECT_THAT(text.out, HasSubstr(part));
  const ProgramResult result = with({"3GiB", "--json"});
  ASSERT_EQ(result.exit_code, 2);
  const auto answer = nlohmann::json::parse(result.out);
  EXPECT_EQ(answer["termination"], "out-of-memory");
  EXPECT_GT(answer["failure"]["missing_bytes"], 0);
  EXPECT_FALSE(answer["failure"]["alive"].empty());
  EXPECT_FALSE(answer["reason"].get<std::string>().empty());
  // What it says would do does, and little less does not.
  const int64_t limit = answer["minimum_limit_bytes"];
  EXPECT_GT(limit, int64_t{3} << 30);
  EXPECT_EQ(with({std::to_string(limit)}).exit_code, 0);
  EXPECT_EQ(with({std::to_string(limit - (int64_t{4} << 20))}).exit_code, 2);
}

TEST(Simulate, LimitsMayBeShares) {
  const auto limit = [](const std::string& memory) {
    const ProgramResult result = simulate(
        {"alexnet", "--on", "4x3090", "--strategy", "single", "--memory", memory, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return nlohmann::json::parse(result.out)["devices"][0]["limit_bytes"].get<int64_t>();
  };
  EXPECT_NEAR(static_cast<double>(limit("50%")), static_cast<double>(limit("100%")) / 2, 1);
  for (const char* wrong : {"0%", "101%", "x%", "%", "-1%"})
    EXPECT_EQ(simulate({"alexnet", "--on", "4x3090", "--strategy", "single", "--memory", wrong})
                  .exit_code,
              1)
        << wrong;
}

TEST(Simulate, RefusesBadInput) {
  const auto error = [](const std::string& machine, const std::string& strategy) {
    const ProgramResult result = simulate({"alexnet", "--on", machine, "--strategy", strategy});
    EXPECT_EQ(result.exit_code, 1) << strategy;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  EXPECT_THAT(error("4x3090", "data-paralel"), HasSubstr("data-parallel"));
  EXPECT_THAT(error("4x3090", "megatron:tpp=2"), HasSubstr("tpp"));
  EXPECT_THAT(error("4x3090", "megatron:tp=8"), HasSubstr("devices"));
  EXPECT_THAT(error("5x3090", "single"), HasSubstr("5x3090"));
  EXPECT_EQ(simulate({"alexnet", "--on", "4x3090"}).exit_code, 1);
}

TEST(Simulate, WritesTraces) {
  const fs::path folder =
      fs::temp_directory_path() / ("windlass-trace-" + std::to_string(getpid()));
  fs::create_directory(folder);
  const std::string path = (folder / "step.json").string();
  const std::vector<std::string> arguments = {"gpt2:layers=2,hidden=64",
                                              "--on",
                                              "4x3090",
                                              "--strategy",
                                              "zero:stage=3",
                                              "--batch",
                                              "8",
                                              "--trace"};
  auto with = [&](const std::string& file) {
    std::vector<std::string> all = arguments;
    all.push_back(file);
    return simulate(all);
  };
  ASSERT_EQ(with(path).exit_code, 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  std::ifstream stream(path);
  const auto trace = nlohmann::json::parse(stream);
  bool readable = false, counted = false, linked = false;
  for (const auto& event : trace["traceEvents"]) {
    readable |= event["name"] == "forward transformer.h.0.ln_1 (micro-batch 0)";
    counted |= event["ph"] == "C";
    linked |= event.value("cat", "") == "link";
  }
  EXPECT_TRUE(readable);
  EXPECT_TRUE(counted);
  EXPECT_TRUE(linked);
  EXPECT_EQ(with((folder / "none" / "step.json").string()).exit_code, 1);
  fs::remove_all(folder);
}

TEST(Validate, SmallRowsPass) {
  const ProgramResult result = run_windlass({"validate", "--only", "22B", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out;
  const auto answer = nlohmann::json::parse(result.out);
  EXPECT_EQ(answer["passed"], true);
  EXPECT_EQ(answer["tables"].size(), 4u);
  for (const auto& table : answer["tables"])
    EXPECT_LT(table["max_error"], table["bar_max"]) << table["name"];
}

TEST(Validate, RefusesUnknownTables) {
  const ProgramResult result = run_windlass({"validate", "--only", "iteration-tme"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("iteration-time"));
}

}  // namespace
}  // namespace windlass

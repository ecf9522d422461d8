// `windlass explain`: numbers that agree with the simulator, alternatives that are real, and clear
// errors.

#include "windlass/search/explain/explain.h"

#include <filesystem>
#include <string>
#include <unistd.h>

#include "tests/run_program.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/report/parts.h"

namespace windlass {
namespace {

using nlohmann::json;

class ExplainProgram : public testing::Test {
 protected:
  ~ExplainProgram() override { std::filesystem::remove(path_); }

  // The plan file of a strategy by name.
  std::string planned(const std::string& model, const std::string& machine,
                      const std::string& strategy, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"simulate",   model,    "--on",   machine,
                                          "--strategy", strategy, "--save", path_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = run_windlass(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return path_;
  }

  json explain(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"explain", path_, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = run_windlass(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return json::parse(run.out);
  }

  const std::string path_ = (std::filesystem::temp_directory_path() /
                             ("windlass_explain_" + std::to_string(getpid()) + ".json"))
                                .string();
};

// The same numbers as `windlass simulate` on the same file.
void expect_same_as_simulated(const json& explained, const std::string& path) {
  const ProgramResult run = run_windlass({"simulate", path, "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json simulated = json::parse(run.out);
  EXPECT_DOUBLE_EQ(explained["step_time_s"].get<double>(), simulated["step_time_s"].get<double>());
  int64_t peak = 0;
  for (const json& device : simulated["devices"])
    peak = std::max(peak, device["peak_bytes"].get<int64_t>());
  EXPECT_EQ(explained["peak_bytes"].get<int64_t>(), peak);
}

TEST_F(ExplainProgram, AgreesWithSimulate) {
  for (const auto& [machine, strategy] :
       {std::pair("laptop", "single:recompute=full"), std::pair("4x3090", "zero:stage=2"),
        std::pair("4x3090", "1f1b:stages=4,micro=2")}) {
    planned("mlp", machine, strategy);
    const json explained = explain();
    expect_same_as_simulated(explained, path_);
    EXPECT_FALSE(explained["alternatives"].empty()) << strategy;
    for (const json& other : explained["alternatives"]) {
      if (!other["possible"].get<bool>()) continue;
      EXPECT_NEAR(other["step_time_difference_s"].get<double>(),
                  other["step_time_s"].get<double>() - explained["step_time_s"].get<double>(),
                  1e-12);
    }
  }
}

// What explain says of another strategy is what simulate says of it.
TEST_F(ExplainProgram, AlternativesAreWhatSimulateSays) {
  planned("mlp", "4x3090", "zero:stage=2");
  const json explained = explain();
  bool seen = false;
  for (const json& other : explained["alternatives"]) {
    if (other["decision"] != "everything" || other["choice"] != "data-parallel") continue;
    const ProgramResult run = run_windlass(
        {"simulate", "mlp", "--on", "4x3090", "--strategy", "data-parallel", "--json"});
    const json simulated = json::parse(run.out);
    EXPECT_DOUBLE_EQ(other["step_time_s"].get<double>(), simulated["step_time_s"].get<double>());
    EXPECT_EQ(other["peak_bytes"], simulated["devices"][0]["peak_bytes"]);
    seen = true;
  }
  EXPECT_TRUE(seen);
}

TEST_F(ExplainProgram, OneOpAndOneTensor) {
  planned("mlp", "4x3090", "data-parallel");
  const json op = explain({"--op", "layers.1"});
  expect_same_as_simulated(op, path_);
  EXPECT_EQ(op["op"], "layers.1");
  EXPECT_GT(op["work"].size(), 1U);
  ASSERT_GT(op["alternatives"].size(), 3U);
  double last = 0;
  for (const json& other : op["alternatives"]) {
    EXPECT_NE(other["choice"], op["sharding"]);
    if (!other["possible"].get<bool>() || !other["fits"].get<bool>()) break;
    EXPECT_GE(other["step_time_s"].get<double>(), last);
    last = other["step_time_s"].get<double>();
  }
  const json tensor = explain({"--tensor", "relu.1"});
  EXPECT_EQ(tensor["choice"], "keep");
  EXPECT_FALSE(tensor["why"].get<std::string>().empty());
  EXPECT_EQ(tensor["alternatives"].size(), 6U);
  int lossy = 0;
  for (const json& other : tensor["alternatives"])
    lossy += other["changes_mathematics"].get<bool>() ? 1 : 0;
  EXPECT_EQ(lossy, 3);
  EXPECT_TRUE(explain({"--tensor", "input"})["alternatives"].empty());  // data stays where it is
  const json weight = explain({"--tensor", "layers.1.weight"});
  EXPECT_EQ(weight["role"], "weight");
  EXPECT_FALSE(weight["alternatives"].empty());
}

TEST_F(ExplainProgram, OneDeviceHasNothingToSplit) {
  planned("mlp", "laptop", "single:recompute=full");
  EXPECT_TRUE(explain({"--op", "layers.2"})["alternatives"].empty());
  EXPECT_NE(run_windlass({"explain", path_}).out.find("everything kept"), std::string::npos);
}

TEST_F(ExplainProgram, NamesThatAreNone) {
  planned("mlp", "4x3090", "data-parallel");
  const auto fails = [&](const std::vector<std::string>& flags, const std::string& with) {
    std::vector<std::string> arguments = {"explain", path_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const ProgramResult run = run_windlass(arguments);
    EXPECT_EQ(run.exit_code, 1) << run.out;
    EXPECT_NE(run.err.find(with), std::string::npos) << run.err;
  };
  fails({"--op", "no.such.op"}, "no such op");
  fails({"--op", "layers"}, "give the whole name of one");
  fails({"--tensor", "nothing.of.the.kind"}, "no such tensor");
  fails({"--tensor", "layers"}, "give the whole name of one");
  fails({"--op", "layers.1", "--tensor", "layers.1"}, "--tensor");
  EXPECT_EQ(run_windlass({"explain", path_ + ".none"}).exit_code, 1);
}

// A tensor that is recomputed because there is no room for it: keeping it must say so, and the
// action that the plan has must not be among the others.
TEST(Explain, WhatDoesNotFitIsSaidNotToFit) {
  const Graph network = cases::transformer(8, 3, true);
  Machine machine = load_machine("laptop");
  const auto cost = analytic_cost_model();
  const PreparedStep step =
      prepare_step(network, parse_baseline("single:recompute=full"), machine, {});
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const Outcome free = Explainer(problem, step.training, step.strategy).plan();
  ASSERT_TRUE(free.fits);
  for (Device& device : machine.devices) device.limit = free.peak;
  Explainer tight(problem, step.training, step.strategy);
  ASSERT_TRUE(tight.plan().fits);
  EXPECT_LE(tight.plan().peak, free.peak);
  bool seen = false;
  for (const Alternative& other : tight.decisions())
    if (other.choice == "everything kept") {
      seen = true;
      ASSERT_TRUE(other.one.has_value());
      EXPECT_FALSE(other.one->fits);
      EXPECT_GT(other.one->peak, free.peak);
    }
  EXPECT_TRUE(seen);
  for (size_t s = 0; s < step.strategy.saved.size(); s += 5)
    for (const Alternative& other : tight.actions(s))
      EXPECT_NE(other.choice, action_name(step.strategy.saved[s]));
}

// Stays of a kept tensor: one, from its op to the last reader.
TEST(Explain, LivesOfTensors) {
  const Graph network = cases::mlp(8, 3, 16);
  const Machine machine = load_machine("laptop");
  const auto cost = analytic_cost_model();
  const PreparedStep prepared = prepare_step(network, parse_baseline("single"), machine, {});
  const SimulatedStep step = simulate_step(prepared.training, prepared.strategy, machine, *cost);
  for (const SavedTensor& saved : prepared.training.saved) {
    const TensorParts parts = parts_of(step, saved.tensor);
    ASSERT_EQ(parts.stays.size(), 1U) << prepared.training.graph[saved.tensor].name;
    EXPECT_LT(parts.stays[0].begin, parts.stays[0].end);
    EXPECT_EQ(parts.most_on_device, parts.stays[0].bytes);
    EXPECT_GE(parts.stays[0].bytes, saved.bytes);
  }
}

}  // namespace
}  // namespace windlass

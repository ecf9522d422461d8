// Exact search end to end: against another exact solver, the checker, and itself under limits.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <unistd.h>

#include "tests/run_program.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/search/exact/sharding/sharding_problem.h"
#include "windlass/search/peers/pase/pase_problem.h"
#include "windlass/search/search.h"

namespace windlass {
namespace {

// The optimum that toulbar2 proves; nothing if it is not installed.
std::optional<int64_t> optimum_by_toulbar2(const CostNetwork& network) {
  if (std::system("command -v toulbar2 > /dev/null 2>&1") != 0) return std::nullopt;
  const auto path = std::filesystem::temp_directory_path() /
                    ("windlass_exact_" + std::to_string(getpid()) + ".wcsp");
  std::ofstream(path) << to_wcsp(network, "problem");
  std::FILE* pipe = popen(("toulbar2 " + path.string() + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) output += buffer;
  pclose(pipe);
  std::filesystem::remove(path);
  const size_t at = output.find("Optimum: ");
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? -1 : std::stoll(output.substr(at + 9));
}

void expect_the_same(const CostNetwork& network, const std::string& what) {
  const auto other = optimum_by_toulbar2(network);
  if (!other) GTEST_SKIP() << "toulbar2 is not installed";
  const EliminationResult found = minimise(network);
  EXPECT_TRUE(found.optimal);
  EXPECT_EQ(static_cast<int64_t>(found.cost), *other) << what;
}

// The first layers of a graph.
LayerGraph cut_down(LayerGraph graph, size_t layers) {
  graph.layers.resize(layers);
  std::erase_if(graph.edges, [&](const LayerEdge& edge) { return edge.to >= layers; });
  return graph;
}

TEST(Toulbar2, AgreesOnPaseProblems) {
  for (const int64_t devices : {4, 8, 16}) {
    const PaseMachine machine = {.devices = devices};
    for (const char* name : {"alexnet", "rnnlm"})
      expect_the_same(make_pase_problem(*pase_network(name), machine).network, name);
  }
  const PaseMachine four = {.devices = 4};
  expect_the_same(make_pase_problem(cut_down(*pase_network("inception-v3"), 44), four).network,
                  "inception-v3");
  expect_the_same(make_pase_problem(cut_down(*pase_network("transformer"), 20), four).network,
                  "transformer");
}

TEST(Toulbar2, AgreesOnShardingProblems) {
  ModelOptions options;
  options.batch = 32;
  const Model model = load_model("alexnet", options);
  const TrainingGraph training = differentiate(model.graph);
  const auto cost = analytic_cost_model();
  const Machine machine = load_machine("4x1080ti");
  const ParetoNetwork network = make_sharding_problem(training, machine, *cost).network();
  expect_the_same(weighted(network, {}), "time");
  expect_the_same(weighted(network, {1, 0.01}), "time and memory");
}

Machine with_limit(const Machine& machine, Bytes limit) {
  Machine result = machine;
  for (Device& device : result.devices) device.limit = limit;
  return result;
}

void expect_sound(const Problem& problem, const SearchResult& found) {
  const SimulatedStep step =
      simulate_step(found.training, found.strategy, problem.machine, problem.cost);
  ASSERT_EQ(step.result.status, SimStatus::Done);
  EXPECT_EQ(check_tasks(found.training, problem.machine, found.strategy, step.tasks),
            std::vector<std::string>{});
  EXPECT_EQ(check_run(step.tasks, step.times, step.result), std::vector<std::string>{});
  EXPECT_NEAR(step.step_time().value, found.step_time.value, 1e-12);
  EXPECT_LE(found.lower_bound, found.step_time);
}

// Every point of the frontier can be had: at its limit something at least as fast is found, which
// the checker accepts. Below the least limit there is nothing.
TEST(ExactSearchSlow, FrontierHoldsAtEveryLimit) {
  const auto cost = analytic_cost_model();
  for (const std::string name : {"4x1080ti", "8xa100-80g"}) {
    const Machine machine = load_machine(name);
    for (const Graph& network : {cases::transformer(8, 2, false), cases::cnn(16)}) {
      const Problem problem = {.network = network, .machine = machine, .cost = *cost};
      const SearchResult free = search_exact(problem);
      ASSERT_EQ(free.termination, Termination::Optimal);
      EXPECT_EQ(free.objective, free.objective_bound);
      expect_sound(problem, free);
      ASSERT_FALSE(free.frontier.empty());
      for (size_t i = 1; i < free.frontier.size(); ++i) {
        EXPECT_LT(free.frontier[i - 1].limit, free.frontier[i].limit);
        EXPECT_GT(free.frontier[i - 1].step_time, free.frontier[i].step_time);
      }
      EXPECT_LE(free.step_time, free.frontier.back().step_time);
      for (size_t i = 0; i < free.frontier.size(); i += 3) {
        const Machine limited = with_limit(machine, free.frontier[i].limit);
        const Problem inside = {.network = network, .machine = limited, .cost = *cost};
        const SearchResult found = search_exact(inside);
        ASSERT_NE(found.termination, Termination::Infeasible);
        EXPECT_LE(found.step_time, free.frontier[i].step_time);
        expect_sound(inside, found);
      }
      const Machine tight = with_limit(machine, Bytes(free.frontier.front().limit.value / 8));
      const SearchResult none = search_exact({.network = network, .machine = tight, .cost = *cost});
      EXPECT_EQ(none.termination, Termination::Infeasible);
      EXPECT_TRUE(none.least_limit.has_value());
    }
  }
}

Problem tight_problem(const Graph& network, const Machine& machine, const CostModel& cost) {
  return {.network = network, .machine = machine, .cost = cost};
}

// Below what keeping everything takes, ops are run again. A larger limit is not slower, but for
// what local changes on the simulator find from another start.
TEST(ExactSearch, RecomputesWhereMemoryIsShort) {
  constexpr double kLocal = 1.02;
  const auto cost = analytic_cost_model();
  const Graph network = cases::transformer(32, 1, false);
  const Machine machine = load_machine("1x1080ti");
  const SearchResult free = search_exact(tight_problem(network, machine, *cost));
  EXPECT_TRUE(free.frontier_recompute);
  EXPECT_EQ(free.recompute_left_out, "");
  const auto recomputed = [](const SearchResult& found) {
    return std::ranges::count(found.strategy.saved, MemoryAction::Recompute);
  };
  EXPECT_EQ(recomputed(free), 0);
  int64_t most = 0;
  Seconds before(std::numeric_limits<double>::infinity());
  const size_t step = free.frontier.size() / 4 + 1;
  for (size_t i = 0; i < free.frontier.size(); i += step) {
    const Machine limited = with_limit(machine, free.frontier[i].limit);
    const Problem inside = tight_problem(network, limited, *cost);
    const SearchResult found = search_exact(inside);
    ASSERT_NE(found.termination, Termination::Infeasible);
    EXPECT_LE(found.step_time, free.frontier[i].step_time);
    EXPECT_LE(found.step_time.value, kLocal * before.value);
    expect_sound(inside, found);
    before = found.step_time;
    most = std::max<int64_t>(most, recomputed(found));
  }
  EXPECT_GT(most, 0);
}

// Where its tables are too large, the trade is what it is without recomputation, and says so.
TEST(ExactSearch, SaysWhereRecomputationIsLeftOut) {
  const auto cost = analytic_cost_model();
  const Machine machine = load_machine("4x3090");
  const Graph network = cases::transformer(8, 2, false);
  const Problem problem = tight_problem(network, machine, *cost);
  const SearchResult large = search_exact(problem, {.effort = 0.001});
  EXPECT_FALSE(large.frontier_recompute);
  EXPECT_NE(large.recompute_left_out.find("cells"), std::string::npos);
  SearchOptions off;
  off.fixed.recompute = RecomputePolicy::None;
  const SearchResult fixed = search_exact(problem, off);
  EXPECT_FALSE(fixed.frontier_recompute);
  EXPECT_EQ(fixed.recompute_left_out, "ruled out");
}

TEST(ExactSearch, DoesNotDependOnThreads) {
  const auto cost = analytic_cost_model();
  const Machine machine = load_machine("4x3090");
  const Graph network = cases::transformer(8, 2, true);
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchResult one = search_exact(problem, {.threads = 1});
  const SearchResult three = search_exact(problem, {.threads = 3});
  EXPECT_EQ(one.strategy.ops, three.strategy.ops);
  EXPECT_EQ(one.strategy.shardings, three.strategy.shardings);
  EXPECT_EQ(one.step_time, three.step_time);
}

TEST(ExactProgram, PlansGraphsOfLayers) {
  const ProgramResult run = run_windlass(
      {"plan", "pase:alexnet", "--search", "exact", "--cost", "pase", "--devices", "8", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto parsed = nlohmann::json::parse(run.out);
  EXPECT_EQ(parsed["termination"], "optimal");
  EXPECT_EQ(parsed["cost"].get<double>(), 97098296512);
  EXPECT_EQ(parsed["gap"].get<double>(), 0);
  EXPECT_EQ(parsed["vertices"].size(), 14U);
  EXPECT_GT(parsed["search"]["largest_table"].get<double>(), 0);
}

TEST(ExactProgram, SaysWhatIsMissing) {
  EXPECT_EQ(run_windlass({"plan", "pase:alexnet", "--cost", "pase"}).exit_code, 1);
  EXPECT_EQ(run_windlass({"plan", "pase:nothing", "--cost", "pase", "--devices", "4"}).exit_code,
            1);
  EXPECT_EQ(run_windlass({"plan", "pase:alexnet", "--devices", "4"}).exit_code, 1);
  EXPECT_EQ(run_windlass({"plan", "alexnet", "--cost", "pase", "--on", "4x3090"}).exit_code, 1);
  EXPECT_EQ(run_windlass({"plan", "alexnet", "--on", "4x3090", "--search", "none"}).exit_code, 1);
  EXPECT_EQ(run_windlass({"export", "pase:alexnet", "--to", "wcsp"}).exit_code, 1);
}

TEST(ExactProgram, PlansForSeveralDevices) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("windlass_exact_plan_" + std::to_string(getpid()) + ".json");
  const ProgramResult run = run_windlass(
      {"plan", "mlp", "--on", "4x3090", "--search", "exact", "-o", path.string(), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto parsed = nlohmann::json::parse(run.out);
  EXPECT_EQ(parsed["search"]["method"], "exact");
  EXPECT_FALSE(parsed["frontier"].empty());
  EXPECT_EQ(run_windlass({"check", path.string()}).exit_code, 0);
  std::filesystem::remove(path);
  const ProgramResult tight = run_windlass({"plan", "mlp", "--on", "4x3090", "--memory", "100KiB",
                                            "--effort", hurried() ? "0.02" : "1", "--json"});
  EXPECT_EQ(tight.exit_code, 2);
  EXPECT_GT(nlohmann::json::parse(tight.out)["minimum_limit_bytes"].get<int64_t>(), 102400);
}

}  // namespace
}  // namespace windlass

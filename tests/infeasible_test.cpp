// Where nothing fits, the answer says where it fails and what helps, and what it says is true.

#include <algorithm>
#include <string>

#include "tests/run_program.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/search/advice/advice.h"

namespace windlass {
namespace {

using nlohmann::json;

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find(' ', at), text.size());
    list.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

TEST(InfeasibleProgramSlow, WhatHelpsHelps) {
  const std::vector<std::string> asked = {
      "plan",  "mlp",          "--on", "laptop",   "--batch", "4096",  "--memory",
      "17MiB", "--time-limit", "3600", "--effort", "0.01",    "--json"};
  const ProgramResult run = run_windlass(asked);
  ASSERT_EQ(run.exit_code, 2) << run.err;
  const json answer = json::parse(run.out);
  const auto least = answer["minimum_limit_bytes"].get<int64_t>();
  EXPECT_GT(least, answer["limit_bytes"].get<int64_t>());
  EXPECT_FALSE(answer["failure"]["memory"].get<std::string>().empty());
  EXPECT_FALSE(answer["failure"]["alive"].empty());
  EXPECT_GT(answer["failure"]["missing_bytes"].get<int64_t>(), 0);
  std::vector<std::string> followed;
  for (const json& advice : answer["advice"]) {
    if (!advice["fits"].get<bool>()) {
      EXPECT_LT(advice["minimum_limit_bytes"].get<int64_t>(), least);
      continue;
    }
    const std::vector<std::string> flags = words(advice["flags"].get<std::string>());
    if (flags.size() != 2 || flags[0] == "--on") continue;
    std::vector<std::string> changed = asked;
    const auto there = std::ranges::find(changed, flags[0]);
    if (there != changed.end())
      *(there + 1) = flags[1];
    else
      changed.insert(changed.end(), flags.begin(), flags.end());
    const ProgramResult again = run_windlass(changed);
    EXPECT_EQ(again.exit_code, 0) << advice.dump() << again.out << again.err;
    followed.push_back(flags[0]);
  }
  for (const char* flag : {"--memory", "--batch"})
    EXPECT_NE(std::ranges::find(followed, flag), followed.end()) << flag;
}

TEST(InfeasibleProgram, SaysWhereAndWhat) {
  const ProgramResult run = run_windlass({"plan", "mlp", "--on", "4x3090", "--memory", "1MiB",
                                          "--effort", "0.01", "--time-limit", "3600"});
  ASSERT_EQ(run.exit_code, 2) << run.err;
  for (const char* part :
       {"no plan fits", "least limit", "alive in gpu0..gpu3", "what helps", "--memory"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part << "\n" << run.out;
}

// A search that was cut has not looked everywhere, and says so; one that was not does not.
TEST(InfeasibleProgram, SaysThatTheTimeLimitCut) {
  const auto asked = [](const char* seconds, bool as_json) {
    std::vector<std::string> words = {"plan",     "gpt2", "--on",         "4x1080ti",
                                      "--batch",  "16",   "--memory",     "20MiB",
                                      "--effort", "0.01", "--time-limit", seconds};
    if (as_json) words.push_back("--json");
    ProgramResult run = run_windlass(words);
    EXPECT_EQ(run.exit_code, 2) << run.err;
    return run.out;
  };
  const json cut = json::parse(asked("0.000001", true)), whole = json::parse(asked("3600", true));
  EXPECT_NE(cut.value("time_limit_cut", "").find("structures"), std::string::npos) << cut.dump();
  EXPECT_FALSE(whole.contains("time_limit_cut")) << whole["time_limit_cut"];
  EXPECT_LE(whole["minimum_limit_bytes"].get<int64_t>(), cut["minimum_limit_bytes"].get<int64_t>());
  EXPECT_NE(asked("0.000001", false).find("the time limit cut short: "), std::string::npos);
}

// Strategies that keep everything do not fit because the user forbids the rest.
TEST(Advice, DecisionsGivenBackHelp) {
  const Graph network = cases::transformer(8, 3, true);
  Machine machine = load_machine("laptop");
  const auto cost = analytic_cost_model();
  const Problem free = {.network = network, .machine = machine, .cost = *cost};
  SearchOptions fixed;
  fixed.micro_batches = 1;
  fixed.fixed.recompute = RecomputePolicy::None;
  fixed.fixed.offload = fixed.fixed.host_weights = fixed.fixed.host_update = false;
  const SearchResult plain = search_one_device(free, fixed);
  ASSERT_NE(plain.termination, Termination::Infeasible);
  for (Device& device : machine.devices)
    device.limit = Bytes(plain.frontier.back().limit.value / 2);
  const SearchResult none = search_one_device(free, fixed);
  ASSERT_EQ(none.termination, Termination::Infeasible);
  const AdviceProblem problem = {
      .problem = free, .options = fixed, .frugal = none.strategy, .least_limit = none.least_limit};
  const std::vector<Advice> advice = advise(problem, Seconds(3600));
  ASSERT_FALSE(advice.empty());
  bool all = false, limit = false;
  for (const Advice& entry : advice) {
    all = all || (entry.fits && entry.change.starts_with("all that is fixed"));
    limit = limit || (entry.fits && entry.flags.starts_with("--memory"));
    EXPECT_TRUE(entry.fits ? entry.step_time.value > 0 : entry.least_limit < *none.least_limit)
        << entry.change;
  }
  EXPECT_TRUE(all);
  EXPECT_TRUE(limit);
  // Sorted: what fits comes first.
  for (size_t i = 1; i < advice.size(); ++i) EXPECT_GE(advice[i - 1].fits, advice[i].fits);
}

// A host without memory, and devices too small to do without it.
TEST(Advice, SmallHosts) {
  const Graph network = cases::mlp(32, 4, 64);
  Machine machine = load_machine("laptop");
  for (Node& node : machine.nodes) node.memory = Bytes(1024);
  for (Device& device : machine.devices) device.limit = Bytes(1024);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchOptions options = {.effort = 0.01};
  const SearchResult none = search_one_device(problem, options);
  ASSERT_EQ(none.termination, Termination::Infeasible);
  const std::vector<Advice> advice = advise({.problem = problem,
                                             .options = options,
                                             .frugal = none.strategy,
                                             .least_limit = none.least_limit},
                                            Seconds(20));
  EXPECT_TRUE(std::ranges::any_of(advice, [](const Advice& entry) {
    return entry.fits && entry.flags.starts_with("--memory");
  }));
}

TEST(Advice, EndsWhenAsked) {
  const Graph network = cases::mlp(32, 4, 64);
  Machine machine = load_machine("laptop");
  for (Device& device : machine.devices) device.limit = Bytes(1024);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  SearchOptions options = {.effort = 0.01};
  const SearchResult none = search_one_device(problem, options);
  ASSERT_EQ(none.termination, Termination::Infeasible);
  options.stop = [] { return true; };
  EXPECT_TRUE(advise({.problem = problem,
                      .options = options,
                      .frugal = none.strategy,
                      .least_limit = none.least_limit},
                     Seconds(20))
                  .empty());
}

}  // namespace
}  // namespace windlass

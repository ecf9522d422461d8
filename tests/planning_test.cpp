// Plans for several devices: never above the limit, accepted by the checker, shown beside others.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include "tests/run_program.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/search/search.h"

namespace windlass {
namespace {

Machine with_limit(const std::string& name, Bytes limit) {
  Machine machine = load_machine(name);
  for (Device& device : machine.devices) device.limit = limit;
  return machine;
}

// One network for each machine; all for all where there is time.
TEST(PlanningSlow, NeverAboveTheLimit) {
  const auto cost = analytic_cost_model();
  const Graph networks[] = {cases::transformer(8, 3, true), cases::cnn(16, true),
                            cases::mlp(32, 4, 64)};
  int feasible = 0, infeasible = 0, tried = 0;
  for (const std::string name : {"4x3090", "8x1080ti", "4xv100-16g"})
    for (const Graph& network : networks) {
      if (!thorough() && tried++ % 4 != 0) continue;
      const Machine free = load_machine(name);
      const SearchResult unlimited =
          search_grid({.network = network, .machine = free, .cost = *cost});
      ASSERT_NE(unlimited.termination, Termination::Infeasible);
      ASSERT_FALSE(unlimited.frontier.empty());
      const int64_t peak = unlimited.frontier.back().limit.value;
      for (const double share : {1.0, 0.6, 0.3, 0.1, 0.01}) {
        const Machine machine =
            with_limit(name, Bytes(static_cast<int64_t>(share * static_cast<double>(peak))));
        const Problem problem = {.network = network, .machine = machine, .cost = *cost};
        const SearchResult found = search_all(problem, {.effort = 0.02});
        for (size_t i = 1; i < found.frontier.size(); ++i) {
          EXPECT_LT(found.frontier[i - 1].limit, found.frontier[i].limit);
          EXPECT_GT(found.frontier[i - 1].step_time, found.frontier[i].step_time);
        }
        if (found.termination == Termination::Infeasible) {
          ++infeasible;
          ASSERT_TRUE(found.least_limit.has_value());
          EXPECT_GT(found.least_limit->value, machine.devices[0].limit.value);
          continue;
        }
        ++feasible;
        const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
        ASSERT_EQ(step.result.status, SimStatus::Done) << name << " " << share;
        EXPECT_EQ(check_tasks(found.training, machine, found.strategy, step.tasks),
                  std::vector<std::string>{});
        EXPECT_EQ(check_run(step.tasks, step.times, step.result), std::vector<std::string>{});
        EXPECT_LE(found.lower_bound, found.step_time);
      }
    }
  EXPECT_GT(feasible, thorough() ? 10 : 3);
  EXPECT_GT(infeasible, 0);
}

TEST(Planning, MethodsByName) {
  const Machine four = load_machine("4x3090");
  EXPECT_EQ(find_search_method("exact", four).name, "exact");
  EXPECT_THROW(find_search_method("one-device", four), Error);
  EXPECT_THROW(find_search_method("oracle", four), Error);
}

TEST(PlanningProgram, Compares) {
  const ProgramResult run = run_windlass({"compare", "mlp", "--on", "4x3090", "--memory", "40MiB",
                                          "--effort", hurried() ? "0.02" : "1", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const auto answer = nlohmann::json::parse(run.out);
  EXPECT_TRUE(answer["windlass"]["valid"].get<bool>());
  const double found = answer["windlass"]["step_time_s"].get<double>();
  bool some = false;
  double usual = 1e30, tuned = 1e30;
  for (const auto& row : answer["strategies"]) {
    if (!row["possible"].get<bool>() || !row["valid"].get<bool>()) continue;
    some = true;
    const std::string name = row["strategy"];
    const double time = row["step_time_s"];
    if (row["tuned"]) {
      tuned = std::min(tuned, time);
      EXPECT_EQ(windlass_json({"simulate", "mlp", "--on", "4x3090", "--memory", "40MiB",
                               "--strategy", name})["step_time_s"],
                time)
          << name;
    } else if (name != "lru" && name != "one-weird-trick") {
      usual = std::min(usual, time);
    }
    EXPECT_LE(found, row["step_time_s"].get<double>() * (1 + 1e-9)) << row["strategy"];
  }
  EXPECT_TRUE(some);
  EXPECT_LE(tuned, usual * (1 + 1e-9)) << "tuning finds what needs no tuning";
  EXPECT_EQ(run_windlass({"compare", "mlp", "--on", "4x3090", "--memory", "1KiB", "--effort",
                          hurried() ? "0.02" : "1"})
                .exit_code,
            2);
  EXPECT_EQ(run_windlass({"compare", "mlp"}).exit_code, 1);
}

// A small batch is fastest on few devices: the plan, its file and its explanation say so.
TEST(PlanningProgram, SaysWhichDevicesAreLeftOut) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("windlass_few_" + std::to_string(getpid()) + ".json"))
                               .string();
  const std::vector<std::string> arguments = {"plan",   "resnet-18", "--batch", "4",  "--on",
                                              "4x3090", "--search",  "grid",    "-o", path};
  const ProgramResult text = run_windlass(arguments);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  std::vector<std::string> for_programs = arguments;
  for_programs.push_back("--json");
  const auto shown = nlohmann::json::parse(run_windlass(for_programs).out);
  const auto& unused = shown["decisions"]["unused_devices"];
  ASSERT_GT(unused.size(), 0U);
  ASSERT_LT(unused.size(), 4U);
  const std::string uses = "uses " + std::to_string(4 - unused.size()) + " of 4 devices (gpu0";
  EXPECT_NE(text.out.find(uses), std::string::npos) << text.out;
  for (const auto& device : shown["devices"]) {
    const bool idle = std::ranges::find(unused, device["name"]) != unused.end();
    EXPECT_EQ(device["peak_bytes"].get<int64_t>() == 0, idle) << device["name"];
  }
  EXPECT_EQ(run_windlass({"check", path}).exit_code, 0);
  const ProgramResult why = run_windlass({"explain", path, "--json"});
  ASSERT_EQ(why.exit_code, 0) << why.err;
  EXPECT_EQ(nlohmann::json::parse(why.out)["structure"]["unused_devices"], unused);
  EXPECT_NE(run_windlass({"explain", path}).out.find("not used"), std::string::npos);
  std::filesystem::remove(path);
}

// A chain of four equal layers whose weights do not fit one device.
std::string write_profile() {
  nlohmann::json profile = {{"R", 4},
                            {"u_fwd", {1, 2, 4}},
                            {"u_bwd", {1, 2, 4}},
                            {"W", {400000000, 400000000, 400000000, 1000}},
                            {"B", {0, 0, 0, 0}},
                            {"K", {800000000, 800000000, 800000000, 2000}},
                            {"X_bytes_u1", {1000000, 1000000, 1000000, 1000000}},
                            {"upd_cpu_s", {0.01, 0.01, 0.01, 0.0001}}};
  for (const int u : {1, 2, 4}) {
    const std::string key = std::to_string(u);
    for (const char* name : {"fwd_s", "bwd_incl_recompute_s", "fwd_mem", "bwd_mem"})
      for (int layer = 0; layer < 4; ++layer) {
        const bool time = std::string(name).ends_with("_s");
        const double value = time ? 0.02 * u * (name[0] == 'f' ? 1 : 3) : 450000000.0 + 3000000 * u;
        profile[name][key].push_back(time ? nlohmann::json(value)
                                          : nlohmann::json(static_cast<int64_t>(value)));
      }
  }
  const auto path = std::filesystem::temp_directory_path() /
                    ("windlass_profile_" + std::to_string(getpid()) + ".json");
  std::ofstream(path) << profile.dump();
  return path.string();
}

TEST(PlanningProgram, PacksOfLayers) {
  const std::string path = write_profile();
  for (const std::string cost : {"windlass", "harmony"}) {
    const ProgramResult run =
        run_windlass({"plan", path, "--on", "4x1080ti", "--batch", "8", "--search", "harmony",
                      "--cost", cost, "--memory", "2GB", "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const auto answer = nlohmann::json::parse(run.out);
    EXPECT_GT(answer["step_time_s"].get<double>(), 0);
    EXPECT_FALSE(answer["harmony"]["backward_packs"].empty());
    for (const auto& device : answer["devices"])
      EXPECT_LE(device["peak_bytes"].get<int64_t>(), device["limit_bytes"].get<int64_t>());
  }
  EXPECT_EQ(run_windlass({"plan", path, "--on", "4x1080ti", "--batch", "8", "--memory", "300MB"})
                .exit_code,
            2);
  EXPECT_EQ(run_windlass({"plan", path, "--on", "4x1080ti", "--search", "harmony"}).exit_code, 1);
  std::filesystem::remove(path);
}

// Of the time that a plan took, what went into kernels is said apart.
TEST(Planning, SaysHowLongItMeasured) {
  for (const std::string machine : {"local", "4x3090"}) {
    std::vector<std::string> arguments = {"plan",  "mlp",          "--batch", "4",     "--on",
                                          machine, "--time-limit", "1",       "--json"};
    if (machine == "local") arguments.insert(arguments.end(), {"--devices", "1"});
    const ProgramResult result = run_windlass(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const auto search = nlohmann::json::parse(result.out)["search"];
    EXPECT_EQ(search.contains("measuring_seconds"), machine == "local") << result.out;
    if (machine != "local") continue;
    EXPECT_GT(search["measuring_seconds"], 0);
    EXPECT_LE(search["measuring_seconds"], search["seconds"]);
  }
}

// How many cards of which size: a table and the same for programs; mistakes are named.
TEST(PlanFrontier, SaysWhatDevicesAndLimitsGive) {
  const std::vector<std::string> asked = {"plan",       "gpt2:layers=1,hidden=64,heads=2,vocab=100",
                                          "--seq",      "32",
                                          "--batch",    "8",
                                          "--on",       "4x1080ti",
                                          "--frontier", "--effort",
                                          "0.02"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = asked;
    all.insert(all.end(), more.begin(), more.end());
    return run_windlass(all);
  };
  const ProgramResult printed = with({"--limits", "1KiB", "100%", "2MiB", "--json"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  const nlohmann::json cells = nlohmann::json::parse(printed.out)["cells"];
  ASSERT_EQ(cells.size(), 9u);
  EXPECT_EQ(cells[0]["limit_bytes"], 1024);
  EXPECT_EQ(cells[0]["fits"], false);
  EXPECT_GT(cells[0]["least_limit_bytes"], 1024);
  EXPECT_LE(cells[6]["least_limit_bytes"], cells[0]["least_limit_bytes"]);
  EXPECT_EQ(cells[8]["devices"], 4);
  EXPECT_EQ(cells[8]["fits"], true);
  EXPECT_LE(cells[8]["step_time_s"], cells[2]["step_time_s"]);
  const ProgramResult text = with({"--limits", "1KiB"});
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_NE(text.out.find("4 devices"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("nothing was found below"), std::string::npos) << text.out;
  EXPECT_EQ(with({"--limits", "0"}).exit_code, 1);
  EXPECT_EQ(with({"--limits", "much"}).exit_code, 1);
  EXPECT_EQ(with({"-o", "plan.json"}).exit_code, 1);
  const ProgramResult layers =
      run_windlass({"plan", "pase:rnnlm", "--cost", "pase", "--devices", "4", "--frontier"});
  EXPECT_EQ(layers.exit_code, 1);
  EXPECT_NE(layers.err.find("--frontier"), std::string::npos) << layers.err;
}

}  // namespace
}  // namespace windlass

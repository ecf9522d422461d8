// Task graphs of small steps, as people and programs read them, held against tests/golden/tasks.
// `make golden` writes those files anew; what changed is then in `git diff`.

#include "windlass/report/task_listing.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_places.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/packs/random_chain.h"
#include "windlass/report/json.h"
#include "windlass/report/labels.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

struct GoldenCase {
  std::string name;
  std::string strategy;
  int devices = 2;
  Graph graph = cases::mlp(4, 2, 8);
};

// Statistics of a batch that is split are exchanged.
Graph batch_norm() {
  cases::Net net("batch-norm");
  const TensorId x = net.linear(net.b.input("x", cases::f32({4, 8})), 8, "first");
  const TensorId y =
      net.b.op(OpKind::BatchNorm, BatchNormAttrs{},
               {x, net.b.weight("scale", cases::f32({8})), net.b.weight("bias", cases::f32({8})),
                net.b.buffer("mean", cases::f32({8})), net.b.buffer("var", cases::f32({8}))},
               "norm");
  return net.finish(net.linear(y, 4, "last"));
}

std::vector<GoldenCase> golden_cases() {
  return {
      {.name = "single", .strategy = "single", .devices = 1},
      {.name = "data_parallel", .strategy = "data-parallel"},
      {.name = "tensor_parallel", .strategy = "megatron:tp=2"},
      {.name = "pipeline", .strategy = "1f1b:stages=2,micro-batches=2"},
      {.name = "zero1", .strategy = "zero:stage=1"},
      {.name = "zero2", .strategy = "zero:stage=2"},
      {.name = "zero3", .strategy = "zero:stage=3"},
      {.name = "offload", .strategy = "single:offload=on", .devices = 1},
      {.name = "recompute", .strategy = "recompute-all"},
      {.name = "host_update", .strategy = "data-parallel:host-update=on"},
      {.name = "host_weights", .strategy = "single:host-update=on,host-weights=on", .devices = 1},
      {.name = "packs", .strategy = "harmony:mode=pp,packs=2,micro=2"},
      {.name = "views", .strategy = "data-parallel", .graph = cases::views(4)},
      {.name = "coupled", .strategy = "data-parallel", .graph = batch_norm()}};
}

struct GoldenStep {
  Machine machine;
  PreparedStep step;
  TaskGraph tasks;

  TaskListing listing() const { return {tasks, machine, &step.training.graph}; }
};

GoldenStep lower_case(const GoldenCase& golden) {
  Machine machine = cases::machine(golden.devices);
  PreparedStep step = prepare_step(golden.graph, parse_baseline(golden.strategy), machine,
                                   {.optimizer = OptimizerKind::Adam});
  TaskGraph tasks = lower(step.training, step.strategy, machine);
  return {std::move(machine), std::move(step), std::move(tasks)};
}

std::string first_difference(const std::string& found, const std::string& expected) {
  std::istringstream a(found), b(expected);
  std::string found_line, expected_line;
  for (int number = 1;; ++number) {
    const bool more_found = static_cast<bool>(std::getline(a, found_line));
    const bool more_expected = static_cast<bool>(std::getline(b, expected_line));
    if (!more_found && !more_expected) return "";
    if (!more_found) found_line = "(the end)";
    if (!more_expected) expected_line = "(the end)";
    if (more_found != more_expected || found_line != expected_line)
      return fmt::format("line {}:\n  found    {}\n  expected {}", number, found_line,
                         expected_line);
  }
}

TEST(TaskListing, IsThatOfTheGoldenFiles) {
  for (const GoldenCase& golden : golden_cases()) {
    const GoldenStep step = lower_case(golden);
    const std::string text =
        fmt::format("{} of {} on {} devices\n\n{}", golden.strategy, golden.graph.name,
                    golden.devices, tasks_text(step.listing()));
    const std::filesystem::path path =
        std::filesystem::path(source_folder()) / "tests/golden/tasks" / (golden.name + ".txt");
    if (std::getenv("WINDLASS_REWRITE_GOLDEN") != nullptr) {
      std::ofstream(path) << text;
      continue;
    }
    std::ifstream file(path);
    const std::string expected(std::istreambuf_iterator<char>(file), {});
    const std::string difference = first_difference(text, expected);
    EXPECT_EQ(difference, "") << path << "\nif the change is meant: make golden";
  }
}

// Both forms have as many tasks, buffers and uses as the graph, and name the same of each.
TEST(TaskListing, TellsProgramsTheSame) {
  for (const GoldenCase& golden : golden_cases()) {
    const GoldenStep step = lower_case(golden);
    const TaskGraph& graph = step.tasks;
    const auto json = nlohmann::json::parse(json_text(tasks_json(step.listing())));
    ASSERT_EQ(json["tasks"].size(), graph.size());
    ASSERT_EQ(json["buffers"].size(), graph.buffers.size());
    for (size_t i = 0; i < graph.size(); ++i) {
      const TaskId id(i);
      const auto& task = json["tasks"][i];
      EXPECT_EQ(task["kind"], task_kind_name(graph[id].kind));
      EXPECT_EQ(task["uses"].size(), graph.uses_of(id).size());
      EXPECT_EQ(task["after"].size(), graph.predecessors_of(id).size());
      EXPECT_EQ(task["lanes"].size(), graph.lanes_of(id).size());
      EXPECT_EQ(task.contains("traffic"), moves(graph[id].kind));
      for (size_t u = 0; u < graph.uses_of(id).size(); ++u) {
        const Use& use = graph.uses_of(id)[u];
        EXPECT_EQ(task["uses"][u]["buffer"], use.buffer.value);
        EXPECT_EQ(task["uses"][u]["as"], use_kind_name(use.kind));
        EXPECT_EQ(task["uses"][u]["adds"], use.adds);
        EXPECT_EQ(task["uses"][u].contains("views"), use.view >= 0);
      }
    }
    for (size_t b = 0; b < graph.buffers.size(); ++b) {
      EXPECT_EQ(json["buffers"][b]["bytes"], graph.buffers[b].bytes.value);
      EXPECT_EQ(json["buffers"][b]["layout"].is_null(), graph.buffers[b].layout < 0);
    }
  }
}

// Packs of layers have names of their own, and neither groups nor layouts.
TEST(TaskListing, ListsPacksOfLayers) {
  Rng rng(5);
  const LayerProfile profile = synthetic_profile(rng, 6);
  const Machine machine = cases::machine(2);
  ChainTables chain(profile);
  PackLowering lowering(chain, machine);
  PackStrategy strategy = plain_packs({{0, 1}, {2, 3}}, {{0, 1}, {2, 3}, {4, 5}});
  strategy.replicas = 2;
  const PackSteps* steps = lowering.lower(strategy, 4, 1);
  ASSERT_TRUE(steps);
  const TaskListing listing = {
      .graph = *steps->graph,
      .machine = machine,
      .task_name = [&](TaskId id) { return pack_label(steps->tasks[id.index()]); },
      .buffer_name = [&](BufferId id) { return pack_label(steps->buffers[id.index()]); }};
  const std::string text = tasks_text(listing);
  for (const char* part : {"swap-in weights of layers 0-1\n", "weights of layers 0-5",
                           "forward input of layers 0-1, samples 0-", "host-update"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const auto json = nlohmann::json::parse(json_text(tasks_json(listing)));
  ASSERT_EQ(json["tasks"].size(), steps->graph->size());
  EXPECT_EQ(json["tasks"][0]["name"], pack_label(steps->tasks[0]));
  EXPECT_EQ(json["buffers"][0]["name"], pack_label(steps->buffers[0]));
}

}  // namespace
}  // namespace windlass

#include "windlass/plan/plan.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

Plan plan_for(const Graph& graph, const std::string& strategy, const Machine& machine) {
  const PreparedStep step = prepare_step(graph, parse_baseline(strategy), machine, {});
  ModelRequest request{.source = "zoo:" + graph.name};
  Plan plan = make_plan(request, graph, step.samples, step.training, machine, step.strategy);
  plan.prediction = {.termination = "feasible",
                     .step_time = Seconds(0.125),
                     .device_peaks = std::vector<int64_t>(machine.devices.size(), 4096),
                     .host_peaks = std::vector<int64_t>(machine.nodes.size(), 512),
                     .frontier = {{Bytes(4096), Seconds(0.25)}, {Bytes(8192), Seconds(0.125)}}};
  plan.provenance = {.windlass = "0.1", .method = "given", .seed = 7, .cost = "analytic"};
  return plan;
}

std::string message_of(const std::string& text) {
  try {
    plan_from_json(text, "x.plan");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::vector<Sharding> by_op(const Strategy& strategy) {
  std::vector<Sharding> list;
  for (int32_t index : strategy.ops) list.push_back(strategy.shardings[static_cast<size_t>(index)]);
  return list;
}

void expect_same(const Strategy& a, const Strategy& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.micro_batches, b.micro_batches);
  EXPECT_EQ(a.schedule, b.schedule);
  EXPECT_EQ(a.groups, b.groups);
  EXPECT_EQ(a.stages, b.stages);
  EXPECT_EQ(by_op(a), by_op(b));
  EXPECT_EQ(a.saved, b.saved);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.bucket, b.bucket);
  EXPECT_EQ(a.virtual_memory, b.virtual_memory);
  EXPECT_EQ(a.prefetch, b.prefetch);
}

TEST(Plan, ReadsLikeThis) {
  const std::string text =
      plan_to_json(plan_for(cases::mlp(16, 2), "megatron:tp=2", cases::machine(4)));
  EXPECT_THAT(text, HasSubstr(R"(  "strategy": {
    "name": "megatron:tp=2",
    "micro_batches": 1,
    "schedule": "all-at-once",
    "bucket_bytes": 26214400,
    "prefetch": 2,
    "virtual_memory": false,
    "groups": ["0-3"],
    "stages": [{"first": 0, "count": 6, "group": 0}],
    "ops": [
      {"first": 0, "count": 1, "split": "m0/2 n/2"},
      {"first": 1, "count": 1, "split": "d0/2 d1/2"},
      {"first": 2, "count": 1, "split": "m0/2 k/2"},
      {"first": 3, "count": 1, "split": "d0/2 copy/2"},)"))
      << text;
  EXPECT_THAT(text, HasSubstr("\"devices\": [{\"first\": 0, \"count\": 4, \"peak_bytes\": 4096}]"));
}

TEST(Plan, KeepsEverything) {
  const Machine machine = cases::machine(2, 2);
  const Graph graph = cases::transformer(8, 1, false);
  Plan plan = plan_for(graph, "1f1b:stages=2,micro-batches=2", machine);
  plan.model.batch = 8;
  plan.model.sequence = 16;
  plan.model.image = 224;
  plan.model.dimensions = {{"past", 0}, {"tokens", 16}};
  plan.model.loss = "cross-entropy:axis=1";
  plan.model.dtype = DType::BF16;
  plan.model.freeze = {"embed*", "x\"y"};
  plan.model.train = {"*.cos"};
  plan.model.fuse = false;
  plan.model.as_exported = true;
  plan.model.training = {OptimizerKind::Momentum, false, DType::F32};
  plan.strategy.virtual_memory = true;
  const std::string text = plan_to_json(plan);
  const Plan again = plan_from_json(text, "x.plan");
  EXPECT_EQ(again.model, plan.model);
  EXPECT_EQ(again.samples, 8);
  EXPECT_EQ(again.splits, plan.splits);
  EXPECT_EQ(again.prediction, plan.prediction);
  EXPECT_EQ(again.provenance, plan.provenance);
  EXPECT_EQ(fingerprint(again.machine), fingerprint(machine));
  EXPECT_NO_THROW(check_model(again, graph));
  EXPECT_NO_THROW(check_machine(again, machine));
  EXPECT_EQ(plan_to_json(again), text);
}

TEST(Plan, NamesOtherModelsAndMachines) {
  const Plan plan = plan_for(cases::mlp(), "data-parallel", cases::machine(2));
  const auto message = [](auto&& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      return error.message();
    }
    return "";
  };
  EXPECT_THAT(message([&] { check_model(plan, cases::mlp(16, 5)); }), HasSubstr("another model"));
  EXPECT_THAT(message([&] { check_model(plan, cases::mlp(32)); }), HasSubstr("another model"));
  EXPECT_THAT(message([&] { check_machine(plan, cases::machine(4)); }),
              HasSubstr("another machine: \"test1x2\""));
  EXPECT_NE(fingerprint(cases::machine(2)), fingerprint(cases::machine(2, 1, "4GiB")));
  EXPECT_NE(fingerprint(cases::machine(2)), fingerprint(cases::machine(1, 2)));
}

TEST(Plan, RandomStrategiesRoundTrip) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Rng rng(seed);
    const Graph graph = seed % 3 == 0   ? cases::mlp(16, 3)
                        : seed % 3 == 1 ? cases::cnn(16, true)
                                        : cases::transformer(8, 2);
    const Machine machine = cases::machine(static_cast<int>(rng.integer(1, 8)), seed % 2 ? 1 : 3);
    const TrainingGraph training = differentiate(graph);
    const Strategy strategy = cases::random_strategy(
        training, machine, rng, {.in_turn = true, .blocks = true, .unequal = seed % 2 == 0});
    Plan plan = make_plan({.source = "x"}, graph, 16, training, machine, strategy);
    plan.prediction = {"feasible", Seconds(rng.uniform()),
                       std::vector<int64_t>(machine.devices.size(), rng.integer(0, 1 << 30)),
                       std::vector<int64_t>(machine.nodes.size(), 1)};
    const std::string text = plan_to_json(plan);
    const Plan again = plan_from_json(text, "x.plan");
    EXPECT_EQ(plan_to_json(again), text) << seed;
    expect_same(strategy_of(again, training), strategy);
  }
}

TEST(Plan, MessagesNameTheKey) {
  const std::string text = plan_to_json(plan_for(cases::mlp(), "data-parallel", cases::machine(2)));
  EXPECT_EQ(message_of(text), "no error");
  EXPECT_THAT(message_of(replaced(text, "\"micro_batches\"", "\"micro_batchs\"")),
              HasSubstr("x.plan: strategy: \"micro_batchs\" is not a known key (did you mean "
                        "\"micro_batches\"?)"));
  EXPECT_THAT(
      message_of(replaced(text, "\"all-at-once\"", "\"all-at-onc\"")),
      HasSubstr("strategy: \"schedule\" is \"all-at-onc\" (did you mean \"all-at-once\"?)"));
  EXPECT_THAT(message_of(replaced(text, "\"0-1\"", "\"0-7\"")),
              HasSubstr("strategy.groups[0]: device 7 of \"0-7\" is not there"));
  EXPECT_THAT(message_of(replaced(text, "\"action\": \"keep\"", "\"action\": \"kept\"")),
              HasSubstr("strategy.saved[0]: \"action\" is \"kept\""));
  EXPECT_THAT(message_of(replaced(text, "\"version\": 1", "\"version\": 9")),
              HasSubstr("\"version\" is 9, this program reads version 1"));
  EXPECT_THAT(message_of(replaced(text, "\"memory\": 8589934592", "\"memory\": 17179869184")),
              HasSubstr("it was edited"));
  EXPECT_THAT(message_of("{}"), HasSubstr("\"format\" is missing"));
  EXPECT_THAT(message_of(""), HasSubstr("not valid JSON"));
}

TEST(Plan, LoopsThatAreNotThere) {
  const Machine machine = cases::machine(2);
  const std::string text = plan_to_json(plan_for(cases::mlp(), "data-parallel", machine));
  const Plan plan =
      plan_from_json(replaced(text, "\"split\": \"m0/2", "\"split\": \"q/2"), "x.plan");
  try {
    strategy_of(plan, differentiate(cases::mlp()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("plan: op 0 \"layer0\": \"q/2"));
    EXPECT_THAT(error.message(), HasSubstr("there is no loop \"q\""));
  }
}

TEST(Plan, HostileCounts) {
  const std::string text = plan_to_json(plan_for(cases::mlp(), "data-parallel", cases::machine(2)));
  for (const char* count : {"-1", "0", "9999999999", "1e30", "\"1\"", "18446744073709551615"})
    EXPECT_NE(
        message_of(replaced(text, "\"saved\": [{\"first\": 0, \"count\": ",
                            fmt::format("\"saved\": [{{\"first\":0,\"count\":{},\"x\":", count))),
        "no error");
  for (const char* group : {"\"0-99999999999\"", "\"1-0\"", "\"-1\"", "\"\"", "\"0,,1\"", "\"0-\"",
                            "\"0,0,0,0\"", "3", "\"0x1\""})
    EXPECT_NE(message_of(replaced(text, "\"0-1\"", group)), "no error") << group;
  EXPECT_NE(message_of(replaced(text, "\"micro_batches\": 1", "\"micro_batches\": 99999999999")),
            "no error");
  EXPECT_NE(message_of(std::string(100'000, '[')), "no error");
  // Any prefix is refused, never half read.
  for (size_t size = 0; size + 2 < text.size(); size += 37)
    EXPECT_NE(message_of(text.substr(0, size)), "no error");
}

TEST(Plan, FilesAreWholeOrNotThere) {
  const fs::path folder = fs::path(testing::TempDir()) / "windlass_plan_test";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const std::string path = (folder / "a.plan").string();
  const Plan plan = plan_for(cases::mlp(), "data-parallel", cases::machine(2));
  write_plan(plan, path);
  write_plan(plan, path);
  EXPECT_EQ(plan_to_json(read_plan(path)), plan_to_json(plan));
  fs::create_directories(folder / "taken");
  fs::create_directories(folder / "taken" / "x");
  EXPECT_THROW(write_plan(plan, (folder / "taken").string()), Error);
  EXPECT_THROW(write_plan(plan, (folder / "missing" / "a.plan").string()), Error);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) files += entry.is_regular_file();
  EXPECT_EQ(files, 1u);
  EXPECT_THROW(read_plan((folder / "none.plan").string()), Error);
  fs::remove_all(folder);
}

TEST(Sharding, TextAndBack) {
  LoopNest nest;
  for (const char* name : {"b", "n", "n", "copy", "k"})
    nest.loops.push_back({.name = name, .size = 64});
  // Names that are not unique, or mean something else, are numbers.
  const Sharding sharding{{{0, 2}, {1, 4, 3}, {-1, 2}, {3, 2}, {4, 1}}};
  EXPECT_EQ(sharding_to_text(sharding, nest), "b/2 #1/4x3 copy/2 #3/2 k/1");
  EXPECT_EQ(sharding_from_text("b/2 #1/4x3 copy/2 #3/2 k/1", nest), sharding);
  EXPECT_EQ(sharding_from_text("whole", nest), Sharding{});
  // Unequal parts are a list of sizes.
  const Sharding unequal{{{0, 3, 1, {2, 1, 1}}, {1, 2, 3, {1, 5}}}};
  EXPECT_EQ(sharding_to_text(unequal, nest), "b/2:1:1 #1/1:5x3");
  EXPECT_EQ(sharding_from_text("b/2:1:1 #1/1:5x3", nest), unequal);
  for (const char* text : {"b/2:", "b/:2", "b/2::1", "b/2:0", "b/2:-1", "b/2:2", "b/4:2",
                           "b/1048576:1", "b/2:1x", "b/2:99999999999", "b/2:1.5", "b/2 :1"})
    EXPECT_THROW(sharding_from_text(text, nest), Error) << text;
  for (const char* text : {"", " ", "b", "b/", "b/0", "b/-1", "b/2x", "b/2x0", "b/2  k/2", "n/2",
                           "b/99999999999", "b/1048576 k/1048576", "whole b/2", "/2", "b//2"})
    EXPECT_THROW(sharding_from_text(text, nest), Error) << text;
}

}  // namespace
}  // namespace windlass

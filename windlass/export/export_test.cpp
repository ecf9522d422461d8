#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/base/test_places.h"
#include "windlass/export/torch_script.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"

namespace windlass {
namespace {

using testing::HasSubstr;

// A plan and all that an export looks at.
struct Bench {
  Graph network;
  Machine machine;
  PreparedStep step;
  std::unique_ptr<CostModel> cost = analytic_cost_model();
  Plan plan = {};

  Bench(Graph graph, Machine on, const std::string& strategy)
      : network(std::move(graph)),
        machine(std::move(on)),
        step(prepare_step(network, parse_baseline(strategy), machine, {})) {
    plan = make_plan({.source = "x"}, network, step.samples, step.training, machine, step.strategy);
  }
  ExportSubject subject() const {
    return {.plan = plan,
            .network = network,
            .training = step.training,
            .strategy = step.strategy,
            .machine = machine,
            .cost = *cost,
            .step_time = Seconds(1)};
  }
};

const SettingsExporter& exporter(std::string_view name) {
  for (const SettingsExporter& known : settings_exporters())
    if (known.name == name) return known;
  throw Error(ErrorKind::Input, "no such exporter");
}

std::string value_of(const std::string& arguments, const std::string& flag) {
  const size_t at = arguments.find(flag + " ");
  if (at == std::string::npos) return "";
  const size_t begin = at + flag.size() + 1;
  return arguments.substr(begin, arguments.find('\n', begin) - begin);
}

std::string toml_value(const std::string& text, const std::string& key) {
  const size_t at = text.find("\n" + key + " = ");
  if (at == std::string::npos) return "0";
  const size_t begin = at + key.size() + 4;
  return text.substr(begin, text.find('\n', begin) - begin);
}

void expect_products(const TargetSettings& to, int64_t devices, const std::string& where) {
  EXPECT_EQ(to.micro * to.accumulation * to.dp, to.batch) << where;
  EXPECT_EQ(to.dp * to.tp * to.pp, devices) << where;
}

void expect_layout(const TargetSettings& to, const std::string& layout, const std::string& where) {
  EXPECT_EQ(std::ranges::count(layout, 't'), to.layers) << where;
  EXPECT_EQ((std::ranges::count(layout, '|') + 1) % to.pp, 0) << where;
  EXPECT_TRUE(layout.starts_with('E') && layout.ends_with('L')) << where;
}

void expect_texts_agree(const ExportSubject& subject, int64_t devices, const std::string& where) {
  for (const SettingsExporter& to : settings_exporters()) {
    const TargetChoice choice = choose_settings(subject, to.rules);
    const TargetSettings& settings = choice.settings;
    const std::string here = fmt::format("{}, {}", where, to.name);
    expect_products(settings, devices, here);
    EXPECT_TRUE(shares_heads(subject.network, settings.tp)) << here;
    const std::string text = to.write(settings).text;
    if (to.name == "deepspeed") {
      const auto json = nlohmann::json::parse(text);
      EXPECT_EQ(json["train_micro_batch_size_per_gpu"].get<int64_t>() *
                    json["gradient_accumulation_steps"].get<int64_t>() * settings.dp,
                subject.plan.samples)
          << here;
      const int stage = json["zero_optimization"]["stage"];
      EXPECT_FALSE(settings.pp > 1 && stage > 1) << here;
      EXPECT_FALSE(json["zero_optimization"].contains("offload_param") && stage != 3) << here;
      EXPECT_FALSE(json["zero_optimization"].contains("offload_optimizer") && stage < 1) << here;
    } else if (to.name == "megatron") {
      const int64_t global = std::stoll(value_of(text, "--global-batch-size"));
      const int64_t micro = std::stoll(value_of(text, "--micro-batch-size"));
      EXPECT_EQ(global, subject.plan.samples) << here;
      EXPECT_EQ(global % (micro * settings.dp), 0) << here;
      if (settings.pp > 1)
        expect_layout(settings, value_of(text, "--pipeline-model-parallel-layout"), here);
    } else if (to.name == "torchtitan") {
      int64_t world = 1;
      for (const char* key : {"data_parallel_replicate_degree", "data_parallel_shard_degree",
                              "tensor_parallel_degree", "pipeline_parallel_degree"})
        world *= std::stoll(toml_value(text, key));
      EXPECT_EQ(world, devices) << here;
      EXPECT_EQ(std::stoll(toml_value(text, "global_batch_size")) %
                    (std::stoll(toml_value(text, "local_batch_size")) * settings.dp),
                0)
          << here;
    } else if (to.name == "trainer") {
      const auto json = nlohmann::json::parse(text);
      EXPECT_EQ(json["per_device_train_batch_size"].get<int64_t>() *
                    json["gradient_accumulation_steps"].get<int64_t>() * settings.dp,
                subject.plan.samples)
          << here;
    }
  }
}

// Up to 500 plans: named strategies with random parameters, and every fourth one with random
// decisions.
TEST(Export, SettingsKeepTheirProducts) {
  int done = 0, refused = 0;
  for (uint64_t seed = 0; done + refused < sampled(500); ++seed) {
    Rng rng(seed);
    const auto pick = [&](int64_t most) { return int64_t{1} << rng.integer(0, most); };
    const int64_t dp = pick(2), tp = pick(1), pp = pick(1);
    const auto devices = static_cast<int>(dp * tp * pp);
    const int64_t micro = pick(1), parts = pick(2), samples = dp * micro * parts;
    const std::string name = fmt::format(
        "megatron:dp={},tp={},pp={},micro={},zero={},recompute={},host-update={},host-weights={}",
        dp, tp, pp, micro, dp > 1 ? rng.integer(0, 3) : 0, rng.chance(0.5) ? "full" : "none",
        rng.chance(0.3) ? "on" : "off", rng.chance(0.2) ? "on" : "off");
    try {
      Bench bench(cases::transformer(samples, 2), cases::machine(devices), name);
      if (seed % 4 == 3) {
        Rng own(seed, 1);
        bench.step.strategy = cases::random_strategy(bench.step.training, bench.machine, own, {});
        bench.step.strategy.micro_batches = parts;
        bench.plan = make_plan({.source = "x"}, bench.network, samples, bench.step.training,
                               bench.machine, bench.step.strategy);
      }
      std::set<DeviceId> used;
      for (const auto& group : bench.step.strategy.groups) used.insert(group.begin(), group.end());
      expect_texts_agree(bench.subject(), static_cast<int64_t>(used.size()), name);
      ++done;
    } catch (const Error& error) {
      ASSERT_TRUE(error.kind() == ErrorKind::Unsupported || error.kind() == ErrorKind::Input)
          << seed << ": " << error.message();
      ++refused;
    }
  }
  EXPECT_GT(done, sampled(300)) << refused << " were refused";
}

TEST(Export, NothingIsLostOfWhatATargetCanSay) {
  const Bench full(cases::transformer(16, 4), cases::machine(4),
                   "megatron:tp=2,pp=2,micro=2,recompute=full");
  const TargetChoice same = choose_settings(full.subject(), exporter("megatron").rules);
  EXPECT_TRUE(same.lost.empty());
  EXPECT_EQ(same.settings.recompute, RecomputePolicy::Full);
  const Bench plain(cases::transformer(16, 4), cases::machine(4), "zero:stage=2,micro-batches=2");
  const TargetChoice choice = choose_settings(plain.subject(), exporter("deepspeed").rules);
  EXPECT_TRUE(choice.lost.empty())
      << choice_text(plain.subject(), exporter("deepspeed").rules, choice);
  EXPECT_EQ(choice.settings.zero, 2);
  EXPECT_EQ(choice.settings.accumulation, 2);
  ASSERT_TRUE(choice.step_time);
  const SimulatedStep again =
      simulate_step(plain.step.training, plain.step.strategy, plain.machine, *plain.cost);
  EXPECT_DOUBLE_EQ(choice.step_time->value, again.step_time().value);
}

TEST(Export, WhatIsLostHasItsCost) {
  const Bench bench(cases::transformer(16, 4), cases::machine(4), "offload-all");
  const TargetChoice choice = choose_settings(bench.subject(), exporter("megatron").rules);
  ASSERT_EQ(choice.lost.size(), 1u);
  EXPECT_THAT(choice.lost[0].what, HasSubstr("moved to the host"));
  EXPECT_TRUE(choice.lost[0].step_time);
  const Bench pipeline(cases::transformer(16, 4), cases::machine(4), "1f1b:stages=2,micro=2");
  const TargetChoice hf = choose_settings(pipeline.subject(), exporter("accelerate").rules);
  EXPECT_EQ(hf.settings.dp, 4);
  ASSERT_FALSE(hf.lost.empty());
  EXPECT_THAT(hf.lost[0].what, HasSubstr("pipeline parallel, pp 2"));
}

std::string golden(const std::string& name) {
  return source_folder() + "/tests/golden/exports/" + name;
}

// Settings for a grid of replicas, tensor parts and stages; WINDLASS_REWRITE_GOLDEN=1 writes them.
TEST(Export, GoldenFiles) {
  const Bench bench(cases::transformer(16, 4), cases::machine(8),
                    "megatron:dp=2,tp=2,pp=2,micro=2,zero=1,recompute=full,host-update=on");
  std::map<std::string, std::string> texts;
  for (const SettingsExporter& to : settings_exporters()) {
    const TargetChoice choice = choose_settings(bench.subject(), to.rules);
    const ExportedText made = to.write(choice.settings);
    std::string text = made.text;
    for (const LostDecision& lost : choice.lost)
      text += fmt::format("not said: {}; instead: {}\n", lost.what, lost.instead);
    for (const std::string& note : made.notes) text += "to do: " + note + "\n";
    texts[std::string(to.name) + ".txt"] = text;
  }
  const Bench small(cases::mlp(4, 2, 8), cases::machine(2), "data-parallel:recompute=full");
  texts["pytorch.txt"] =
      torch_script(small.subject(), choose_settings(small.subject(), torch_script_rules())).text;
  texts["dot.txt"] = strategy_dot(small.step.training, small.step.strategy);
  const SimulatedStep step =
      simulate_step(small.step.training, small.step.strategy, small.machine, *small.cost);
  const std::string csv = tasks_csv(step, small.step.training.graph);
  texts["csv.txt"] = csv.substr(0, csv.find('\n') + 1);
  for (const auto& [name, text] : texts) {
    if (std::getenv("WINDLASS_REWRITE_GOLDEN") != nullptr) {
      std::filesystem::create_directories(golden(""));
      std::ofstream(golden(name), std::ios::binary) << text;
      continue;
    }
    std::ifstream file(golden(name), std::ios::binary);
    const std::string expected{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text, expected) << name << ": make golden writes it anew";
  }
}

// Other systems cut attention between heads: 4 of them are not shared out over 3 devices.
TEST(Export, HeadsAreSharedOutEqually) {
  Graph network = cases::transformer(6, 2);
  EXPECT_TRUE(shares_heads(network, 1));
  EXPECT_TRUE(shares_heads(network, 4));
  EXPECT_FALSE(shares_heads(network, 3));
  const Bench bench(std::move(network), cases::machine(3), "megatron:tp=3");
  for (const SettingsExporter& to : settings_exporters()) {
    const TargetChoice choice = choose_settings(bench.subject(), to.rules);
    EXPECT_EQ(choice.settings.tp, 1) << to.name;
    EXPECT_EQ(choice.settings.dp, 3) << to.name;
    ASSERT_FALSE(choice.lost.empty()) << to.name;
    EXPECT_THAT(choice.lost.front().what, HasSubstr("heads")) << to.name;
  }
}

// Names cannot break out of strings, cells and labels.
TEST(Export, HostileNamesStayNames) {
  Bench bench(cases::mlp(4, 2, 8), cases::machine(2), "data-parallel");
  const std::string name = "\"\"\"\n=cmd|' /C calc'!A0\",\\\nimport os\n";
  for (Tensor& tensor : bench.network.tensors) tensor.name = name + tensor.name;
  for (Op& op : bench.network.ops) op.name = name + op.name;
  for (Op& op : bench.step.training.graph.ops) op.name = name + op.name;
  const std::string script =
      torch_script(bench.subject(), choose_settings(bench.subject(), torch_script_rules())).text;
  EXPECT_EQ(script.find("\nimport os\n", script.find("MODEL")), std::string::npos);
  const std::string dot = strategy_dot(bench.step.training, bench.step.strategy);
  EXPECT_EQ(dot.find("import os\n"), std::string::npos);
  const SimulatedStep step =
      simulate_step(bench.step.training, bench.step.strategy, bench.machine, *bench.cost);
  EXPECT_THAT(tasks_csv(step, bench.step.training.graph), HasSubstr(",\"\"\"\"\"\"\""));
}

}  // namespace
}  // namespace windlass

#include <array>
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
#include "windlass/graph/expert_slots.h"
#include "windlass/graph/fuse.h"
#include "windlass/plan/case_networks.h"
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

// All devices have work, or it is said that some have none.
void expect_products(const TargetChoice& choice, int64_t devices, const std::string& where) {
  const TargetSettings& to = choice.settings;
  EXPECT_EQ(to.micro * to.accumulation * to.dp, to.batch) << where;
  EXPECT_EQ(to.dp % to.ep, 0) << where;
  const bool idle = std::ranges::any_of(choice.lost, [](const LostDecision& lost) {
    return lost.instead.find("idle") != std::string::npos;
  });
  EXPECT_EQ(to.devices() < devices, idle) << where;
  EXPECT_LE(to.devices(), devices) << where;
}

void expect_layout(const TargetSettings& to, const std::string& layout, const std::string& where) {
  EXPECT_EQ(std::ranges::count(layout, 't'), to.layers) << where;
  EXPECT_EQ((std::ranges::count(layout, '|') + 1) % to.pp, 0) << where;
  EXPECT_TRUE(layout.starts_with('E') && layout.ends_with('L')) << where;
}

void expect_deepspeed(const TargetSettings& to, const std::string& text, const std::string& where) {
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"].get<int64_t>() *
                json["gradient_accumulation_steps"].get<int64_t>() * to.dp,
            to.batch)
      << where;
  EXPECT_FALSE(json.contains("train_batch_size")) << where << ": follows from the others";
  const auto& zero = json["zero_optimization"];
  const int stage = zero["stage"];
  EXPECT_FALSE(to.pp > 1 && stage > 1) << where;
  EXPECT_FALSE(zero.contains("offload_param") && stage != 3) << where;
  EXPECT_FALSE(zero.contains("offload_optimizer") && stage < 1) << where;
  EXPECT_FALSE(json.contains("bf16") && json.contains("fp16")) << where;
  EXPECT_TRUE(json.contains("gradient_clipping")) << where << ": its default is not ours";
  if (json.contains("tensor_parallel")) {
    EXPECT_EQ(json["tensor_parallel"]["autotp_size"], to.tp) << where;
  }
}

void expect_megatron(const TargetSettings& to, const std::string& text, const std::string& where) {
  const auto number = [&](const char* flag) { return std::stoll(value_of(text, flag)); };
  const auto has = [&](const char* flag) { return text.find(flag) != std::string::npos; };
  EXPECT_EQ(number("--global-batch-size"), to.batch) << where;
  EXPECT_EQ(to.batch % (number("--micro-batch-size") * to.dp), 0) << where;
  EXPECT_EQ(number("--tensor-model-parallel-size"), to.tp) << where;
  EXPECT_EQ(number("--pipeline-model-parallel-size"), to.pp) << where;
  EXPECT_EQ(number("--context-parallel-size"), to.cp) << where;
  if (to.pp > 1) {
    const std::string layout = value_of(text, "--pipeline-model-parallel-layout");
    expect_layout(to, layout, where);
    const int64_t chunks = (std::ranges::count(layout, '|') + 1) / to.pp;
    EXPECT_TRUE(chunks == 1 || to.accumulation % to.pp == 0) << where;
  }
  EXPECT_FALSE(has("--overlap-param-gather") &&
               !(has("--use-distributed-optimizer") || has("--use-megatron-fsdp")))
      << where;
  EXPECT_EQ(has("--optimizer-cpu-offload"), has("--use-precision-aware-optimizer")) << where;
  EXPECT_FALSE(has("granularity selective") && has("--recompute-method")) << where;
  EXPECT_EQ(has("granularity full"), has("--recompute-num-layers")) << where;
}

void expect_texts_agree(const ExportSubject& subject, int64_t devices, const std::string& where) {
  for (const SettingsExporter& to : settings_exporters()) {
    const TargetChoice choice = choose_settings(subject, to.rules);
    const TargetSettings& settings = choice.settings;
    const std::string here = fmt::format("{}, {}", where, to.name);
    expect_products(choice, devices, here);
    EXPECT_EQ(settings.batch, subject.plan.samples) << here;
    EXPECT_TRUE(shares_heads(subject.network, settings.tp)) << here;
    EXPECT_TRUE(choice.step_time || !choice.unsimulated.empty()) << here;
    EXPECT_FALSE(to.rules.host_together && (settings.host_states > 0) != settings.host_weights)
        << here;
    const std::string text = to.write(settings).text;
    if (to.name == "deepspeed") {
      expect_deepspeed(settings, text, here);
    } else if (to.name == "megatron") {
      expect_megatron(settings, text, here);
    } else if (to.name == "torchtitan") {
      int64_t world = 1;
      for (const char* key :
           {"data_parallel_replicate_degree", "data_parallel_shard_degree",
            "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree"})
        world *= std::stoll(toml_value(text, key));
      EXPECT_EQ(world, settings.devices()) << here;
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
    } else {
      EXPECT_THAT(text, HasSubstr(fmt::format("num_processes: {}\n", settings.devices()))) << here;
    }
  }
}

// 500 plans: named strategies with random parameters, for batches of any size, and every tenth one
// with random decisions.
TEST(Export, SettingsKeepTheirProducts) {
  const int plans = kSanitized ? 60 : 500;
  int done = 0, refused = 0;
  std::set<std::string> seen;  // degrees that came up
  for (uint64_t seed = 0; done < plans; ++seed) {
    ASSERT_LT(refused, 3 * plans) << "hardly any plan can be said";
    Rng rng(seed);
    const int64_t dp = rng.integer(1, 4), pp = rng.integer(1, 3);
    const int64_t tp = int64_t{1} << rng.integer(0, 2);
    const int64_t cp = rng.chance(0.15) ? 2 : 1;
    const auto devices = static_cast<int>(dp * tp * pp * cp);
    const int64_t micro = rng.integer(1, 3), parts = rng.integer(1, 5);
    const int64_t samples = dp * micro * parts + (rng.chance(0.1) ? 1 : 0);
    constexpr std::array kPolicies = {"none", "selective", "full"};
    const std::string name = fmt::format(
        "megatron:dp={},tp={},pp={},micro={},zero={},recompute={},host-update={},host-weights={}"
        "{}{}{}",
        dp, tp, pp, micro, dp > 1 ? rng.integer(0, 3) : 0,
        kPolicies.at(static_cast<size_t>(rng.integer(0, 2))), rng.chance(0.3) ? "on" : "off",
        rng.chance(0.2) ? "on" : "off", pp > 1 && rng.chance(0.2) ? ",interleave=2" : "",
        cp > 1 ? ",cp=2" : "", tp > 1 && rng.chance(0.3) ? ",sequence-parallel=on" : "");
    try {
      Bench bench(cases::transformer(samples, rng.integer(2, 6)), cases::machine(devices), name);
      if (seed % 10 == 3) {
        Rng own(seed, 1);
        bench.step.strategy = cases::random_strategy(bench.step.training, bench.machine, own, {});
        bench.plan = make_plan({.source = "x"}, bench.network, samples, bench.step.training,
                               bench.machine, bench.step.strategy);
      }
      bench.plan.model.training.optimizer = static_cast<OptimizerKind>(rng.integer(0, 3));
      bench.plan.model.training.clip_norm = rng.chance(0.5) ? 1 : 0;
      bench.plan.model.dtype = rng.chance(0.5) ? DType::BF16 : DType::F16;
      std::set<DeviceId> used;
      for (const auto& group : bench.step.strategy.groups) used.insert(group.begin(), group.end());
      expect_texts_agree(bench.subject(), static_cast<int64_t>(used.size()),
                         fmt::format("{} ({}, {} samples)", name, seed, samples));
      seen.insert(fmt::format("{} {} {}", dp, tp, pp));
      ++done;
    } catch (const Error& error) {
      ASSERT_TRUE(error.kind() == ErrorKind::Unsupported || error.kind() == ErrorKind::Input)
          << seed << ": " << error.message();
      ++refused;
    }
  }
  if (!kSanitized) {
    EXPECT_EQ(seen.size(), 36u) << "4 x 3 x 3 kinds of grids";
  }
}

// Packs and splits that a target does not have become replicas, of which the batch says how many.
TEST(Export, BatchesThatReplicasCannotShare) {
  for (const char* name : {"harmony:mode=pp", "megatron:tp=3", "1f1b:stages=3"})
    for (const int64_t samples : {7, 16}) {
      const Bench bench(cases::transformer(samples, 4), cases::machine(3), name);
      for (const SettingsExporter& to : settings_exporters()) {
        if (to.rules.pipeline && std::string_view(name).starts_with("1f1b")) continue;
        const TargetChoice choice = choose_settings(bench.subject(), to.rules);
        const std::string where = fmt::format("{}, {}, {} samples", to.name, name, samples);
        EXPECT_EQ(choice.settings.dp, samples == 7 ? 1 : 2) << where;
        expect_products(choice, 3, where);
        EXPECT_TRUE(choice.step_time) << where << choice.unsimulated;
        EXPECT_THAT(choice_text(bench.subject(), to.rules, choice),
                    HasSubstr(samples == 7 ? "--batch 6 or 9" : "--batch 15 or 18"))
            << where;
      }
      const TargetChoice script = choose_settings(bench.subject(), torch_script_rules());
      EXPECT_EQ(script.settings.devices(), samples == 7 ? 1 : 2) << name;
    }
  // Replicas of the plan's own: what to do is said, and helps.
  const Bench uneven(cases::transformer(16, 2), cases::machine(3), "data-parallel");
  try {
    choose_settings(uneven.subject(), exporter("deepspeed").rules);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("--batch 15 or 18"));
  }
  const Bench even(cases::transformer(15, 2), cases::machine(3), "data-parallel");
  EXPECT_EQ(choose_settings(even.subject(), exporter("deepspeed").rules).settings.dp, 3);
}

TEST(Export, PositionsAndExperts) {
  const Bench bench(cases::transformer(4, 2), cases::machine(8), "megatron:cp=2,dp=4");
  for (const SettingsExporter& to : settings_exporters()) {
    const TargetChoice choice = choose_settings(bench.subject(), to.rules);
    const bool said = to.rules.context.has_value();
    EXPECT_EQ(choice.settings.cp, said ? 2 : 1) << to.name;
    EXPECT_TRUE(choice.step_time) << to.name << choice.unsimulated;
    const bool lost = !choice.lost.empty() && choice.lost[0].what.find("cp 2") != std::string::npos;
    EXPECT_NE(lost, said) << to.name;
    if (to.name == "megatron") {
      EXPECT_TRUE(choice.lost.empty());
      EXPECT_THAT(to.write(choice.settings).text, HasSubstr("--context-parallel-size 2\n"));
    }
    if (to.name == "torchtitan") {
      EXPECT_EQ(choice.settings.zero, 2);  // weights are shared out over the parts as well
    }
  }
}

// Other systems have experts of their own, and no slots.
TEST(Export, ExpertsOfReplicas) {
  const Graph plain = cases::sequences(8);
  Bench bench(with_expert_slots(plain, 2), cases::machine(4), "megatron:ep=4");
  bench.plan.model.expert_capacity = 2;
  ExportSubject subject = bench.subject();
  subject.without_slots = &plain;
  for (const SettingsExporter& to : settings_exporters()) {
    const TargetChoice choice = choose_settings(subject, to.rules);
    const bool said = to.rules.experts.has_value();
    EXPECT_EQ(choice.settings.ep, said ? 4 : 1) << to.name;
    EXPECT_EQ(choice.settings.dp, 4) << to.name;
    EXPECT_TRUE(choice.step_time) << to.name << choice.unsimulated;
    const std::string text = choice_text(subject, to.rules, choice);
    EXPECT_EQ(text.find("ep 4") == std::string::npos, said) << to.name << text;
    EXPECT_THAT(text, HasSubstr("slots for the rows of experts, 2 times")) << to.name;
    EXPECT_EQ(text.find("split in other ways"), std::string::npos) << to.name << text;
  }
  const TargetChoice choice = choose_settings(subject, torch_script_rules());
  EXPECT_THAT(torch_script(subject, choice).text, HasSubstr("REPLICAS = 4"));
}

// Norms along positions beside tensor parts: said where it can be, listed elsewhere.
TEST(Export, NormsSplitAlongPositions) {
  const Bench bench(cases::transformer(4, 2), cases::machine(2),
                    "megatron:tp=2,sequence-parallel=on");
  const TargetChoice same = choose_settings(bench.subject(), exporter("megatron").rules);
  EXPECT_TRUE(same.lost.empty());
  EXPECT_THAT(exporter("megatron").write(same.settings).text, HasSubstr("--sequence-parallel\n"));
  const TargetChoice other = choose_settings(bench.subject(), exporter("deepspeed").rules);
  ASSERT_FALSE(other.lost.empty());
  EXPECT_THAT(other.lost[0].what, HasSubstr("norms split along positions"));
  // Where there are none, nothing is lost.
  const Bench plain(cases::mlp(), cases::machine(2), "megatron:tp=2");
  EXPECT_TRUE(choose_settings(plain.subject(), exporter("torchtitan").rules).lost.empty());
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

// Where some weights are treated otherwise than others, the settings do not follow the few.
TEST(Export, FewWeightsOnTheHostDoNotPullAllOfThem) {
  Bench bench(cases::transformer(8, 4), cases::machine(2), "zero:stage=3");
  bench.step.strategy.weights.front().host_update = true;
  for (size_t w = 1; w < bench.step.strategy.weights.size(); ++w)
    bench.step.strategy.weights[w].zero = 1;
  const TargetChoice choice = choose_settings(bench.subject(), exporter("deepspeed").rules);
  EXPECT_EQ(choice.settings.host_states, 0);
  EXPECT_LT(choice.settings.zero, 3);
  EXPECT_TRUE(choice.fits);
  ASSERT_EQ(choice.lost.size(), 2u);
  for (const LostDecision& lost : choice.lost) EXPECT_TRUE(lost.step_time) << lost.what;
}

Bytes peak_of(const Bench& bench, const PreparedStep& step) {
  const SimulatedStep made =
      simulate_step(step.training, step.strategy, bench.machine, *bench.cost);
  Bytes peak;
  for (size_t m = 0; m < made.tasks.memories.size(); ++m)
    if (made.tasks.memories[m].team.valid())
      peak = std::max(peak, Bytes(made.whole().peaks[m].bytes));
  return peak;
}

// What the host does wants ZeRO in these systems: a plan without it gets that rather than settings
// that do not fit, and a part of the weights stays a part, also in what is predicted.
TEST(Export, HostAsksForAHigherStage) {
  Bench bench(cases::transformer(4, 2), cases::machine(2), "data-parallel");
  std::vector<Residency>& homes = bench.step.strategy.weights;
  for (size_t w = 0; w < homes.size(); ++w) homes[w].host_update = w % 4 != 0;
  // Recomputing alone is not enough.
  const auto peak = [&](const std::string& spec) {
    return peak_of(bench, prepare_step(bench.network, parse_baseline(spec), bench.machine, {}));
  };
  const Bytes limit = Bytes((peak("data-parallel:recompute=full").value +
                             peak("zero:stage=1,host-update=on,recompute=full").value) /
                            2);
  for (Device& device : bench.machine.devices) device.limit = limit;
  for (const std::string name : {"deepspeed", "megatron"}) {
    const TargetChoice choice = choose_settings(bench.subject(), exporter(name).rules);
    EXPECT_TRUE(choice.fits) << name;
    EXPECT_EQ(choice.settings.zero, 1) << name;
    EXPECT_TRUE(std::ranges::any_of(choice.lost, [](const LostDecision& lost) {
      return lost.what == "ZeRO stage 0" && lost.instead == "stage 1" && lost.step_time;
    })) << name;
    if (choice.settings.host_states == 0) continue;
    // The fewer states on the host, the more on the devices.
    BaselineSpec spec = spec_of_settings(choice.settings, exporter(name).rules);
    spec.host_update = true;
    const Bytes least = peak_of(bench, prepare_step(bench.network, spec, bench.machine, {}));
    EXPECT_GE(*choice.peak, least) << name;
    EXPECT_EQ(*choice.peak == least, choice.settings.host_states == 1) << name;
  }
}

// Systems that serve a single replica from the host call it a stage of ZeRO all the same.
TEST(Export, HostOfASingleReplica) {
  const Bench bench(cases::transformer(4, 2), cases::machine(1),
                    "single:host-weights=on,host-update=on");
  for (const auto& [name, stage] : {std::pair("deepspeed", 3), std::pair("megatron", 1)}) {
    const TargetChoice choice = choose_settings(bench.subject(), exporter(name).rules);
    EXPECT_EQ(choice.settings.zero, stage) << name;
    EXPECT_EQ(choice.settings.host_states, 1) << name;
    EXPECT_EQ(choice.lost.size(), stage == 3 ? 0u : 1u) << name;  // Megatron: weights on the device
    EXPECT_TRUE(choice.step_time) << name;
  }
  const TargetChoice script = choose_settings(bench.subject(), torch_script_rules());
  EXPECT_TRUE(script.lost.empty());
  EXPECT_THAT(torch_script(bench.subject(), script).text, HasSubstr("ON_HOST = True"));
  const TargetChoice titan = choose_settings(bench.subject(), exporter("torchtitan").rules);
  EXPECT_EQ(titan.settings.host_states, 0);
  EXPECT_EQ(titan.lost.size(), 2u);
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
  const Bench shared(cases::mlp(4, 2, 8), cases::machine(2), "zero:stage=3");
  texts["pytorch_shards.txt"] =
      torch_script(shared.subject(), choose_settings(shared.subject(), torch_script_rules())).text;
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
  // Runners without a fused kernel have it in parts.
  EXPECT_GT(unfuse_attention(network), 0);
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

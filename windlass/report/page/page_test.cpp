#include "windlass/report/page/page.h"

#include <map>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/plan/cases.h"
#include "windlass/report/lives.h"
#include "windlass/report/page/base64.h"
#include "windlass/report/page/page_layers.h"
#include "windlass/sim/reference/random_tasks.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

std::string from_base64(const std::string& text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t word = 0;
  int bits = 0;
  for (char c : text) {
    if (c == '=') break;
    word = word << 6 | static_cast<uint32_t>(kDigits.find(c));
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(word >> bits & 255);
  }
  return bytes;
}

struct ReadSlice {
  int64_t start = 0, end = 0, kind = 0, tasks = 1;
};

// As timeline.js reads it.
std::vector<ReadSlice> read_track(const ordered_json& timeline, const ordered_json& track) {
  const std::string bytes = from_base64(track["data"]);
  size_t at = 0;
  const auto number = [&] {
    int64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(at++));
      value |= int64_t{byte & 127} << shift;
      if (byte < 128) return value;
    }
  };
  std::vector<ReadSlice> slices;
  int64_t reached = 0;
  for (size_t i = 0; i < track["slices"]; ++i) {
    ReadSlice slice;
    slice.start = reached + number();
    slice.end = reached = slice.start + number();
    if (const int64_t label = number(); label == 0) {
      slice.kind = number();
      slice.tasks = number();
    } else {
      slice.kind = timeline["labels"].at(static_cast<size_t>(label - 1)).at(0);
      number();
    }
    slices.push_back(slice);
  }
  EXPECT_EQ(at, bytes.size());
  return slices;
}

SimulatedStep random_step(uint64_t seed) {
  Rng rng(seed);
  RandomTasks random = random_tasks(rng, 40);
  SimulatedStep step;
  step.tasks = std::move(random.graph);
  step.times = std::move(random.times);
  step.result = Simulator().run(step.tasks, step.times, {.enforce_limits = false});
  return step;
}

TEST(Page, Base64KnowsItsVectors) {
  EXPECT_EQ(to_base64(""), "");
  EXPECT_EQ(to_base64("f"), "Zg==");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");
}

// Every task that ran is on each of its lanes, at its time; merged ones keep their number and kind.
TEST(Page, TimelinesSayWhatTheStepDoes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SimulatedStep step = random_step(seed);
    for (const size_t most : {size_t{1'000'000}, size_t{12}}) {
      const ordered_json timeline = page_timeline_json(step, nullptr, {.most_slices = most});
      const int64_t quantum = timeline["quantum_ns"];
      std::map<int64_t, int64_t> expected, found;  // tasks by kind
      std::multiset<std::pair<int64_t, int64_t>> times, read;
      for (size_t i = 0; i < step.tasks.size(); ++i) {
        if (step.result.end[i] < 0) continue;
        const auto lanes = step.tasks.lanes_of(TaskId(i));
        for (size_t lane = 0; lane < std::set(lanes.begin(), lanes.end()).size(); ++lane) {
          ++expected[static_cast<int64_t>(step.tasks.tasks[i].kind)];
          times.emplace(step.result.start[i] / quantum, step.result.end[i] / quantum);
        }
      }
      for (const ordered_json& track : timeline["tracks"])
        for (const ReadSlice& slice : read_track(timeline, track)) {
          found[slice.kind] += slice.tasks;
          read.emplace(slice.start, slice.end);
          EXPECT_LE(slice.end, timeline["end"].get<int64_t>());
        }
      EXPECT_EQ(found, expected) << seed;
      if (most > 100) {
        EXPECT_EQ(read, times) << seed;
      }
    }
  }
}

TEST(Page, CurvesOfMemoriesHaveTheirPeaks) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const SimulatedStep step = random_step(seed);
    const auto changes = memory_changes(step.tasks, step.times, step.result);
    for (const int64_t spans : {1, 7, 1'000'000}) {
      const auto samples = memory_samples(step.tasks, step.times, step.result, spans);
      ASSERT_EQ(samples.size(), changes.size());
      for (size_t m = 0; m < samples.size(); ++m) {
        int64_t most = 0, highest = 0;
        for (const MemoryChange& change : changes[m]) most = std::max(most, change.bytes);
        for (const MemorySample& sample : samples[m]) highest = std::max(highest, sample.total());
        EXPECT_EQ(highest, most) << seed;
        const int64_t width = std::max<int64_t>(1, step.result.makespan / spans);
        EXPECT_LE(static_cast<int64_t>(samples[m].size()), step.result.makespan / width + 1);
      }
    }
  }
}

TEST(Page, LayersAreToldOnceAndCounted) {
  const Graph graph = cases::transformer(8, 4);
  const Machine machine = cases::machine(4);
  const PreparedStep step =
      prepare_step(graph, parse_baseline("1f1b:stages=2,micro-batches=2"), machine, {});
  const ordered_json rows = page_layers_json(graph, step.training, step.strategy);
  size_t ops = 0;
  int64_t bytes = 0;
  std::set<int64_t> stages;
  for (const ordered_json& row : rows) {
    stages.insert(row["stage"].get<int64_t>());
    int64_t layers = 0;
    for (const ordered_json& part : row["parts"]) {
      layers += part["layers"].get<int64_t>();
      ops += part["ops"].size() * part["layers"].get<size_t>();
    }
    EXPECT_EQ(layers, row["layers"]);
    for (const auto& [action, saved] : row["saved"].items()) bytes += saved.get<int64_t>();
  }
  EXPECT_EQ(ops, graph.ops.size());
  EXPECT_EQ(stages, (std::set<int64_t>{0, 1}));
  int64_t saved = 0;
  for (const SavedTensor& tensor : step.training.saved)
    if (tensor.producer.valid()) saved += 2 * tensor.bytes.value;
  EXPECT_EQ(bytes, saved);
}

// Of methods the page has what fits, of strategies whether they are tuned.
TEST(Page, MethodsAndTunedStrategies) {
  const Graph graph = cases::transformer(8, 2);
  const Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const PreparedStep prepared = prepare_step(graph, parse_baseline("data-parallel"), machine, {});
  const SimulatedStep step = simulate_step(prepared.training, prepared.strategy, machine, *cost);
  const Plan plan = make_plan({.source = "x"}, graph, prepared.samples, prepared.training, machine,
                              prepared.strategy);
  StepFacts facts;
  facts.samples = prepared.samples;
  const SimulationReport report =
      report_simulation(step, &prepared.training.graph, machine, facts, 1);
  PagePlan page = {.path = "p",
                   .plan = plan,
                   .network = graph,
                   .training = prepared.training,
                   .strategy = prepared.strategy,
                   .machine = machine,
                   .step = step,
                   .report = report};
  page.no_methods = "why";
  EXPECT_FALSE(page_plan_json(page).contains("methods"));
  EXPECT_EQ(page_plan_json(page)["no_methods"], "why");
  MethodAdvice plain, again;
  plain.curve.name = "plain";
  plain.curve.largest = 2;
  plain.curve.points = {{.batch = 2, .fits = true, .time = Seconds(0.5), .peak = Bytes(10)},
                        {.batch = 4, .fits = false, .time = Seconds(1), .peak = Bytes(20)}};
  again.curve.name = "recompute";
  again.pays = true;
  again.because = "it does";
  page.methods.emplace();
  page.methods->base = "zero:stage=3";
  page.methods->methods = {plain, again};
  page.baselines = {{.name = "zero:stage=3", .tuned = true, .fits = true}};
  const ordered_json json = page_plan_json(page);
  EXPECT_EQ(json["methods"]["base"], "zero:stage=3");
  EXPECT_EQ(json["methods"]["list"][0]["points"], ordered_json::parse("[[2, 4.0, 10]]"));
  EXPECT_EQ(json["methods"]["list"][1]["largest"], 0);
  EXPECT_TRUE(json["methods"]["list"][1]["pays"]);
  EXPECT_TRUE(json["baselines"][0]["tuned"]);
}

TEST(Page, WhatIsHostileStaysText) {
  const std::string name = "</script><script>alert('1' & \"2\")</script><!--\x01\xff";
  EXPECT_THAT(escape_html(name), Not(testing::ContainsRegex("[<>\"']")));
  const std::string text = script_json({{"name", name}});
  EXPECT_THAT(text, Not(testing::ContainsRegex("[<>&]")));
  EXPECT_THAT(text, HasSubstr("\\u003c/script\\u003e"));
  ordered_json plans = ordered_json::array();
  plans.push_back({{"title", name}, {"verdict", "Fits: " + name}, {"x", "{{script}} {{data}}"}});
  const std::string page = page_html(plans, {});
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("</script>", page.find("id=\"data\"")), page.find("</script>"));
}

TEST(Page, PagesReferToNothingElse) {
  for (const PageFile& file : page_files()) {
    EXPECT_THAT(std::string(file.text), Not(HasSubstr("https://"))) << file.name;
    EXPECT_THAT(std::string(file.text), Not(HasSubstr("innerHTML"))) << file.name;
    EXPECT_THAT(std::string(file.text), Not(HasSubstr("import "))) << file.name;
  }
}

TEST(Page, RunsAreReadAndRefused) {
  const std::string good =
      R"({"step":1,"loss":2.5,"step_time_s":0.25}
{"predicted":{"step_time_s":0.2,"devices":[{"name":"cpu0","peak_bytes":10,"limit_bytes":20}],"host":{"peak_bytes":0},"tasks":{"forward_s":0.1},"links":[]},"measured":{"step_time_s":0.25,"devices":[],"host":{"peak_bytes":0},"tasks":{},"links":[]},"steps":1}
)";
  const ordered_json run = page_run_json(good, "run");
  EXPECT_EQ(run["steps"].size(), 1u);
  EXPECT_EQ(run["predicted"]["places"][0]["peak"], 10);
  EXPECT_EQ(run["measured"]["step_time"], 0.25);
  for (size_t cut = 0; cut < good.size() - 2; ++cut)
    EXPECT_THROW(page_run_json(good.substr(0, cut), "run"), Error) << cut;
  for (const char* bad : {"[]", "{}", "1e999", R"({"predicted":1,"measured":2})",
                          R"({"step":"a","loss":1,"step_time_s":1})",
                          R"({"predicted":{"step_time_s":"x"},"measured":{}})"})
    EXPECT_THROW(page_run_json(bad, "run"), Error) << bad;
  std::string long_run;
  for (int i = 0; i < 10'000; ++i)
    long_run += fmt::format("{{\"step\":{},\"loss\":1,\"step_time_s\":1}}\n", i);
  EXPECT_LE(page_run_json(long_run + good, "run")["steps"].size(), 2000u);
}

}  // namespace
}  // namespace windlass

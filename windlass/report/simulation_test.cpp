#include "windlass/report/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/report/json.h"
#include "windlass/report/lives.h"
#include "windlass/report/simulation_text.h"
#include "windlass/sim/hand_made.h"
#include "windlass/sim/reference/random_tasks.h"

namespace windlass {
namespace {

using testing::HasSubstr;

// A device on a host, joined by one link.
Machine small_machine(int64_t limit) {
  Machine machine;
  machine.name = "small";
  DeviceType card;
  card.name = "card";
  card.memory = Bytes(limit);
  machine.device_types.push_back(card);
  Node host;
  host.name = "host0";
  host.memory = Bytes(int64_t{1} << 60);
  host.endpoint = EndpointId(1);
  machine.nodes.push_back(host);
  machine.devices.push_back({"gpu0", NodeId(0), 0, Bytes(limit), EndpointId(0)});
  machine.endpoints.push_back({Endpoint::Kind::Device, 0, "gpu0", NodeId(0)});
  machine.endpoints.push_back({Endpoint::Kind::Host, 0, "host0", NodeId(0)});
  machine.links.push_back({"pcie0", EndpointId(0), EndpointId(1), BytesPerSecond(2e9), {}, true});
  return machine;
}

// In ns:  0-5 forward   5-10 transfer of 8 bytes: 1 of latency, 4 at 2 bytes/ns
//         10-17 backward, workspace 6   17-20 update
// Live: weight 10 always, activation 30 in [0, 17), gradient 20 in [10, 20).
// Peak 10 + 30 + 20 + 6 = 66, at 10.
SimulatedStep small_step(int64_t limit) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate}, limit);
  const int32_t link = made.link(2);
  made.graph.links[0].directions.push_back({LinkId(0), true});
  const int32_t traffic = made.traffic(8, {{link, kLoadUnit}});
  made.graph.traffics[0].loads.push_back({{LinkId(0), true}, Bytes(8)});
  const BufferId weight = made.buffer(10, true, true);
  const BufferId activation = made.buffer(30);
  const BufferId gradient = made.buffer(20);
  made.graph.buffers[0].kind = BufferKind::Weight;
  made.graph.buffers[1].kind = BufferKind::Activation;
  made.graph.buffers[1].micro_batch = 0;
  made.graph.buffers[2].kind = BufferKind::WeightGradient;
  const TaskId forward = made.task(TaskKind::Forward, {0}, 5, {}, {weight, activation});
  const TaskId move = made.task(TaskKind::Collective, {1}, 1, {forward}, {}, traffic);
  const TaskId backward =
      made.task(TaskKind::Backward, {0}, 7, {move}, {activation, gradient}, 0, 6);
  made.task(TaskKind::Update, {0}, 3, {backward}, {weight, gradient});
  for (TaskId task : {forward, move, backward}) made.graph.tasks[task.index()].micro_batch = 0;
  SimulatedStep step;
  step.tasks = std::move(made.graph);
  step.times = std::move(made.times);
  Simulator simulator;
  step.result = simulator.run(step.tasks, step.times);
  if (step.result.status == SimStatus::OutOfMemory) {
    step.unlimited = simulator.run(step.tasks, step.times, {.enforce_limits = false});
    step.least_limit = find_least_limit(step.tasks, step.times, *step.unlimited);
  }
  return step;
}

SimulationReport small_report(int64_t limit) {
  StepFacts facts;
  facts.model = "m";
  facts.machine = "small";
  facts.strategy = "single";
  facts.provenance = "analytic";
  facts.samples = 2;
  facts.tokens_per_sample = 10;
  return report_simulation(small_step(limit), nullptr, small_machine(limit), facts);
}

TEST(SimulationReport, SaysWhereTimeAndBytesGo) {
  const SimulationReport report = small_report(100);
  ASSERT_FALSE(report.failure);
  EXPECT_DOUBLE_EQ(report.step_time.value, 20e-9);
  EXPECT_DOUBLE_EQ(report.samples_per_second(), 1e8);
  ASSERT_EQ(report.teams.size(), 1u);
  const Breakdown expected{.compute = 12, .recompute = 0, .update = 3, .communication = 5};
  EXPECT_EQ(report.teams[0].time, expected);
  EXPECT_EQ(report.mean, expected);
  const MemoryReport& memory = report.memories[0];
  EXPECT_EQ(memory.peak.value, 66);
  EXPECT_EQ(memory.workspace.value, 6);
  EXPECT_EQ(memory.kept.value, 30);
  EXPECT_DOUBLE_EQ(memory.peak_time.value, 10e-9);
  EXPECT_EQ(memory.peak_task, "backward task 2 (micro-batch 0)");
  ASSERT_EQ(report.links.size(), 1u);
  EXPECT_DOUBLE_EQ(report.links[0].busy, 0.25);        // 5 of 20
  EXPECT_DOUBLE_EQ(report.links[0].utilisation, 0.2);  // 8 of 40 bytes
}

TEST(SimulationReport, JsonIsStable) {
  const auto json = simulation_json(small_report(100), small_machine(100));
  const auto expected = nlohmann::json::parse(R"({
    "termination": "done", "model": "m", "machine": "small", "strategy": "single",
    "provenance": "simulated, analytic cost model", "samples": 2, "micro_batches": 1, "tasks": 4,
    "model_flops": 0.0, "activation_peak_bytes": 30,
    "devices": [{"name": "gpu0", "peak_bytes": 66, "limit_bytes": 100, "activation_peak_bytes": 30,
      "weight_bytes": 10, "gradient_bytes": 20, "optimizer_bytes": 0}],
    "host": {"peak_bytes": 0, "limit_bytes": 1152921504606846976},
    "hosts": [{"name": "host0", "peak_bytes": 0, "limit_bytes": 1152921504606846976}],
    "links": [{"name": "pcie0 gpu0 > host0", "bytes": 8, "busy": 0.25, "utilisation": 0.2}]
  })");
  for (const auto& [key, value] : expected.items())
    EXPECT_EQ(nlohmann::json(json.at(key)), value) << key;
  for (const char* key : {"step_time_s", "samples_per_s", "tokens_per_s", "breakdown", "teams"})
    EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_DOUBLE_EQ(json["tokens_per_s"].get<double>(), 1e9);
  EXPECT_DOUBLE_EQ(json["breakdown"]["communication_s"].get<double>(), 5e-9);
  EXPECT_EQ(json["memories"][0]["at_peak"]["workspace_bytes"], 6);
  EXPECT_EQ(json["memories"][0]["largest"][0]["bytes"], 30);
}

TEST(SimulationReport, SaysWhatIsMissing) {
  // The backward task brings 20 + 6 bytes beside 10 + 30: 66 of 50.
  const SimulationReport report = small_report(50);
  ASSERT_TRUE(report.failure);
  EXPECT_EQ(report.failure->memory, "gpu0");
  EXPECT_EQ(report.failure->task, "backward task 2 (micro-batch 0)");
  EXPECT_EQ(report.failure->missing.value, 16);
  ASSERT_TRUE(report.failure->minimum_limit);
  EXPECT_EQ(report.failure->minimum_limit->value, 66);
  ASSERT_EQ(report.failure->alive.size(), 2u);
  EXPECT_EQ(report.failure->alive[0].bytes.value, 30);
  EXPECT_EQ(report.memories[0].peak.value, 66);

  const auto json = simulation_json(report, small_machine(50));
  EXPECT_EQ(json["termination"], "out-of-memory");
  EXPECT_EQ(json["minimum_limit_bytes"], 66);
  EXPECT_EQ(json["failure"]["missing_bytes"], 16);
  EXPECT_EQ(json["devices"][0]["peak_bytes"], 66);
  EXPECT_FALSE(json.contains("step_time_s"));
  EXPECT_THAT(simulation_text(report), HasSubstr("16 B beyond the limit of 50 B"));
}

TEST(SimulationReport, SaysThatTheStartIsTooMuch) {
  const SimulationReport report = small_report(5);
  ASSERT_TRUE(report.failure);
  EXPECT_EQ(report.failure->task, "");
  EXPECT_EQ(report.failure->missing.value, 5);
  EXPECT_THAT(simulation_text(report), HasSubstr("before the step begins"));
}

TEST(SimulationReport, TextForPeople) {
  EXPECT_EQ(simulation_text(small_report(100)), R"(m on small, single
  step     20.0 ns
  rate     100,000,000 samples/s, 1,000,000,000 tokens/s
  batch    2 samples
  devices  1
  from     simulated, analytic cost model, run by windlass

where the time goes (communication and swap: waited for)
        compute  recompute  communication  swap  update  bubble
  gpu0    60.0%          -          25.0%     -   15.0%       -

memory at its peak, of each device
        peak  limit    use  weights  gradients  optimizer  activations  other
  gpu0  66 B  100 B  66.0%     10 B       20 B          -         30 B    6 B

largest at the peak of gpu0 (at 10.0 ns, in backward task 2 (micro-batch 0))
  buffer 1  activation         30 B
  buffer 2  weight gradient    20 B
  buffer 0  weight             10 B

links by utilisation
                      bytes  bandwidth  utilisation   busy
  pcie0 gpu0 > host0    8 B  2.00 GB/s        20.0%  25.0%
)");
}

TEST(Lives, AgreeWithTheSimulator) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RandomTasks random = training_like_tasks(seed, 400, 3, 50);
    Simulator simulator;
    const SimResult result = simulator.run(random.graph, random.times, {.enforce_limits = false});
    const auto changes = memory_changes(random.graph, random.times, result);
    const std::vector<Life> lives = buffer_lives(random.graph, result);
    for (size_t m = 0; m < random.graph.memories.size(); ++m) {
      int64_t peak = 0;
      Nanoseconds at = 0;
      for (const MemoryChange& change : changes[m])
        if (change.bytes > peak) peak = change.bytes, at = change.time;
      EXPECT_EQ(peak, result.peaks[m].bytes) << "seed " << seed << " memory " << m;
      EXPECT_EQ(at, result.peaks[m].time) << "seed " << seed << " memory " << m;
      const auto alive = alive_at(random.graph, result, MemoryId(m), at);
      size_t count = 0;
      for (size_t i = 0; i < lives.size(); ++i)
        count += random.graph.buffers[i].memory == MemoryId(m) && lives[i].at(at);
      EXPECT_EQ(count, alive.size());
    }
  }
}

TEST(Lives, KeptAreThoseThatBothPassesUse) {
  HandMade made({LaneKind::Compute, LaneKind::Communicate});
  const auto buffer = [&](BufferKind kind) {
    const BufferId id = made.buffer(1);
    made.graph.buffers[id.index()].kind = kind;
    made.graph.buffers[id.index()].micro_batch = 0;
    return id;
  };
  const BufferId saved = buffer(BufferKind::Activation);
  const BufferId dropped = buffer(BufferKind::Activation);  // computed again: only forward reads it
  const BufferId again = buffer(BufferKind::Activation);    // as computed again
  const BufferId received = buffer(BufferKind::Communication);
  const BufferId part = buffer(BufferKind::Activation);  // gathered again by a collective
  const BufferId stash = buffer(BufferKind::Stash);
  made.graph.traffics.resize(1);
  made.graph.loads.resize(1);
  const auto task = [&](TaskKind kind, int lane, const std::vector<BufferId>& buffers) {
    const TaskId id = made.task(kind, {lane}, 1, {}, buffers);
    made.graph.tasks[id.index()].micro_batch = 0;
  };
  task(TaskKind::Forward, 0, {saved, dropped, received, part});
  task(TaskKind::Recompute, 0, {received, again});
  task(TaskKind::Collective, 1, {part});
  task(TaskKind::Backward, 0, {saved, again});
  const std::vector<bool> kept = kept_between_passes(made.graph);
  EXPECT_TRUE(kept[saved.index()]);
  EXPECT_FALSE(kept[dropped.index()]);
  EXPECT_FALSE(kept[again.index()]);
  EXPECT_TRUE(kept[received.index()]);
  EXPECT_TRUE(kept[part.index()]);
  EXPECT_TRUE(kept[stash.index()]);
}

}  // namespace
}  // namespace windlass

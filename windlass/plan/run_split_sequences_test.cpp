// Positions of sequences and experts split over devices: the step of the network that is not split.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/check.h"
#include "windlass/plan/degrees.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/same_step.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass {
namespace {

// With room for any choice.
Graph sequences_in_slots(int64_t batch) { return with_expert_slots(cases::sequences(batch), 2); }

PreparedStep expect_same_as_plain(const Graph& graph, const std::string& name, int devices) {
  SCOPED_TRACE(fmt::format("{} {} on {}", graph.name, name, devices));
  const Machine machine = cases::machine(devices);
  PreparedStep step = prepare_step(graph, parse_baseline(name), machine, {});
  const TrainingGraph& training = step.training;
  const StepStart start =
      cases::random_start(training, static_cast<int32_t>(step.strategy.micro_batches), 3);
  expect_same_end(
      training,
      [&] {
        check_strategy(training, machine, step.strategy);
        const TaskGraph tasks = lower(training, step.strategy, machine);
        EXPECT_THAT(check_tasks(training, machine, step.strategy, tasks), testing::IsEmpty());
        return run_tasks(training, machine, tasks, start);
      },
      run_plainly(training, start));
  return step;
}

Degrees degrees_of_step(const Graph& graph, const PreparedStep& step) {
  return degrees_of(step.training, find_batch(graph), step.strategy, step.samples);
}

int count_collectives(const PreparedStep& step, int devices, Collective wanted) {
  const Machine machine = cases::machine(devices);
  const TaskGraph tasks = lower(step.training, step.strategy, machine);
  int count = 0;
  for (const Task& task : tasks.tasks)
    if (task.kind == TaskKind::Collective && task.how >= 0 &&
        tasks.movements[static_cast<size_t>(task.how)].collective == wanted)
      ++count;
  return count;
}

TEST(RunTasks, SplitPositions) {
  for (const Graph& graph :
       {cases::transformer(2, 1), cases::unfused_transformer(2), cases::sequences(2)}) {
    for (const char* name :
         {"megatron:cp=2", "megatron:cp=2,stripes=2", "megatron:cp=2,zero=3,recompute=full",
          "megatron:cp=2,zero=1,offload=on"})
      expect_same_as_plain(graph, name, 2);
    for (const char* name : {"megatron:cp=2,dp=2,stripes=2,micro-batches=1", "megatron:cp=2,tp=2",
                             "megatron:cp=2,tp=2,sequence-parallel=on", "megatron:cp=4",
                             "megatron:cp=2,pp=2,stripes=2"})
      expect_same_as_plain(graph, name, 4);
  }
  const Graph graph = cases::transformer(2, 1);
  const PreparedStep step = expect_same_as_plain(graph, "megatron:cp=4,stripes=2", 4);
  EXPECT_EQ(degrees_of_step(graph, step).cp, 4);
  EXPECT_EQ(degrees_of_step(graph, step).dp, 1);
}

TEST(RunTasks, SplitExpertsInSlots) {
  const Graph graph = sequences_in_slots(4);
  for (const char* name : {"megatron:ep=2", "megatron:ep=2,zero=1", "megatron:ep=2,recompute=full",
                           "megatron:ep=2,zero=3,offload=on", "megatron:ep=2,micro-batches=2"})
    expect_same_as_plain(graph, name, 2);
  for (const char* name : {"megatron:ep=4", "megatron:ep=2", "megatron:ep=2,tp=2",
                           "megatron:ep=2,cp=2,stripes=2", "megatron:ep=2,pp=2,micro-batches=2"})
    expect_same_as_plain(graph, name, 4);
  const PreparedStep step = expect_same_as_plain(graph, "megatron:ep=4", 4);
  EXPECT_EQ(degrees_of_step(graph, step).ep, 4);
  EXPECT_EQ(degrees_of_step(graph, step).dp, 4);
  // Rows and counts to the experts, rows back; the gradients of both the other way.
  EXPECT_GE(count_collectives(step, 4, Collective::AllToAll), 5);
}

// The first devices have only some of the choices; whole networks are split as well by hand.
TEST(RunTasks, SlotsAreSplitAnyHow) {
  const Machine machine = cases::machine(4);
  const Graph graph = sequences_in_slots(4);
  const TrainingGraph training = differentiate(graph);
  const StepStart start = cases::random_start(training, 1, 5);
  const StepEnd expected = run_plainly(training, start);
  for (const char* loop : {"expert", "block", "width", "n", "k"}) {
    SCOPED_TRACE(loop);
    Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
    strategy.groups = {{}};
    for (size_t d = 0; d < 4; ++d) strategy.groups[0].emplace_back(d);
    strategy.shardings = {{{{-1, 4}}}};
    int split = 0;
    for (size_t i = 0; i < training.forward_ops; ++i) {
      const LoopNest nest = loops_of(training.graph, training.graph.ops[i]);
      for (size_t l = 0; l < nest.loops.size(); ++l) {
        if (nest.loops[l].name != loop || nest.loops[l].size < 4 ||
            nest.loops[l].role == LoopRole::Whole)
          continue;
        strategy.shardings.push_back({{{static_cast<int32_t>(l), 4}}});
        strategy.ops[i] = static_cast<int32_t>(strategy.shardings.size()) - 1;
        ++split;
      }
    }
    EXPECT_GE(split, 2);
    expect_same_end(
        training,
        [&] {
          const TaskGraph tasks = lower(training, strategy, machine);
          EXPECT_THAT(check_tasks(training, machine, strategy, tasks), testing::IsEmpty());
          return run_tasks(training, machine, tasks, start);
        },
        expected);
  }
}

// Tensors keep their names where rows are put into slots, and draw the same values by name.
StepStart start_by_name(const TrainingGraph& training, uint64_t seed) {
  StepStart start = cases::random_start(training, 1, seed);
  const auto draw = [&](TensorId id) {
    const Tensor& tensor = training.graph[id];
    Rng rng(std::hash<std::string>()(tensor.name) + seed);
    Array array(tensor.type.shape);
    for (double& value : array.values)
      value = is_float(tensor.type.dtype) ? rng.uniform(-0.5, 0.5)
                                          : static_cast<double>(rng.integer(0, 15));
    return array;
  };
  for (size_t t = 0; t < training.graph.tensors.size(); ++t)
    if (training.graph.tensors[t].role == TensorRole::Weight) start.values[t] = draw(TensorId(t));
  start.data = [draw](TensorId id, int32_t) { return draw(id); };
  return start;
}

TEST(ExpertSlots, ChangeNoNumber) {
  for (const Graph& graph : {cases::mixture(4), cases::sequences(2)}) {
    SCOPED_TRACE(graph.name);
    const TrainingGraph plain = differentiate(graph);
    const TrainingGraph slots = differentiate(with_expert_slots(graph, 2));
    // Random numbers are drawn by the number of the op: dropouts come before the mixture.
    const StepEnd expected = run_plainly(plain, start_by_name(plain, 1));
    const StepEnd found = run_plainly(slots, start_by_name(slots, 1));
    ASSERT_EQ(found.gradients.size(), expected.gradients.size());
    // First values are drawn by id.
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].role == TensorRole::Weight) {
        EXPECT_EQ(slots.graph.tensors[t].name, graph.tensors[t].name);
      }
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-12);
    for (size_t u = 0; u < expected.gradients.size(); ++u)
      expect_near(found.gradients[u], expected.gradients[u], "gradient");
  }
}

TEST(ExpertSlots, AreAsManyAsAsked) {
  const auto slots_with = [](double capacity) {
    const Graph graph = with_expert_slots(cases::sequences(2, 8), capacity);
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::Dispatch) return std::get<SlotAttrs>(op.attrs);
    return SlotAttrs{};
  };
  // 8 tokens of a sample choose 2 of 4 experts: 4 rows an expert.
  EXPECT_EQ(slots_with(1), (SlotAttrs{4, 8, 4}));
  EXPECT_EQ(slots_with(1.3), (SlotAttrs{4, 8, 6}));  // 5.2
  // A token chooses an expert once.
  EXPECT_EQ(slots_with(50), (SlotAttrs{4, 8, 8}));
  EXPECT_EQ(experts_of(cases::sequences(2)), 4);
  EXPECT_EQ(experts_of(cases::mlp()), 0);
  EXPECT_FALSE(has_expert_slots(cases::sequences(2)));
  EXPECT_TRUE(has_expert_slots(sequences_in_slots(2)));
  EXPECT_THROW(with_expert_slots(cases::mlp(), 1.5), Error);
  EXPECT_THROW(with_expert_slots(cases::sequences(2), 0.5), Error);
}

TEST(ExpertSlots, TooUnevenChoicesAreAnError) {
  const Graph graph = with_expert_slots(cases::sequences(2), 1);
  const TrainingGraph training = differentiate(graph);
  StepStart start = start_by_name(training, 1);
  for (size_t t = 0; t < training.graph.tensors.size(); ++t)
    if (training.graph.tensors[t].name == "gate.bias") start.values[t].values = {9, 8, 0, 0};
  try {
    run_plainly(training, start);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is chosen more than 4 times for 8 tokens"));
  }
}

TEST(Baselines, SplitsThatAreImpossibleSayWhy) {
  const auto complaint = [](const Graph& graph, const std::string& name) -> std::string {
    try {
      prepare_step(graph, parse_baseline(name), cases::machine(4), {});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(complaint(cases::mlp(), "megatron:cp=2"), testing::HasSubstr("no sequences"));
  EXPECT_THAT(complaint(cases::sequences(4), "megatron:cp=4,stripes=4"),
              testing::HasSubstr("4 stripes of 4"));
  EXPECT_THAT(complaint(cases::sequences(4), "megatron:stripes=2"), testing::HasSubstr("set cp"));
  EXPECT_THAT(complaint(cases::sequences(4), "megatron:ep=2"),
              testing::HasSubstr("--expert-capacity"));
  EXPECT_THAT(complaint(sequences_in_slots(4), "megatron:tp=2,ep=4"),
              testing::HasSubstr("replicas"));
}

}  // namespace
}  // namespace windlass

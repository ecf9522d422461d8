// Ops that are alike share what lowering works out: against lowering each by itself.

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/case_networks.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

// Loops that are given op by op are those of no other op.
TrainingGraph with_loops_of_each(TrainingGraph training) {
  std::vector<LoopNest> nests;
  for (size_t i = 0; i < training.forward_ops; ++i)
    nests.push_back(loops_of(training.graph, training.graph.ops[i]));
  training.graph.loops = std::make_shared<const std::vector<LoopNest>>(std::move(nests));
  return training;
}

void expect_same_tasks(const TaskGraph& found, const TaskGraph& expected) {
  EXPECT_TRUE(found.works == expected.works);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_TRUE(found.task_lanes == expected.task_lanes);
  EXPECT_TRUE(found.predecessor_begin == expected.predecessor_begin);
  EXPECT_TRUE(found.predecessors == expected.predecessors);
  EXPECT_TRUE(found.use_begin == expected.use_begin);
  for (size_t i = 0; i < found.size(); ++i) {
    const Task &a = found.tasks[i], &b = expected.tasks[i];
    ASSERT_TRUE(a.kind == b.kind && a.price == b.price && a.op == b.op && a.tensor == b.tensor &&
                a.how == b.how && a.begins == b.begins)
        << i;
  }
  ASSERT_EQ(found.buffers.size(), expected.buffers.size());
  for (size_t i = 0; i < found.buffers.size(); ++i) {
    const Buffer &a = found.buffers[i], &b = expected.buffers[i];
    ASSERT_TRUE(a.kind == b.kind && a.bytes == b.bytes && a.tensor == b.tensor &&
                a.layout == b.layout && a.memory == b.memory && a.at_start == b.at_start &&
                a.at_end == b.at_end)
        << i;
  }
  for (size_t i = 0; i < found.uses.size(); ++i) {
    const Use &a = found.uses[i], &b = expected.uses[i];
    ASSERT_TRUE(a.buffer == b.buffer && a.write == b.write && a.adds == b.adds &&
                a.kind == b.kind && a.index == b.index)
        << i;
  }
}

TEST(OpModels, TasksAreThoseOfOpsByThemselves) {
  Rng rng(31);
  int compared = 0;
  for (const Graph& network : {cases::mlp(16, 6), cases::cnn(16, true), cases::transformer(8, 4),
                               cases::repeated(), cases::mixture(), cases::noisy(), cases::views(),
                               cases::dropout(), cases::unfused_transformer()}) {
    const TrainingGraph training = differentiate(network);
    const TrainingGraph alone = with_loops_of_each(training);
    const Machine machine = cases::machine(4);
    // Kept from one strategy to the next, as searches do.
    Lowering shared(training, machine), each(alone, machine);
    for (int round = 0; round < sampled(40); ++round) {
      const Strategy strategy = cases::random_strategy(training, machine, rng);
      try {
        const TaskGraph& expected = each.lower(strategy);
        expect_same_tasks(shared.lower(strategy), expected);
        ++compared;
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal) throw;
      }
    }
  }
  EXPECT_GT(compared, sampled(200));
}

}  // namespace
}  // namespace windlass

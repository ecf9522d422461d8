// A clean task graph is broken in every way that matters; the checker must complain each time.

#include <algorithm>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/plan/loose_graph.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using cases::LooseGraph;
using cases::LooseTask;

struct Case {
  std::string name;
  PreparedStep step;
  Machine machine;
  TaskGraph tasks;

  std::vector<std::string> check(const TaskGraph& graph) const {
    return check_tasks(step.training, machine, step.strategy, graph);
  }
};

std::vector<Case> make_cases() {
  const auto make = [](const Graph& graph, const std::string& strategy, int devices,
                       double clip = 0) {
    Case result{graph.name + " " + strategy, {}, cases::machine(devices), {}};
    result.step =
        prepare_step(graph, parse_baseline(strategy), result.machine, {.clip_norm = clip});
    result.tasks = lower(result.step.training, result.step.strategy, result.machine);
    return result;
  };
  return {
      make(cases::mlp(16, 2), "single", 1),
      make(cases::mlp(16, 2), "data-parallel:micro-batches=2", 4),
      make(cases::mlp(16, 2), "zero:stage=1,micro-batches=2", 2),
      make(cases::mlp(16, 2), "zero:stage=2,micro-batches=2", 2),
      make(cases::mlp(16, 2), "zero:stage=3,bucket=4KiB", 4),
      make(cases::mlp(16, 2), "offload-all:micro-batches=2", 2),
      make(cases::mlp(16, 2), "data-parallel:host-update=on", 2),
      make(cases::cnn(8), "one-weird-trick", 2),
      make(cases::cnn(8, true), "recompute-all", 2),
      make(cases::transformer(4, 1, false), "megatron:tp=2,pp=2,micro-batches=2", 4),
      make(cases::transformer(4, 2, true), "gpipe:stages=2,micro-batches=2", 2),
      make(cases::transformer(4, 1, false), "megatron:tp=2,sequence-parallel=on", 4),
      make(cases::mlp(16, 2), "zero:stage=2,micro-batches=2", 2, 1),
      make(cases::mlp(16, 2), "data-parallel:host-update=on", 2, 1),
      make(cases::transformer(4, 2, true), "gpipe:stages=2,micro-batches=2", 2, 1),
      make(cases::views(), "single", 1),
      make(cases::views(), "recompute-all:micro-batches=2", 2),
      make(cases::mlp(16, 2), "zero:stage=2,micro-batches=3", 2),
      make(cases::mlp(7, 2), "offload-all:micro-batches=2", 2),
      make(cases::transformer(5, 1, false), "megatron:tp=2,pp=2,micro-batches=3", 4),
  };
}

class Mutation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    cases_ = make_cases();
    for (const Case& c : cases_) ASSERT_TRUE(c.check(c.tasks).empty()) << c.name;
  }
  static void TearDownTestSuite() { cases_.clear(); }

  // Breaks one task after the other; `mutate` says whether it could.
  void expect_all_found(const std::function<bool(const Case&, LooseGraph&, size_t, Rng&)>& mutate) {
    Rng rng(1);
    size_t tried = 0;
    for (const Case& c : cases_) {
      const LooseGraph clean(c.tasks);
      const size_t step = std::max<size_t>(1, clean.tasks.size() / (hurried() ? 15 : 60));
      for (size_t i = 0; i < clean.tasks.size(); i += step) {
        LooseGraph broken = clean;
        const std::string what =
            fmt::format("{}: task {} {}", c.name, i, task_kind_name(clean.tasks[i].task.kind));
        if (!mutate(c, broken, i, rng)) continue;
        ++tried;
        EXPECT_FALSE(c.check(broken.build()).empty()) << what;
      }
    }
    EXPECT_GT(tried, 50u);
  }

  // Whether anybody needs what the task leaves: a gather may bring weights that the pass does not
  // read.
  static bool matters(const LooseGraph& graph, size_t i) {
    const Task& task = graph.tasks[i].task;
    if (!moves(task.kind) || task.op.valid()) return true;
    for (const Use& use : graph.tasks[i].uses) {
      if (!use.write) continue;
      if (graph.rest[use.buffer].at_end) return true;
      for (size_t k = i + 1; k < graph.tasks.size(); ++k)
        for (const Use& other : graph.tasks[k].uses)
          if (other.buffer == use.buffer) return true;
    }
    return false;
  }

  static std::vector<Case> cases_;
};
std::vector<Case> Mutation::cases_;

TEST_F(Mutation, DropTask) {
  expect_all_found([](const Case&, LooseGraph& graph, size_t i, Rng&) {
    if (!matters(graph, i)) return false;
    graph.tasks.erase(graph.tasks.begin() + static_cast<std::ptrdiff_t>(i));
    return true;
  });
}

TEST_F(Mutation, DuplicateTask) {
  expect_all_found([](const Case&, LooseGraph& graph, size_t i, Rng&) {
    LooseTask copy = graph.tasks[i];
    copy.id = {};
    copy.after.push_back(graph.tasks[i].id);
    graph.tasks.insert(graph.tasks.begin() + static_cast<std::ptrdiff_t>(i) + 1, copy);
    return true;
  });
}

// Whether `from` comes before `to` through predecessors and lanes.
bool reaches(const LooseGraph& graph, size_t from, size_t to) {
  std::vector<bool> before(graph.tasks.size(), false);
  before[from] = true;
  for (size_t k = from + 1; k <= to; ++k) {
    for (TaskId id : graph.tasks[k].after) before[k] = before[k] || before[id.index()];
    for (LaneId lane : graph.tasks[k].lanes)
      for (size_t j = from; j < k; ++j)
        if (before[j] &&
            std::ranges::find(graph.tasks[j].lanes, lane) != graph.tasks[j].lanes.end())
          before[k] = true;
  }
  return before[to];
}

TEST_F(Mutation, DropPredecessor) {
  expect_all_found([](const Case&, LooseGraph& graph, size_t i, Rng&) {
    LooseTask& task = graph.tasks[i];
    for (size_t k = 0; k < task.after.size(); ++k) {
      const LooseTask& before = graph.tasks[task.after[k].index()];
      const bool feeds = std::ranges::any_of(before.uses, [&](const Use& a) {
        return a.write &&
               std::ranges::any_of(task.uses, [&](const Use& b) { return a.buffer == b.buffer; });
      });
      if (!feeds) continue;
      const size_t from = task.after[k].index();
      task.after.erase(task.after.begin() + static_cast<std::ptrdiff_t>(k));
      return !reaches(graph, from, i);
    }
    return false;
  });
}

TEST_F(Mutation, SwapBuffer) {
  expect_all_found([](const Case&, LooseGraph& graph, size_t i, Rng& rng) {
    auto& uses = graph.tasks[i].uses;
    if (uses.empty()) return false;
    Use& use = uses[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(uses.size()) - 1))];
    const Buffer& old = graph.rest[use.buffer];
    std::vector<BufferId> others;
    for (size_t b = 0; b < graph.rest.buffers.size(); ++b) {
      const Buffer& buffer = graph.rest.buffers[b];
      if (buffer.memory == old.memory &&
          (buffer.tensor != old.tensor || buffer.micro_batch != old.micro_batch))
        others.push_back(BufferId(b));
    }
    if (others.empty()) return false;
    use.buffer =
        others[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(others.size()) - 1))];
    return true;
  });
}

TEST_F(Mutation, DropUse) {
  expect_all_found([](const Case&, LooseGraph& graph, size_t i, Rng& rng) {
    auto& uses = graph.tasks[i].uses;
    const Task& task = graph.tasks[i].task;
    if (uses.empty() || !matters(graph, i)) return false;
    // What a bundle of moves leaves behind must be read to be missed.
    const bool bundle = task.kind == TaskKind::Gather || task.kind == TaskKind::SwapIn;
    const size_t k = static_cast<size_t>(rng.integer(0, static_cast<int64_t>(uses.size()) - 1));
    if (bundle && uses[k].write) return false;
    uses.erase(uses.begin() + static_cast<std::ptrdiff_t>(k));
    return true;
  });
}

TEST_F(Mutation, WrongMicroBatch) {
  expect_all_found([](const Case& c, LooseGraph& graph, size_t i, Rng&) {
    Task& task = graph.tasks[i].task;
    // Gradients of weights that go to another group are of no micro-batch of their own.
    if (task.micro_batch < 0 || c.step.strategy.micro_batches < 2) return false;
    if (task.tensor.valid() &&
        c.step.training.graph[task.tensor].role == TensorRole::WeightGradient)
      return false;
    task.micro_batch = (task.micro_batch + 1) % static_cast<int32_t>(c.step.strategy.micro_batches);
    return true;
  });
}

TEST_F(Mutation, ShrinkBuffer) {
  expect_all_found([](const Case&, LooseGraph& graph, size_t i, Rng& rng) {
    const LooseTask& task = graph.tasks[i];
    std::vector<BufferId> read;
    for (const Use& use : task.uses)
      if (!moves(task.task.kind)) read.push_back(use.buffer);
    if (read.empty()) return false;
    Buffer& buffer = graph.rest.buffers[read[static_cast<size_t>(rng.integer(
                                                 0, static_cast<int64_t>(read.size()) - 1))]
                                            .index()];
    if (buffer.bytes.value < 4) return false;
    buffer.bytes = Bytes(buffer.bytes.value / 4);
    return true;
  });
}

TEST_F(Mutation, SkipUpdateOfOneWeight) {
  size_t tried = 0;
  for (const Case& c : cases_) {
    const LooseGraph clean(c.tasks);
    for (size_t i = 0; i < clean.tasks.size(); ++i) {
      if (clean.tasks[i].task.kind != TaskKind::Update) continue;
      for (const Use& use : clean.tasks[i].uses) {
        if (clean.rest[use.buffer].kind != BufferKind::Weight) continue;
        LooseGraph broken = clean;
        std::erase_if(broken.tasks[i].uses,
                      [&](const Use& other) { return other.buffer == use.buffer; });
        ++tried;
        EXPECT_FALSE(c.check(broken.build()).empty()) << c.name << ": task " << i;
      }
    }
  }
  EXPECT_GT(tried, 20u);
}

TEST_F(Mutation, WrongReduction) {
  size_t tried = 0;
  for (const Case& c : cases_) {
    const LooseGraph clean(c.tasks);
    for (size_t i = 0; i < clean.tasks.size(); ++i) {
      if (clean.tasks[i].task.kind != TaskKind::Reduce) continue;
      LooseGraph broken = clean;
      Traffic traffic = clean.rest.traffics[static_cast<size_t>(clean.tasks[i].task.price)];
      traffic.volume = Bytes(traffic.volume.value / 2);
      broken.tasks[i].task.price = static_cast<int32_t>(broken.rest.traffics.size());
      broken.rest.traffics.push_back(traffic);
      broken.rest.loads.push_back(broken.rest.loads[0]);
      ++tried;
      EXPECT_FALSE(c.check(broken.build()).empty()) << c.name << ": task " << i;
    }
  }
  EXPECT_GT(tried, 5u);
}

TEST_F(Mutation, WrongOp) {
  expect_all_found([](const Case& c, LooseGraph& graph, size_t i, Rng&) {
    Task& task = graph.tasks[i].task;
    if (!task.op.valid()) return false;
    const Graph& training = c.step.training.graph;
    for (size_t k = 0; k < training.ops.size(); ++k)
      if (OpId(k) != task.op && training.ops[k].kind == training[task.op].kind &&
          training.ops[k].pass == training[task.op].pass) {
        task.op = OpId(k);
        return true;
      }
    return false;
  });
}

TEST_F(Mutation, OtherStrategy) {
  for (const Case& c : cases_) {
    Strategy other = c.step.strategy;
    for (Residency& weight : other.weights)
      weight.zero = static_cast<uint8_t>((weight.zero + 2) % 4);
    other.stages.front().last -= 1;
    EXPECT_FALSE(check_tasks(c.step.training, c.machine, other, c.tasks).empty()) << c.name;
  }
}

}  // namespace
}  // namespace windlass

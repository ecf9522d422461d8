#include "windlass/plan/packs/check_packs.h"

#include <functional>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/check.h"
#include "windlass/plan/packs/random_chain.h"
#include "windlass/sim/reference/naive.h"

namespace windlass {
namespace {

using Findings = std::vector<std::string>;

TEST(CheckPacks, RandomStrategiesAreRight) {
  Rng rng(5);
  const Machine machine = load_machine("4x1080ti");
  int checked = 0;
  for (int round = 0; round < 300; ++round) {
    const LayerProfile profile = synthetic_profile(rng, rng.integer(3, 12));
    ChainTables chain(profile);
    const PackStrategy strategy = random_pack_strategy(rng, profile);
    const int64_t minibatch = rng.integer(strategy.replicas, 24);
    PackLowering lowering(chain, machine);
    const PackSteps* steps = lowering.lower(strategy, minibatch, 2);
    if (!steps) continue;
    ++checked;
    ASSERT_EQ(check_pack_tasks(profile, machine, strategy, minibatch, *steps), Findings{})
        << "round " << round;
  }
  EXPECT_GT(checked, 150);
}

// A lowering that remembers what it was asked for last lowers as one that knows nothing, with
// labels or without.
TEST(PackTasks, LoweringAgainIsLoweringAnew) {
  Rng rng(15);
  const Machine machine = load_machine("4x1080ti");
  const LayerProfile profile = synthetic_profile(rng, 9);
  ChainTables chain(profile);
  PackLowering used(chain, machine);
  for (int round = 0; round < 200; ++round) {
    const PackStrategy strategy = random_pack_strategy(rng, profile);
    const int64_t minibatch = rng.integer(strategy.replicas, 24);
    PackLowering fresh(chain, machine);
    const PackSteps* expected = fresh.lower(strategy, minibatch, 2);
    const PackSteps* found = used.lower(strategy, minibatch, 2, rng.chance(0.5));
    ASSERT_EQ(found == nullptr, expected == nullptr) << round;
    if (!found) continue;
    ASSERT_EQ(found->graph->size(), expected->graph->size()) << round;
    EXPECT_EQ(found->volume, expected->volume) << round;
    EXPECT_EQ(found->graph->predecessors, expected->graph->predecessors) << round;
    EXPECT_EQ(found->times->workspace, expected->times->workspace) << round;
    const SimResult one = Simulator().run(*found->graph, *found->times),
                    two = Simulator().run(*expected->graph, *expected->times);
    EXPECT_EQ(one.end, two.end) << round;
    for (size_t m = 0; m < one.peaks.size(); ++m)
      EXPECT_EQ(one.peaks[m].bytes, two.peaks[m].bytes) << round;
  }
}

// Tasks that can be changed.
struct Mutant {
  TaskGraph graph;
  TaskTimes times;
  PackSteps steps;

  explicit Mutant(const PackSteps& from) : graph(*from.graph), times(*from.times), steps(from) {
    point();
  }
  Mutant(const Mutant& other) : graph(other.graph), times(other.times), steps(other.steps) {
    point();
  }
  Mutant& operator=(const Mutant&) = delete;
  void point() {
    steps.graph = &graph;
    steps.times = &times;
  }
  // Tasks anew: `copies(i)` of task i, whose uses that `keep(i, use)` refuses are left out.
  void rebuild(const std::function<int(size_t)>& copies,
               const std::function<bool(size_t, const Use&)>& keep) {
    const TaskGraph old = graph;
    const TaskTimes old_times = times;
    const PackSteps old_steps = steps;
    graph.tasks.clear();
    graph.lane_begin = graph.predecessor_begin = graph.use_begin = {0};
    graph.task_lanes.clear();
    graph.predecessors.clear();
    graph.uses.clear();
    times = {};
    steps.tasks.clear();
    steps.begin.clear();
    std::vector<TaskId> now(old.size());
    for (size_t i = 0; i < old.size(); ++i) {
      if (i == old_steps.begin[steps.begin.size()]) steps.begin.push_back(graph.size());
      std::vector<TaskId> after;
      for (TaskId before : old.predecessors_of(TaskId(i)))
        if (now[before.index()].valid()) after.push_back(now[before.index()]);
      std::vector<Use> uses;
      for (const Use& use : old.uses_of(TaskId(i)))
        if (keep(i, use)) uses.push_back(use);
      for (int copy = copies(i); copy > 0; --copy) {
        now[i] = graph.add(old.tasks[i], old.lanes_of(TaskId(i)), after, uses);
        times.duration.push_back(old_times.duration[i]);
        times.workspace.push_back(old_times.workspace[i]);
        steps.tasks.push_back(old_steps.tasks[i]);
      }
    }
    steps.begin.push_back(graph.size());
  }
};

constexpr auto kAllUses = [](size_t, const Use&) { return true; };
constexpr auto kOnce = [](size_t) { return 1; };

// A chain of six layers on two replicas of pipelines of two, or as given.
class PackMutation : public ::testing::Test {
 protected:
  PackMutation() : machine_(load_machine("4x1080ti")) {
    Rng rng(3);
    profile_ = synthetic_profile(rng, 6);
    strategy_ = plain_packs({{0, 1}, {2, 3}}, {{0, 1}, {2, 3}, {4, 5}});
    strategy_.forward_microbatch = strategy_.backward_microbatch = 2;
    strategy_.replicas = strategy_.depth = 2;
    strategy_.streams = true;
    strategy_.piece_bytes = 25'000'000;
    strategy_.state_bytes = 4'000'000'000;
  }
  Mutant base() {
    ChainTables chain(profile_);
    PackLowering lowering(chain, machine_);
    const PackSteps* steps = lowering.lower(strategy_, kSamples, 2);
    EXPECT_TRUE(steps);
    Mutant mutant(*steps);
    EXPECT_EQ(check(mutant), Findings{});
    return mutant;
  }
  Findings check(const Mutant& mutant) {
    return check_pack_tasks(profile_, machine_, strategy_, kSamples, mutant.steps);
  }
  // Whether a finding says so.
  void expect_found(const Mutant& mutant, const std::string& part) {
    const Findings findings = check(mutant);
    for (const std::string& finding : findings)
      if (finding.find(part) != std::string::npos) return;
    ADD_FAILURE() << "nobody says \"" << part << "\"; first of " << findings.size() << ": "
                  << (findings.empty() ? "" : findings.front());
  }
  static size_t find(const Mutant& mutant, TaskKind kind, PackData what, size_t skip = 0) {
    for (size_t i = 0; i < mutant.graph.size(); ++i)
      if (mutant.graph.tasks[i].kind == kind && mutant.steps.tasks[i].what == what && skip-- == 0)
        return i;
    ADD_FAILURE() << "no such task";
    return 0;
  }
  void drop(const Mutant& from, size_t task, const std::string& part) {
    Mutant mutant = from;
    mutant.rebuild([&](size_t i) { return i == task ? 0 : 1; }, kAllUses);
    expect_found(mutant, part);
  }
  void repeat(const Mutant& from, size_t task, const std::string& part) {
    Mutant mutant = from;
    mutant.rebuild([&](size_t i) { return i == task ? 2 : 1; }, kAllUses);
    expect_found(mutant, part);
  }

  static constexpr int64_t kSamples = 12;
  Machine machine_;
  LayerProfile profile_;
  PackStrategy strategy_;
};

TEST_F(PackMutation, EveryTaskIsMissed) {
  const auto without_each = [&] {
    const Mutant whole = base();
    for (size_t task = 0; task < whole.graph.size(); task += hurried() ? 5 : 1) {
      Mutant mutant = whole;
      mutant.rebuild([&](size_t i) { return i == task ? 0 : 1; }, kAllUses);
      EXPECT_NE(check(mutant), Findings{})
          << "without task " << task << " " << task_kind_name(whole.graph.tasks[task].kind);
    }
  };
  without_each();
  strategy_.device_update = {1, 0, 1};
  strategy_.keep_shares = {1, 1, 0};
  without_each();
  strategy_.replicas = 4;
  strategy_.depth = 1;
  strategy_.actions = {PackAction::Offload, PackAction::Keep, PackAction::Recompute};
  strategy_.stash_on_host = {1, 0, 0};
  without_each();
  PackStrategy plain = plain_packs(strategy_.forward_packs, strategy_.backward_packs);
  plain.forward_microbatch = plain.backward_microbatch = 2;
  plain.replicas = 4;
  strategy_ = plain;
  without_each();
}

TEST_F(PackMutation, EveryComputationIsOnce) {
  const Mutant whole = base();
  for (size_t task = 0; task < whole.graph.size(); ++task) {
    if (moves(whole.graph.tasks[task].kind)) continue;
    Mutant mutant = whole;
    mutant.rebuild([&](size_t i) { return i == task ? 2 : 1; }, kAllUses);
    EXPECT_NE(check(mutant), Findings{}) << "task " << task << " twice";
  }
}

TEST_F(PackMutation, FaultsAreNamed) {
  const Mutant whole = base();
  drop(whole, find(whole, TaskKind::HostUpdate, PackData::Weights), "is not updated");
  repeat(whole, find(whole, TaskKind::HostUpdate, PackData::Weights), "is updated again");
  drop(whole, find(whole, TaskKind::Reduce, PackData::Gradients), "not summed");
  repeat(whole, find(whole, TaskKind::Reduce, PackData::Gradients), "summed again");
  drop(whole, find(whole, TaskKind::Gather, PackData::Weights), "weights of layer");
  drop(whole, find(whole, TaskKind::Backward, PackData::Backward, 1), "lack samples");
  repeat(whole, find(whole, TaskKind::Forward, PackData::Input), "before");
  drop(whole, find(whole, TaskKind::SwapOut, PackData::Input), "nobody has written");
  drop(whole, find(whole, TaskKind::Send, PackData::Backward), "nobody has written");
  drop(whole, find(whole, TaskKind::Recompute, PackData::Saved), "saved");
  drop(whole, find(whole, TaskKind::SwapOut, PackData::Gradients), "not on the host");
}

TEST_F(PackMutation, WrongPlacesSizesAndTimes) {
  const Mutant whole = base();
  Mutant mutant = whole;
  mutant.times.duration[find(whole, TaskKind::Backward, PackData::Backward)] /= 2;
  expect_found(mutant, "takes");
  mutant.times = whole.times;
  mutant.times.workspace[find(whole, TaskKind::Forward, PackData::Input)] = 1;
  expect_found(mutant, "workspace");

  const size_t load = find(whole, TaskKind::SwapIn, PackData::Weights);
  const BufferId weights = whole.graph.uses_of(TaskId(load))[0].buffer;
  const auto change = [&](const char* part, const std::function<void(Mutant&)>& how) {
    Mutant changed = whole;
    how(changed);
    expect_found(changed, part);
  };
  change("bytes, expected", [&](Mutant& m) { m.graph.buffers[weights.index()].bytes = Bytes(1); });
  // Weights for the other device, of other layers, for fewer bytes.
  change("no buffer",
         [&](Mutant& m) { m.graph.buffers[weights.index()].memory = m.graph.teams[1].memory; });
  change("weights of layer 0", [&](Mutant& m) { m.steps.tasks[load].layers = {0, 0}; });
  change("moves", [&](Mutant& m) {
    m.graph.tasks[load].price = m.graph.tasks[find(whole, TaskKind::SwapIn, PackData::Input)].price;
  });
  // A pack on the wrong device, and samples that are not there.
  const size_t forward = find(whole, TaskKind::Forward, PackData::Input);
  change("place", [&](Mutant& m) {
    const LaneId lane = m.graph.task_lanes[m.graph.lane_begin[forward]];
    m.graph.task_lanes[m.graph.lane_begin[forward]] =
        LaneId(lane.index() + m.graph.lanes.size() / 2);
  });
  change("input is not there", [&](Mutant& m) {
    m.steps.tasks[forward].begin += 2;
    m.steps.tasks[forward].end += 2;
  });
  change("outlives", [&](Mutant& m) { m.graph.buffers[weights.index()].at_end = true; });
  change("outlives", [&](Mutant& m) { m.graph.buffers[0].at_end = false; });
  change("limit", [&](Mutant& m) { m.graph.memories[0].limit = Bytes(INT64_MAX); });
  change("other devices", [&](Mutant& m) { std::swap(m.graph.teams[0], m.graph.teams[1]); });
}

// Weights that go after the first micro-batch; stashes and gradients that nobody waits for.
TEST_F(PackMutation, LifetimesAndOrder) {
  const Mutant whole = base();
  const size_t load = find(whole, TaskKind::SwapIn, PackData::Weights);
  const BufferId weights = whole.graph.uses_of(TaskId(load))[0].buffer;
  Mutant mutant = whole;
  int computed = 0;
  mutant.rebuild(kOnce, [&](size_t i, const Use& use) {
    return use.buffer != weights || moves(whole.graph.tasks[i].kind) || ++computed == 1;
  });
  expect_found(mutant, "weights of layer");

  for (const auto& [kind, what] :
       {std::pair(TaskKind::SwapOut, PackData::Gradients),
        std::pair(TaskKind::Reduce, PackData::Gradients),
        std::pair(TaskKind::Gather, PackData::Weights),
        std::pair(TaskKind::HostUpdate, PackData::Weights),
        std::pair(TaskKind::SwapOut, PackData::Input), std::pair(TaskKind::Send, PackData::Input),
        std::pair(TaskKind::Send, PackData::Backward)}) {
    Mutant hasty = whole;
    const size_t task = find(whole, kind, what, 1);
    for (size_t k = hasty.graph.predecessor_begin[task];
         k < hasty.graph.predecessor_begin[task + 1]; ++k)
      hasty.graph.predecessors[k] = TaskId(size_t{0});
    SCOPED_TRACE(fmt::format("{} {}", task_kind_name(kind), static_cast<int>(what)));
    expect_found(hasty, "without waiting");
  }
  // Weights of the second step before their update.
  Mutant early = whole;
  for (size_t i = early.steps.begin[1]; i < early.graph.size(); ++i) {
    if (early.graph.tasks[i].kind != TaskKind::SwapIn ||
        early.steps.tasks[i].what != PackData::Weights)
      continue;
    for (size_t k = early.graph.predecessor_begin[i]; k < early.graph.predecessor_begin[i + 1]; ++k)
      early.graph.predecessors[k] = TaskId(size_t{0});
    break;
  }
  expect_found(early, "without waiting");
}

}  // namespace
}  // namespace windlass

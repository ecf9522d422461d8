// Recomputation of single ops in the exact search: against brute force, and against what lowering
// makes of it.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/graph/op_info.h"
#include "windlass/plan/check.h"
#include "windlass/plan/step.h"
#include "windlass/search/exact/reference/every_fate.h"
#include "windlass/search/exact/reference/small_networks.h"
#include "windlass/search/exact/sharding/sharding_problem.h"

namespace windlass {
namespace {

// Cases of a test: its own number, or as many as the environment asks for.
uint64_t fate_rounds(uint64_t usual) {
  const char* asked = std::getenv("WINDLASS_FATE_ROUNDS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : sampled(usual);
}

struct FateCase {
  TrainingGraph training;
  Machine machine;
  int64_t micro_batches = 1;
};

// The slower the way to the host, the more there is to recompute.
Machine fate_machine(int devices, const std::string& link) {
  return machine_from_json(fmt::format(R"({{"name": "fates",
        "device_types": {{"card": {{"memory": "8GiB", "peak": {{"fp32": "1GFLOPS"}},
                                    "memory_bandwidth": "10GB/s"}}}},
        "nodes": [{{"count": 1, "host": {{"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"}},
                    "devices": [{{"type": "card", "count": {}}}], "switches": ["root"],
                    "links": [{{"from": "gpu*", "to": "root", "bandwidth": "1GB/s", "latency": "1us"}},
                              {{"from": "root", "to": "host", "bandwidth": "{}", "latency": "1us"}}]}}]}})",
                                       devices, link),
                           "fates");
}

FateCase draw_fate_case(std::mt19937_64& random) {
  for (;;) {
    const int devices = 1 << random() % 3;
    const Graph network = cases::small_network(random);
    const int64_t micro_batches = int64_t{1} << random() % 3;
    TrainingOptions options;
    if (random() % 3 == 0) options.optimizer = OptimizerKind::Sgd;
    try {
      return {cut_training(network, micro_batches, options).training,
              fate_machine(devices, random() % 3 == 0 ? "1GB/s" : "1MB/s"), micro_batches};
    } catch (const Error&) {  // the batch cannot be cut so
    }
  }
}

std::vector<TimeBytes> points_of(const std::vector<ParetoChoice>& choices) {
  std::vector<TimeBytes> points;
  for (const ParetoChoice& choice : choices) points.push_back(choice.cost);
  return points;
}

ShardingProblem with_fates(const FateCase& at, const CostModel& cost) {
  return make_sharding_problem(at.training, at.machine, cost, at.micro_batches,
                               {.recompute = true});
}

Fate fate_of(const ShardingProblem& problem, const ParetoChoice& choice, size_t op) {
  return problem
      .fates[static_cast<size_t>(problem.kind_of[op])][static_cast<size_t>(choice.options[op])];
}

bool recomputes(const ShardingProblem& problem, const ParetoChoice& choice) {
  for (size_t i = 0; i < problem.kind_of.size(); ++i)
    if (fate_of(problem, choice, i) == Fate::Again) return true;
  return false;
}

TEST(Fates, TradeEqualsBruteForce) {
  const auto cost = analytic_cost_model();
  const uint64_t rounds = fate_rounds(240);
  uint64_t compared = 0, several = 0, recomputing = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    std::mt19937_64 random(seed);
    const FateCase at = draw_fate_case(random);
    const TrainingFacts facts(at.training);
    if (!FateRules(at.training, facts, at.machine.devices.size()).possible()) continue;
    const auto truth = trade_by_brute_force(at.training, at.machine, *cost, at.micro_batches, 3e5);
    if (!truth) continue;
    const ShardingProblem problem = with_fates(at, *cost);
    const ParetoNetwork network = problem.network();
    const std::vector<ParetoChoice> found = exact_frontier(network, {.budget = 1e9});
    ASSERT_EQ(points_of(found), *truth) << "seed " << seed;
    recomputing += std::ranges::any_of(
        found, [&](const ParetoChoice& choice) { return recomputes(problem, choice); });
    several += at.machine.devices.size() > 1 ? 1 : 0;
    ++compared;
  }
  EXPECT_GT(compared, rounds / 2);
  EXPECT_GT(several, rounds / 8);
  EXPECT_GT(recomputing, rounds / 4);
}

// The same choice with everything run once and kept that is run again in it; none if one of its
// options is beaten by another home of weights.
std::optional<ParetoChoice> kept_instead(const ShardingProblem& problem,
                                         const ParetoNetwork& network, ParetoChoice choice) {
  for (size_t i = 0; i < problem.kind_of.size(); ++i) {
    const auto kind = static_cast<size_t>(problem.kind_of[i]);
    const auto option = static_cast<size_t>(choice.options[i]);
    const LocalChoice& now = problem.choices[kind][option][static_cast<size_t>(choice.variants[i])];
    const MemoryAction saved =
        now.saved == MemoryAction::Recompute ? MemoryAction::Keep : now.saved;
    if (problem.fates[kind][option] == Fate::Away) continue;
    // The first fate under the same sharding.
    size_t first = option;
    while (first > 0 && problem.shardings[kind][first - 1] == problem.shardings[kind][option])
      --first;
    const auto& variants = problem.choices[kind][first];
    const auto same = std::ranges::find_if(variants, [&](const LocalChoice& other) {
      return other.residency == now.residency && other.saved == saved;
    });
    if (same == variants.end()) return std::nullopt;
    choice.options[i] = static_cast<int32_t>(first);
    choice.variants[i] = static_cast<int32_t>(same - variants.begin());
  }
  choice.cost = cost_of(network, choice);
  return choice;
}

// What lowering makes of a strategy.
struct LoweredStep {
  std::set<size_t> again;  // ops
  double time = 0;         // nanoseconds of the ops of both passes and of their exchanges and moves
  // Handed from the first forward to the first backward pass, without what lives longer; and of
  // these, what is not data.
  double bytes = 0, made_bytes = 0;
};

LoweredStep lowered(const FateCase& at, const CostModel& cost, Strategy strategy) {
  strategy.micro_batches = at.micro_batches;
  EXPECT_NO_THROW(check_strategy(at.training, at.machine, strategy));
  const SimulatedStep step = simulate_step(at.training, strategy, at.machine, cost);
  EXPECT_EQ(step.result.status, SimStatus::Done);
  EXPECT_EQ(check_tasks(at.training, at.machine, strategy, step.tasks), std::vector<std::string>{});
  EXPECT_EQ(check_run(step.tasks, step.times, step.result), std::vector<std::string>{});
  const TaskGraph& tasks = step.tasks;
  LoweredStep found;
  std::vector<bool> before(tasks.buffers.size(), false), after(tasks.buffers.size(), false);
  for (size_t b = 0; b < tasks.buffers.size(); ++b) before[b] = tasks.buffers[b].at_start;
  size_t last_forward = 0;
  for (size_t t = 0; t < tasks.size(); ++t)
    if (tasks.tasks[t].kind == TaskKind::Forward && tasks.tasks[t].micro_batch == 0)
      last_forward = t;
  for (size_t t = 0; t < tasks.size(); ++t) {
    const Task& task = tasks.tasks[t];
    const bool again = task.kind == TaskKind::Recompute;
    if (again) found.again.insert(task.op.index());
    const bool first_team = tasks[tasks.lanes_of(TaskId(t))[0]].team.index() == 0;
    if (first_team && (again || task.kind == TaskKind::Forward || task.kind == TaskKind::Backward))
      found.time += static_cast<double>(step.times.duration[t]);
    if (task.kind == TaskKind::Collective && task.micro_batch >= 0)
      found.time += std::nearbyint(
          time_alone(at.machine, tasks.traffics[static_cast<size_t>(task.price)]).value * 1e9);
    for (const Use& use : tasks.uses_of(TaskId(t))) {
      if (t <= last_forward) before[use.buffer.index()] = true;
      if (t > last_forward && task.kind != TaskKind::SwapOut) after[use.buffer.index()] = true;
    }
  }
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    const Buffer& buffer = tasks.buffers[b];
    const bool on_device = tasks[buffer.memory].team == TeamId(0);
    if (!on_device || !before[b] || !after[b] || buffer.micro_batch != 0 || buffer.at_end) continue;
    found.bytes += static_cast<double>(buffer.bytes.value);
    if (buffer.kind != BufferKind::Input)
      found.made_bytes += static_cast<double>(buffer.bytes.value);
  }
  return found;
}

bool moves_nothing(const ParetoNetwork& network, const ParetoChoice& choice) {
  for (const ParetoNetwork::Edge& edge : network.edges) {
    const auto a = static_cast<size_t>(edge.a), b = static_cast<size_t>(edge.b);
    const TimeBytes& cell =
        network.tables[static_cast<size_t>(edge.table)]
                      [static_cast<size_t>(choice.options[a]) * network.of(b).size() +
                       static_cast<size_t>(choice.options[b])];
    if (cell != TimeBytes{}) return false;
  }
  return true;
}

// Some of the frontier, and then some of all that go together.
struct SomeChoices {
  std::vector<ParetoChoice> list;
  size_t of_frontier = 0;
};
SomeChoices some_choices(const ParetoNetwork& network, std::mt19937_64& random) {
  constexpr size_t kOfFrontier = 8, kDraws = 100, kDrawn = 8;
  const std::vector<ParetoChoice> found = exact_frontier(network, {.resolution = 64});
  SomeChoices some;
  const size_t step = found.size() / kOfFrontier + 1;
  for (size_t c = random() % step; c < found.size(); c += step) some.list.push_back(found[c]);
  some.of_frontier = some.list.size();
  size_t drawn = 0;
  for (size_t k = 0; k < kDraws && drawn < kDrawn; ++k) {
    ParetoChoice choice;
    for (size_t v = 0; v < network.size(); ++v) {
      choice.options.push_back(static_cast<int32_t>(random() % network.of(v).size()));
      const auto& variants = network.of(v)[static_cast<size_t>(choice.options[v])];
      choice.variants.push_back(static_cast<int32_t>(random() % variants.size()));
    }
    choice.cost = cost_of(network, choice);
    if (is_never(choice.cost)) continue;
    some.list.push_back(std::move(choice));
    ++drawn;
  }
  return some;
}

// What a choice claims beside the same one without recomputation is what lowering adds and frees:
// exactly where nothing is moved between ops; else moves of one tensor to several readers are
// claimed apart, and done once where they want the same. None of a frontier claims less than it
// holds.
TEST(Fates, ClaimsAreWhatLoweringDoes) {
  const auto cost = analytic_cost_model();
  const uint64_t rounds = fate_rounds(200);
  uint64_t compared = 0, of_frontier = 0, still = 0, exact = 0, held = 0;
  for (uint64_t seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const FateCase at = draw_fate_case(random);
    const TrainingFacts facts(at.training);
    if (!FateRules(at.training, facts, at.machine.devices.size()).possible()) continue;
    const ShardingProblem problem = with_fates(at, *cost);
    const ParetoNetwork network = problem.network();
    const SomeChoices some = some_choices(network, random);
    for (size_t c = 0; c < some.list.size(); ++c) {
      const ParetoChoice& choice = some.list[c];
      const bool needed = c < some.of_frontier;
      const LoweredStep with = lowered(at, *cost, problem.strategy(at.training, choice));
      std::set<size_t> again;
      for (size_t i = 0; i < problem.kind_of.size(); ++i)
        if (fate_of(problem, choice, i) == Fate::Again &&
            !op_info(at.training.graph.ops[i].kind).view)
          again.insert(i);
      // A choice may claim what nobody asks for, but none of a frontier does.
      ASSERT_TRUE(std::ranges::includes(again, with.again));
      ASSERT_TRUE(!needed || with.again == again);
      // Weights that live on the host are not among the claimed bytes.
      const Strategy strategy = problem.strategy(at.training, choice);
      if (needed && std::ranges::all_of(strategy.weights, &Residency::host)) {
        ASSERT_LE(with.made_bytes, choice.cost.bytes);
        ++held;
      }
      const auto kept = kept_instead(problem, network, choice);
      if (with.again.empty() || !kept) continue;
      const LoweredStep without = lowered(at, *cost, problem.strategy(at.training, *kept));
      ASSERT_TRUE(without.again.empty());
      const double claimed = choice.cost.time - kept->cost.time;
      const double freed = kept->cost.bytes - choice.cost.bytes;
      ++compared;
      ASSERT_LE(with.time - without.time, claimed + 2);
      of_frontier += needed ? 1 : 0;
      exact += needed && with.time - without.time >= claimed - 2 ? 1 : 0;
      if (!needed || !moves_nothing(network, choice) || !moves_nothing(network, *kept)) continue;
      ++still;
      ASSERT_NEAR(with.time - without.time, claimed, 2);
      ASSERT_EQ(without.bytes - with.bytes, freed);
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(compared, rounds);
  EXPECT_GT(held, rounds);
  EXPECT_GT(of_frontier, rounds);
  EXPECT_GT(still, of_frontier / 4);
  EXPECT_GT(exact, of_frontier * 3 / 4);
}

}  // namespace
}  // namespace windlass

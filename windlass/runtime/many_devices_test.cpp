// Steps on several devices are those of one device: every op under every sharding, random
// strategies, packs of layers.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/plan/every_sharding.h"
#include "windlass/plan/paged_step.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

using testing_runs::batch_of_network;
using testing_runs::run_steps;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

RunEnd run(const TrainingGraph& training, const Machine& machine, const Strategy& strategy,
           const StepStart& start, const BatchAxes& batch, const RunSettings& settings = {}) {
  const SimulatedStep step = simulate_step(training, strategy, machine, *analytic_cost_model(), {});
  return run_steps(training, machine, step.tasks, step.times, step.result, start, batch, settings);
}

// Of types of 16 bits, which are compared as a whole: single elements are mostly rounding.
constexpr double kNarrow = 0.3;

using Values = std::map<std::string, std::vector<double>>;

// Where two differ by more than sums that are rounded in another order; empty if nowhere.
std::string differ(const Values& found, const Values& expected, double tolerance,
                   const std::string& what) {
  if (found.size() != expected.size()) return what + ": others are there";
  double most = 0;  // over all: what is zero but for rounding has no scale of its own
  for (const auto& [name, values] : expected)
    for (double value : values) most = std::max(most, std::abs(value));
  double apart = 0, all = 0;
  for (const auto& [name, values] : expected) {
    if (!found.contains(name) || found.at(name).size() != values.size())
      return fmt::format("{} of {} is not there", what, name);
    const std::vector<double>& other = found.at(name);
    double scale = 1e-2 * most + 1e-6;
    for (double value : values) scale = std::max(scale, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) {
      apart += (other[i] - values[i]) * (other[i] - values[i]);
      all += values[i] * values[i];
      if (tolerance < kNarrow && !(std::abs(other[i] - values[i]) <= tolerance * scale))
        return fmt::format("{} of {}, element {} is {}, expected {}", what, name, i, other[i],
                           values[i]);
    }
  }
  if (!(apart <= tolerance * tolerance * all + 1e-12)) return what + " as a whole";
  return {};
}

std::string differ(const RunEnd& found, const RunEnd& expected, double tolerance) {
  // Later steps of small networks make much of the rounding of the first.
  const double later = std::max(tolerance, 2e-2);
  for (size_t s = 0; s < expected.losses.size(); ++s) {
    const double near = (s == 0 ? tolerance : later) * std::max(1.0, std::abs(expected.losses[s]));
    if (!(std::abs(found.losses[s] - expected.losses[s]) <= near))
      return fmt::format("loss of step {} is {}, expected {}", s + 1, found.losses[s],
                         expected.losses[s]);
  }
  std::string where = differ(found.gradients, expected.gradients, tolerance, "gradient");
  if (where.empty())
    where = differ(found.first.weights, expected.first.weights, tolerance, "weight");
  if (where.empty()) where = differ(found.first.states, expected.first.states, tolerance, "state");
  if (where.empty())
    where = differ(found.last.weights, expected.last.weights, later, "last weight");
  return where;
}

// The same values but for their last bits.
StepStart shaken(const StepStart& start, double by, uint64_t seed) {
  StepStart other = start;
  Rng rng(seed);
  for (Array& array : other.values)
    for (double& value : array.values) value *= 1 + by * rng.uniform(-1, 1);
  return other;
}

// That a run is the expected one. Where single values stand at a kink, or logits are saturated, the
// last bits decide: then the plain run differs from itself as well if they are others, and nothing
// is known. Returns whether it is.
bool expect_same_run(const RunEnd& found, const RunEnd& expected, double tolerance,
                     const std::function<RunEnd(const StepStart&)>& plainly,
                     const StepStart& start) {
  const std::string where = differ(found, expected, tolerance);
  if (where.empty()) return true;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const double by = tolerance >= kNarrow ? 4e-3 : seed % 2 == 0 ? 1e-6 : 1e-5;
    if (!differ(plainly(shaken(start, by, seed)), expected, tolerance).empty()) return false;
  }
  ADD_FAILURE() << where;
  return true;
}

double tolerance_of(const Graph& graph) {
  const bool narrow = std::ranges::any_of(graph.tensors, [](const Tensor& tensor) {
    return tensor.type.dtype == DType::BF16 || tensor.type.dtype == DType::F16;
  });
  return narrow ? kNarrow : 1e-4;
}

uint64_t from_environment(const char* name, uint64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

// The same samples on one device, in as many micro-batches.
RunEnd run_plain(const TrainingGraph& training, const StepStart& start, const BatchAxes& batch) {
  Strategy plain = plain_strategy(training, DeviceId(size_t{0}));
  plain.micro_batches = start.micro_batches;
  return run(training, cases::machine(1), plain, start, batch);
}

// It is lossy, by numbers that are drawn for each task.
void no_compression(Strategy& strategy) {
  for (MemoryAction& action : strategy.saved)
    if (compressed_bits(action) > 0) action = MemoryAction::Offload;
}

// Calls visit(step, axes of the samples) for random steps, on one or several hosts, as many as
// asked for or as the environment says. Returns how many there were.
template <class Visit>
uint64_t for_random_steps(uint64_t usual, Visit&& visit) {
  const uint64_t begin = from_environment("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = from_environment("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(usual));
  uint64_t ran = 0;
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    no_compression(step.strategy);
    step.begin(seed);
    SCOPED_TRACE(step.name);
    try {
      visit(step, batch_of_network(step.training));
    } catch (const Error& error) {
      ADD_FAILURE() << error.message();
    }
    ++ran;
  }
  EXPECT_GE(ran, count > 20 ? count / 4 : 0);
  return ran;
}

TEST(ManyDevices, RandomStrategiesTrainAsOneDevice) {
  uint64_t known = 0;
  const uint64_t ran = for_random_steps(120, [&](cases::RandomStep& step, const BatchAxes& batch) {
    // Of unequal micro-batches the batch that they make.
    const auto plainly = [&](const StepStart& start) {
      if (!step.whole) return run_plain(step.training, start, batch);
      return run_plain(*step.whole, cases::start_of_batch(*step.whole, start),
                       batch_of_network(*step.whole));
    };
    const RunEnd found = run(step.training, step.machine, step.strategy, step.start, batch);
    const double tolerance = tolerance_of(step.training.graph);
    if (expect_same_run(found, plainly(step.start), tolerance, plainly, step.start)) ++known;
  });
  EXPECT_GE(known, ran - ran / 50 - (ran > 0 ? 1 : 0));
}

TEST(ManyDevices, EveryOpUnderEverySharding) {
  size_t runs = 0, number = 0;
  for (const reference::OpCase& c : reference::op_cases(9)) {
    if (hurried() && number++ % 3 != 0) continue;
    SCOPED_TRACE(c.name);
    std::optional<RunEnd> expected;
    cases::for_every_sharding(
        c, [&](const TrainingGraph& training, const StepStart& start, const Machine& machine,
               const Strategy& strategy, const std::string& what) {
          if (testing::Test::HasFatalFailure()) return;
          SCOPED_TRACE(what);
          const RunSettings once = {.steps = 1};
          try {
            if (!expected)
              expected = run(training, cases::machine(1),
                             plain_strategy(training, DeviceId(size_t{0})), start, {}, once);
            const RunEnd found = run(training, machine, strategy, start, {}, once);
            EXPECT_EQ(differ(found, *expected, tolerance_of(training.graph)), "");
          } catch (const Error& error) {
            FAIL() << error.message();
          }
          ++runs;
        });
  }
  EXPECT_GT(runs, 100U);
}

// Positions of sequences and experts on different devices, with dropout and labels that are left
// out.
TEST(ManyDevices, SplitSequencesAndExpertsTrainAsOneDevice) {
  const Graph tokens = cases::sequences(4), slots = with_expert_slots(tokens, 2);
  const auto train = [](const Graph& graph, const char* name, int devices) {
    SCOPED_TRACE(fmt::format("{} on {} devices", name, devices));
    const Machine machine = cases::machine(devices);
    const PreparedStep step = prepare_step(graph, parse_baseline(name), machine, {});
    const StepStart start =
        cases::random_start(step.training, static_cast<int32_t>(step.strategy.micro_batches), 3);
    const BatchAxes batch = batch_of_network(step.training);
    const auto plainly = [&](const StepStart& from) {
      return run_plain(step.training, from, batch);
    };
    const RunEnd found = run(step.training, machine, step.strategy, start, batch);
    EXPECT_TRUE(expect_same_run(found, plainly(start), 1e-4, plainly, start));
  };
  train(tokens, "megatron:cp=2,stripes=2", 2);
  train(tokens, "megatron:cp=4,recompute=full", 4);
  train(tokens, "megatron:cp=2,dp=2,stripes=2,zero=3", 4);
  train(tokens, "megatron:cp=2,tp=2,sequence-parallel=on,offload=on", 4);
  train(slots, "megatron:ep=2", 2);
  train(slots, "megatron:ep=4,zero=1", 4);
  train(slots, "megatron:ep=2,recompute=full,micro-batches=2", 2);
  train(slots, "megatron:ep=2,offload=on", 4);
  train(slots, "megatron:ep=2,cp=2,stripes=2", 4);
}

// Moves so large that several threads share them leave the bits of those that one thread does.
TEST(ManyDevices, SharedMovesChangeNothing) {
  const Graph graph = cases::mlp(256, 2, 768);
  for (const char* name : {"data-parallel", "zero:stage=1", "zero:stage=3", "megatron:tp=4",
                           "megatron:tp=2", "1f1b:pp=2,micro-batches=2", "offload-all"}) {
    SCOPED_TRACE(name);
    Machine machine = cases::machine(4);
    const PreparedStep step = prepare_step(graph, parse_baseline(name), machine, {});
    const StepStart start =
        cases::random_start(step.training, static_cast<int32_t>(step.strategy.micro_batches), 3);
    const BatchAxes batch = batch_of_network(step.training);
    const auto train = [&] {
      return run(step.training, machine, step.strategy, start, batch, {.steps = 2});
    };
    const RunEnd expected = train();
    machine.device_types[0].copies_itself = true;
    const RunEnd found = train();
    EXPECT_EQ(found.losses, expected.losses);
    EXPECT_TRUE(found.last.bits == expected.last.bits);
  }
}

TEST(ManyDevices, DelaysChangeNothing) {
  uint64_t ran = 0;
  for (uint64_t seed = 1; ran < sampled<uint64_t>(40) && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep step = cases::random_step(seed);
    ++ran;
    step.begin(seed);
    SCOPED_TRACE(step.name);
    const BatchAxes batch = batch_of_network(step.training);
    const RunEnd expected = run(step.training, step.machine, step.strategy, step.start, batch);
    for (uint64_t trial = 1; trial <= 2; ++trial) {
      RunSettings settings;
      settings.delay = [&](int32_t task, int32_t part) {
        const uint64_t drawn = random_bits(seed, trial, static_cast<uint64_t>(task * 8 + part + 1));
        if (drawn % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 4 % 300));
      };
      const RunEnd found =
          run(step.training, step.machine, step.strategy, step.start, batch, settings);
      ASSERT_EQ(found.losses, expected.losses);
      ASSERT_TRUE(found.last.bits == expected.last.bits);
    }
  }
}

// Paging moves bytes and changes none. Kernels have room for what they need beside.
TEST(ManyDevices, PagedStepsTrainAsOthers) {
  uint64_t number = 0;
  for_random_steps(60, [&](cases::RandomStep& step, const BatchAxes& batch) {
    const RunSettings settings = {.steps = 3};
    const RunEnd expected =
        run(step.training, step.machine, step.strategy, step.start, batch, settings);
    const double room[] = {1, 1.5, 4};
    const Machine small =
        cases::paged_machine(step.training, step.strategy, step.machine, room[number++ % 3]);
    step.strategy.virtual_memory = true;
    const TaskGraph tasks = lower(step.training, step.strategy, small);
    TaskTimes times = price_tasks(tasks, small, *analytic_cost_model());
    std::ranges::fill(times.workspace, 0);
    Simulator simulator;
    const SimResult simulated = simulator.run(tasks, times);
    ASSERT_EQ(simulated.status, SimStatus::Done);
    const RunEnd found = run_steps(step.training, step.machine, tasks, times, simulated, step.start,
                                   batch, settings);
    ASSERT_EQ(found.losses, expected.losses);
    ASSERT_EQ(found.last.weights, expected.last.weights);
    ASSERT_EQ(found.last.states, expected.last.states);
  });
}

TEST(ManyDevices, RandomPacksTrainAsOneDevice) {
  const uint64_t begin = from_environment("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = from_environment("WINDLASS_RANDOM_STEPS", sampled<uint64_t>(80));
  uint64_t known = 0;
  for (uint64_t seed = begin; seed < begin + count && !testing::Test::HasFailure(); ++seed) {
    const cases::RandomPacks step = cases::random_pack_step(seed);
    SCOPED_TRACE(step.name);
    const StepStart start = cases::random_start(step.training, 1, seed);
    const BatchAxes batch = batch_of_network(step.training);
    try {
      const TaskGraph tasks = lower_packs(step.training, step.strategy, step.machine);
      const auto cost = analytic_cost_model();
      const TaskTimes times = price_tasks(tasks, step.machine, *cost);
      Simulator simulator;
      const SimResult simulated = simulator.run(tasks, times);
      ASSERT_EQ(simulated.status, SimStatus::Done);
      const RunEnd found =
          run_steps(step.training, step.machine, tasks, times, simulated, start, batch);
      const auto plainly = [&](const StepStart& from) {
        return run_plain(step.training, from, batch);
      };
      known +=
          expect_same_run(found, plainly(start), tolerance_of(step.training.graph), plainly, start)
              ? 1
              : 0;
    } catch (const Error& error) {
      FAIL() << error.message();
    }
  }
  EXPECT_TRUE(testing::Test::HasFailure() || known + count / 50 + 1 >= count);
}

}  // namespace
}  // namespace windlass

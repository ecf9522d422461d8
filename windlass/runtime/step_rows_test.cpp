// Steps that overlap are those that do not: the same bits, inside the same limits, in the memory
// that was predicted.

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <limits>
#include <mutex>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/plan/random_packs.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step_row.h"
#include "windlass/runtime/run_testing.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/runtime/trainer.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

using testing_runs::run_steps;
using testing_runs::RunEnd;
using testing_runs::RunSettings;

constexpr int kRowSteps = 6;

// A step that may be in a row, and what it begins with.
struct RowCase {
  const TrainingGraph& training;
  const Machine& machine;
  SimulatedStep step;
  StepStart start;

  RunEnd run(const RunSettings& settings) const {
    return run_steps(training, machine, step.tasks, step.times, step.result, start,
                     testing_runs::batch_of_network(training), settings);
  }
};

// Rows of 2 and of 3 steps against steps by themselves, with tasks that are late at random. Returns
// whether the first tasks of a step come before the last ones of the step before.
bool expect_rows_alike(const RowCase& c, uint64_t seed) {
  const RunEnd expected = c.run({.steps = kRowSteps, .other_data = true});
  bool overlap = false;
  for (int32_t steps : {2, 3}) {
    const std::vector<TaskId> late = late_updates(c.step);
    for (int way = 0; way < (late.empty() ? 2 : 4); ++way) {
      StepRow row = chain_steps(c.step.tasks, c.step.times, steps,
                                way % 2 == 0 ? RowStart::Free : RowStart::AfterBackward,
                                way < 2 ? std::vector<TaskId>() : late);
      Simulator simulator;
      row.result = simulator.run(row.tasks, row.times);
      if (row.result.status != SimStatus::Done) continue;  // memory is too short
      overlap |= row.result.makespan < steps * c.step.result.makespan;
      RunSettings settings = {.steps = kRowSteps, .row = &row, .other_data = true};
      settings.delay = [&](int32_t task, int32_t part) {
        const uint64_t drawn = random_bits(seed, 1, static_cast<uint64_t>(task * 8 + part + 1));
        if (drawn % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn / 8 % 200));
      };
      const RunEnd found = c.run(settings);
      EXPECT_EQ(found.losses, expected.losses) << steps << " steps";
      EXPECT_EQ(found.norms, expected.norms) << steps << " steps";
      EXPECT_TRUE(found.last.bits == expected.last.bits) << steps << " steps";
      EXPECT_EQ(found.outcome.links.size(), expected.outcome.links.size());
      for (size_t l = 0; l < found.outcome.links.size(); ++l)
        EXPECT_EQ(found.outcome.links[l].bytes, expected.outcome.links[l].bytes);
    }
  }
  return overlap;
}

TEST(StepRows, RandomStrategiesTrainAsStepsByThemselves) {
  const auto count = sampled<uint64_t>(60);
  uint64_t overlapping = 0;
  for (uint64_t seed = 1; seed <= count && !testing::Test::HasFailure(); ++seed) {
    cases::RandomStep drawn = cases::random_step(seed);
    drawn.begin(seed);
    SCOPED_TRACE(drawn.name);
    const RowCase c = {
        drawn.training, drawn.machine,
        simulate_step(drawn.training, drawn.strategy, drawn.machine, *analytic_cost_model(), {}),
        drawn.start};
    overlapping += expect_rows_alike(c, seed) ? 1 : 0;
  }
  EXPECT_GE(overlapping, count / 4);
}

TEST(StepRows, RandomPacksTrainAsStepsByThemselves) {
  const auto count = sampled<uint64_t>(40);
  uint64_t overlapping = 0;
  for (uint64_t seed = 1; seed <= count && !testing::Test::HasFailure(); ++seed) {
    const cases::RandomPacks drawn = cases::random_pack_step(seed);
    SCOPED_TRACE(drawn.name);
    SimulatedStep step;
    step.tasks = lower_packs(drawn.training, drawn.strategy, drawn.machine);
    step.times = price_tasks(step.tasks, drawn.machine, *analytic_cost_model());
    Simulator simulator;
    step.result = simulator.run(step.tasks, step.times);
    ASSERT_EQ(step.result.status, SimStatus::Done);
    const RowCase c = {drawn.training, drawn.machine, std::move(step),
                       cases::random_start(drawn.training, 1, seed)};
    overlapping += expect_rows_alike(c, seed) ? 1 : 0;
  }
  EXPECT_GT(overlapping, count / 2);
}

// The last update on the host waits until a forward task of the next step has begun: no step would
// ever end if that waited for all updates. Gradients are clipped, so that updates come last.
TEST(StepRows, TheNextStepBeginsBeforeTheLastUpdates) {
  const Machine machine = cases::machine(2);
  const Graph network = cases::mlp(8, 3);
  const PreparedStep prepared =
      prepare_step(network, parse_baseline("data-parallel:host-weights=on,host-update=on,bucket=1"),
                   machine, {.clip_norm = 1});
  const RowCase c = {
      prepared.training, machine,
      simulate_step(prepared.training, prepared.strategy, machine, *analytic_cost_model()),
      cases::random_start(prepared.training, static_cast<int32_t>(prepared.strategy.micro_batches),
                          1)};
  const std::vector<TaskId> late = late_updates(c.step);
  ASSERT_GT(late.size(), 1U);
  StepRow row = chain_steps(c.step.tasks, c.step.times, 2, RowStart::Free, late);
  Simulator simulator;
  row.result = simulator.run(row.tasks, row.times);
  ASSERT_EQ(row.result.status, SimStatus::Done);
  EXPECT_LT(row.result.makespan, 2 * c.step.result.makespan);
  const auto update = static_cast<int32_t>(row.tasks_each()) - 1;
  ASSERT_EQ(row.tasks.tasks[static_cast<size_t>(update)].kind, TaskKind::HostUpdate);
  size_t forward = row.tasks_each();
  while (row.tasks.tasks[forward].kind != TaskKind::Forward) ++forward;

  std::mutex mutex;
  std::condition_variable changed;
  bool begun = false;
  RunSettings settings = {.steps = 2, .row = &row};
  settings.delay = [&](int32_t task, int32_t) {
    std::unique_lock lock(mutex);
    if (task == static_cast<int32_t>(forward)) {
      begun = true;
      changed.notify_all();
    }
    if (task == update) changed.wait(lock, [&] { return begun; });
  };
  const RunEnd found = c.run(settings), expected = c.run({.steps = 2});
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_TRUE(found.last.bits == expected.last.bits);
}

// A model on one device of this host, with prices as measured, in rows.
struct RowTrainer {
  RowTrainer(const std::string& strategy, int32_t steps, std::function<bool(int64_t)> barrier = {},
             double rate = 1e-3)
      : RowTrainer(strategy, steps, testing_runs::host(), std::move(barrier), rate) {}
  RowTrainer(const std::string& strategy, int32_t steps, const Machine& host,
             std::function<bool(int64_t)> barrier = {}, double rate = 1e-3)
      : model(load_model("gpt2:layers=2,hidden=32,heads=2,vocab=64", {.batch = 4, .sequence = 8})),
        machine(host),
        prepared(prepare_step(model.graph, parse_baseline(strategy), machine,
                              {.optimizer = OptimizerKind::AdamW})),
        step(simulate_step(prepared.training, prepared.strategy, machine, *analytic_cost_model(),
                           {}, testing_runs::reprice)),
        row(make_row(step, steps)) {
    TrainerOptions options = {.rate = {.peak = rate, .warm_up = 3}, .seed = 7};
    if (steps > 1) options.overlap = {.row = &row, .barrier_after = std::move(barrier)};
    trainer.emplace(model, prepared.training, step, machine, options);
  }

  std::vector<double> losses(int count) {
    std::vector<double> found;
    for (int i = 0; i < count; ++i) {
      last = trainer->step();
      found.push_back(last.outcome.loss);
    }
    return found;
  }

  Model model;
  Machine machine;
  PreparedStep prepared;
  SimulatedStep step;
  StepRow row;
  std::optional<Trainer> trainer;
  TrainerStep last;
};

const std::string kStreamed = "offload-all:host-weights=on,host-update=on,bucket=4KiB";

// Rows end at barriers: after every fifth step, and before the run's end. Loss, number and learning
// rate of each step are its own.
TEST(StepRows, ATrainerTrainsTheSame) {
  for (const std::string& strategy : {std::string("single"), kStreamed}) {
    SCOPED_TRACE(strategy);
    RowTrainer plain(strategy, 1);
    RowTrainer rows(strategy, 3, [](int64_t step) { return step % 5 == 0 || step == 12; });
    std::vector<bool> in_row;
    for (int64_t step = 1; step <= 12; ++step) {
      const TrainerStep expected = plain.trainer->step(), found = rows.trainer->step();
      EXPECT_EQ(found.step, step);
      EXPECT_EQ(found.learning_rate, expected.learning_rate);
      EXPECT_EQ(found.outcome.loss, expected.outcome.loss) << step;
      EXPECT_GT(found.outcome.time, 0);
      EXPECT_EQ(found.outcome.start.size(), rows.step.tasks.size());
      in_row.push_back(rows.trainer->in_row());
      // Rows of one and of two work in the memory of those of three.
      if (!rows.trainer->in_row()) {
        EXPECT_EQ(rows.trainer->evaluate(2), plain.trainer->evaluate(2)) << step;
      }
    }
    const std::vector<bool> expected = {true, true,  false, true,  false, true,
                                        true, false, true,  false, true,  false};
    EXPECT_EQ(in_row, expected);
    EXPECT_EQ(rows.trainer->steps_done(), 12);
  }
}

// Prices are those of this host, so that peaks are: none above the prediction, inside of a limit
// that the row fits into exactly.
TEST(StepRows, PeaksAreAsPredicted) {
  RowTrainer roomy(kStreamed, 3);
  ASSERT_EQ(roomy.row.result.status, SimStatus::Done);
  roomy.losses(3);
  for (size_t m = 0; m < roomy.row.result.peaks.size(); ++m)
    EXPECT_LE(roomy.last.outcome.peaks[m], roomy.row.result.peaks[m].bytes);
  const Bytes most(roomy.row.result.peaks[0].bytes);
  RowTrainer tight(kStreamed, 3, testing_runs::host(most));
  ASSERT_EQ(tight.row.result.status, SimStatus::Done);
  EXPECT_EQ(tight.losses(6), RowTrainer(kStreamed, 1).losses(6));
  EXPECT_LE(tight.last.outcome.peaks[0], most.value);
}

TEST(StepRows, ALossThatIsNoNumberNamesItsStep) {
  // The first updates make the weights so large that a later step is not finite.
  RowTrainer plain(kStreamed, 1, {}, 1e18), rows(kStreamed, 4, {}, 1e18);
  const auto failure = [](RowTrainer& run) {
    try {
      run.losses(8);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Runtime);
      return error.message();
    }
    return std::string("no error");
  };
  const std::string expected = failure(plain);
  EXPECT_THAT(expected, testing::HasSubstr("the loss is"));
  EXPECT_EQ(failure(rows), expected);
  EXPECT_EQ(rows.trainer->steps_done(), plain.trainer->steps_done());
  EXPECT_FALSE(rows.trainer->in_row());
}

// Whoever leaves in the middle of a row leaves nothing behind that runs.
TEST(StepRows, ARowThatIsLeftEnds) {
  RowTrainer run(kStreamed, 4);
  run.losses(1);
  EXPECT_TRUE(run.trainer->in_row());
  run.trainer.reset();
}

}  // namespace
}  // namespace windlass

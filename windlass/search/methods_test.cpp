// What every search method owes, whichever it is: the table of methods is walked, and each method
// that suits a machine solves the same small problems.

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/samples.h"
#include "windlass/machine/first_devices.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/search/advice/device_frontier.h"
#include "windlass/search/book/ledger.h"
#include "windlass/sim/reference/naive.h"

namespace windlass {
namespace {

struct MethodCase {
  std::string name;
  Graph network;
  Machine machine;
  Reprice reprice = {};
};

// Prices that are not those of works, as measured ones are not.
void measured_prices(const TrainingGraph&, const TaskGraph& tasks, TaskTimes& times) {
  for (size_t i = 0; i < tasks.size(); ++i)
    if (!moves(tasks.tasks[i].kind)) times.duration[i] += 1000 + 37 * (times.duration[i] % 11);
}

std::vector<MethodCase> method_cases() {
  std::vector<MethodCase> list;
  list.push_back({"mlp on one device", cases::mlp(16, 6), cases::machine(1)});
  list.push_back({"measured mlp", cases::mlp(16, 3), cases::machine(1), measured_prices});
  list.push_back({"transformer on two", cases::transformer(8, 2, false), cases::machine(2)});
  if (hurried()) return list;
  list.push_back({"cnn on one device", cases::cnn(8, true), cases::machine(1)});
  list.push_back({"mlp on two nodes", cases::mlp(16, 3), cases::machine(2, 2)});
  list.push_back({"cnn on four", cases::cnn(16, false), cases::machine(4)});
  Machine unequal = cases::machine(2);
  unequal.devices[1].limit = Bytes(unequal.devices[1].limit.value / 2);
  list.push_back({"one small device", cases::mlp(16, 4), std::move(unequal)});
  return list;
}

Machine scaled_limits(const Machine& machine, double factor) {
  Machine result = machine;
  for (Device& device : result.devices)
    device.limit = Bytes(static_cast<int64_t>(factor * static_cast<double>(device.limit.value)));
  return result;
}

class EveryMethod : public testing::TestWithParam<std::string> {
 protected:
  // Null if the method is not one for the machine or the network: packs of layers want networks
  // whose samples do not mix.
  const SearchMethod* method_for(const MethodCase& at) const {
    try {
      if (GetParam() == "harmony") find_samples(differentiate(at.network));
      return &find_search_method(GetParam(), at.machine);
    } catch (const Error&) {
      return nullptr;
    }
  }
  Problem problem(const MethodCase& at, const Machine& machine) const {
    return {.network = at.network, .machine = machine, .cost = *cost_, .reprice = at.reprice};
  }
  static SearchOptions options() { return {.time_limit = Seconds(3600), .effort = 0.02}; }

  std::unique_ptr<CostModel> cost_ = analytic_cost_model();
};

void expect_same_strategy(const Strategy& a, const Strategy& b) {
  EXPECT_EQ(a.micro_batches, b.micro_batches);
  EXPECT_EQ(a.schedule, b.schedule);
  EXPECT_EQ(a.groups, b.groups);
  EXPECT_EQ(a.stages, b.stages);
  EXPECT_EQ(a.shardings, b.shardings);
  EXPECT_EQ(a.ops, b.ops);
  EXPECT_EQ(a.saved, b.saved);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.bucket, b.bucket);
  EXPECT_EQ(a.prefetch, b.prefetch);
  EXPECT_EQ(a.in_turn, b.in_turn);
  EXPECT_EQ(a.memory_cap, b.memory_cap);
  EXPECT_EQ(a.packs, b.packs);
}

void expect_monotone(const std::vector<FrontierPoint>& frontier) {
  for (size_t i = 1; i < frontier.size(); ++i) {
    EXPECT_LT(frontier[i - 1].limit, frontier[i].limit);
    EXPECT_GT(frontier[i - 1].step_time, frontier[i].step_time);
  }
}

// The strategy that is returned, simulated anew by both simulators: it carries out the step, takes
// the time that is stated, and stays inside of every limit.
void expect_plan_holds(const Problem& problem, const SearchResult& found) {
  const Machine& machine = problem.machine;
  ASSERT_NO_THROW(check_strategy(found.training, machine, found.strategy));
  const SimulatedStep step =
      simulate_step(found.training, found.strategy, machine, problem.cost, {}, problem.reprice);
  ASSERT_EQ(step.result.status, SimStatus::Done);
  EXPECT_EQ(step.step_time(), found.step_time);
  const SimResult again = simulate_naively(step.tasks, step.times);
  EXPECT_EQ(again.makespan, step.result.makespan);
  for (size_t m = 0; m < again.peaks.size(); ++m) {
    EXPECT_EQ(again.peaks[m].bytes, step.result.peaks[m].bytes);
    EXPECT_LE(again.peaks[m].bytes, step.tasks.memories[m].limit.value);
  }
  EXPECT_EQ(check_tasks(found.training, machine, found.strategy, step.tasks),
            std::vector<std::string>{});
  EXPECT_EQ(check_run(step.tasks, step.times, step.result), std::vector<std::string>{});
  EXPECT_LE(found.lower_bound, found.step_time);
  EXPECT_LE(work_bound(problem), found.step_time);
}

// Where nothing fits, the strategy that needs least runs at the limit that is stated, and a byte
// less is too little for it. If it fits here after all, the checker has refused it.
void expect_refusal_holds(const Problem& problem, const SearchResult& found) {
  const auto status = [&](int64_t limit) {
    Machine machine = problem.machine;
    for (Device& device : machine.devices) device.limit = Bytes(limit);
    return simulate_step(found.training, found.strategy, machine, problem.cost, {}, problem.reprice)
        .result.status;
  };
  const SimulatedStep here = simulate_step(found.training, found.strategy, problem.machine,
                                           problem.cost, {}, problem.reprice);
  if (here.result.status == SimStatus::Done) {
    EXPECT_FALSE(check_tasks(found.training, problem.machine, found.strategy, here.tasks).empty());
  }
  ASSERT_TRUE(found.least_limit.has_value());
  EXPECT_EQ(status(found.least_limit->value), SimStatus::Done);
  EXPECT_EQ(status(found.least_limit->value - 1), SimStatus::OutOfMemory);
}

// From plenty of memory down to none.
TEST_P(EveryMethod, HoldsAtEveryLimit) {
  for (const MethodCase& at : method_cases()) {
    const SearchMethod* method = method_for(at);
    if (method == nullptr) continue;
    SCOPED_TRACE(at.name);
    const SearchResult free = method->search(problem(at, at.machine), options());
    ASSERT_NE(free.termination, Termination::Infeasible);
    const SimulatedStep step =
        simulate_step(free.training, free.strategy, at.machine, *cost_, {}, at.reprice);
    int64_t peak = 0, limit = 0;
    for (size_t m = 0; m < step.tasks.memories.size(); ++m)
      if (step.tasks.memories[m].team.valid() && step.result.peaks[m].bytes > peak) {
        peak = step.result.peaks[m].bytes;
        limit = step.tasks.memories[m].limit.value;
      }
    const double fits = static_cast<double>(peak) / static_cast<double>(limit);
    Seconds with_more{0};
    bool refused = false;
    for (const double share : {1.0, 0.6, 0.3, 0.01}) {
      SCOPED_TRACE(share);
      const Machine machine = scaled_limits(at.machine, fits * share);
      const Problem limited = problem(at, machine);
      const SearchResult found = method->search(limited, options());
      expect_monotone(found.frontier);
      if (found.termination == Termination::Infeasible) {
        expect_refusal_holds(limited, found);
        refused = true;
        continue;
      }
      EXPECT_FALSE(refused) << "less memory suffices where more did not";
      EXPECT_NE(found.termination, Termination::Limit);
      if (found.termination == Termination::Optimal) {
        EXPECT_EQ(found.objective, found.objective_bound);
      }
      expect_plan_holds(limited, found);
      // What local search misses is small, even at a fiftieth of the usual effort.
      EXPECT_LE(with_more.value, 1.02 * found.step_time.value) << "more memory is slower";
      with_more = found.step_time;
    }
    EXPECT_TRUE(refused);
  }
}

// What the user has ruled out is in no strategy, however tight memory is. Packs of layers take no
// decisions.
TEST_P(EveryMethod, KeepsToDecisions) {
  if (GetParam() == "harmony") GTEST_SKIP() << "packs take no decisions";
  for (const MethodCase& at : method_cases()) {
    const SearchMethod* method = method_for(at);
    if (method == nullptr) continue;
    SCOPED_TRACE(at.name);
    const SearchResult free = method->search(problem(at, at.machine), options());
    const SimulatedStep step =
        simulate_step(free.training, free.strategy, at.machine, *cost_, {}, at.reprice);
    int64_t peak = 0;
    for (size_t m = 0; m < step.tasks.memories.size(); ++m)
      if (step.tasks.memories[m].team.valid()) peak = std::max(peak, step.result.peaks[m].bytes);
    Machine machine = at.machine;
    for (Device& device : machine.devices) device.limit = Bytes(peak / 2);
    SearchOptions decided = options();
    decided.fixed.offload = decided.fixed.host_update = decided.fixed.host_weights = false;
    const SearchResult found = method->search(problem(at, machine), decided);
    EXPECT_TRUE(decided.fixed.allows(found.strategy)) << termination_name(found.termination);
  }
}

TEST_P(EveryMethod, SameInputsSamePlan) {
  for (const MethodCase& at : method_cases()) {
    const SearchMethod* method = method_for(at);
    if (method == nullptr) continue;
    SCOPED_TRACE(at.name);
    SearchOptions one = options(), three = options();
    one.threads = 1;
    three.threads = 3;
    const SearchResult a = method->search(problem(at, at.machine), one);
    const SearchResult b = method->search(problem(at, at.machine), three);
    expect_same_strategy(a.strategy, b.strategy);
    EXPECT_EQ(a.termination, b.termination);
    EXPECT_EQ(a.step_time, b.step_time);
    EXPECT_EQ(a.lower_bound, b.lower_bound);
    EXPECT_EQ(a.tried, b.tried);
    EXPECT_EQ(a.proposals, b.proposals);
  }
}

// Whoever is stopped at once has something that holds, or says that nothing is known to fit; and
// says that it was stopped, unless there was no more to do.
TEST_P(EveryMethod, SaysThatItWasStopped) {
  for (const MethodCase& at : method_cases()) {
    const SearchMethod* method = method_for(at);
    if (method == nullptr) continue;
    SCOPED_TRACE(at.name);
    SearchOptions stopped = options();
    stopped.stop = [] { return true; };
    const Problem whole = problem(at, at.machine);
    const SearchResult found = method->search(whole, stopped);
    if (found.termination == Termination::Infeasible) continue;
    expect_plan_holds(whole, found);
    if (found.termination == Termination::Limit) continue;
    expect_same_strategy(found.strategy, method->search(whole, options()).strategy);
  }
}

// The number of micro-batches that is asked for, or an error where there cannot be so many.
TEST_P(EveryMethod, KeepsToTheMicroBatchesThatAreGiven) {
  for (const MethodCase& at : method_cases()) {
    const SearchMethod* method = method_for(at);
    if (method == nullptr) continue;
    SCOPED_TRACE(at.name);
    SearchOptions given = options();
    given.micro_batches = 2;
    const Problem whole = problem(at, at.machine);
    if (!find_batch(at.network).obstacle.empty() || GetParam() == "harmony") {
      EXPECT_THROW(method->search(whole, given), Error);
      continue;
    }
    const SearchResult found = method->search(whole, given);
    ASSERT_NE(found.termination, Termination::Infeasible);
    EXPECT_EQ(found.strategy.micro_batches, 2);
    expect_plan_holds(whole, found);
    given.micro_batches = 3;  // of 8 or 16 samples: of 3, 3 and 2, or of 6, 5 and 5
    const SearchResult unequal = method->search(whole, given);
    ASSERT_NE(unequal.termination, Termination::Infeasible);
    EXPECT_NE(unequal.termination, Termination::Optimal);
    EXPECT_EQ(unequal.strategy.micro_batches, 3);
    expect_plan_holds(whole, unequal);
    given.micro_batches = 17;
    EXPECT_THROW(method->search(whole, given), Error);
  }
}

// Packs of layers count where nothing fits: the least limit is not above theirs, and is one at
// which there is a plan.
TEST(LeastLimit, PacksAreInTheBook) {
  const Graph network = cases::mlp(16, 12, 256);
  const auto cost = analytic_cost_model();
  const auto at = [&](int64_t limit) {
    Machine machine = cases::machine(2);
    for (Device& device : machine.devices) device.limit = Bytes(limit);
    return machine;
  };
  const Machine none = at(1000);
  const Problem problem = {.network = network, .machine = none, .cost = *cost};
  const SearchResult all = search_all(problem, {.effort = 0.02});
  const SearchResult packs = search_harmony(problem, {.effort = 0.02});
  ASSERT_EQ(all.termination, Termination::Infeasible);
  ASSERT_TRUE(all.least_limit && packs.least_limit);
  EXPECT_LE(all.least_limit->value, packs.least_limit->value);
  const Machine enough = at(packs.least_limit->value);
  const Problem again = {.network = network, .machine = enough, .cost = *cost};
  const SearchResult found = search_all(again, {.effort = 0.02});
  ASSERT_NE(found.termination, Termination::Infeasible);
  expect_plan_holds(again, found);
}

// More devices and more memory never make a plan slower, and what stands in a cell fits there.
TEST(DeviceFrontier, IsMonotoneAndTrue) {
  const auto cost = analytic_cost_model();
  const Graph network = cases::transformer(8, 2, false);
  const Machine machine = cases::machine(4);
  const auto at = [&](size_t devices, Bytes limit) {
    Machine part = first_devices(machine, devices);
    for (Device& device : part.devices) device.limit = limit;
    return part;
  };
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchResult free =
      search_all({.network = network, .machine = at(1, Bytes(int64_t{1} << 40)), .cost = *cost});
  const SimulatedStep whole =
      simulate_step(free.training, free.strategy, at(1, Bytes(int64_t{1} << 40)), *cost, {}, {});
  const int64_t peak = whole.whole().peaks[0].bytes;
  DeviceFrontierOptions options = {
      .devices = usual_device_counts(4), .limits = {}, .search = {.effort = 0.1}};
  for (int64_t part : {1, 6, 24}) options.limits.push_back(Bytes(peak * part / 12));
  const std::vector<FrontierCell> cells = device_frontier(problem, nullptr, options);
  ASSERT_EQ(cells.size(), 9u);
  for (size_t i = 0; i < cells.size(); ++i) {
    const FrontierCell& cell = cells[i];
    EXPECT_EQ(cell.devices, options.devices[i / 3]);
    EXPECT_EQ(cell.limit, options.limits[i % 3]);
    for (size_t less = 0; less < i; ++less) {
      if (cells[less].devices > cell.devices || cells[less].limit > cell.limit) continue;
      EXPECT_TRUE(cell.fits || !cells[less].fits);
      if (cells[less].fits) {
        EXPECT_LE(cell.step_time, cells[less].step_time);
      }
    }
    if (!cell.fits) {
      ASSERT_TRUE(cell.least_limit.has_value());
      EXPECT_GT(*cell.least_limit, cell.limit);
      continue;
    }
    EXPECT_LE(cell.peak, cell.limit);
    EXPECT_LE(cell.found_for_devices, cell.devices);
    EXPECT_GE(
        cell.step_time,
        work_bound({.network = network, .machine = at(cell.devices, cell.limit), .cost = *cost}));
  }
  EXPECT_TRUE(cells.back().fits);
  EXPECT_FALSE(cells.front().fits);  // a twelfth of it on one device
}

// Packs have to be faster by more than noise; where they are not, that is said.
TEST(Noise, GoesToTheSimplerPlan) {
  const Graph network = cases::mlp(16, 3);
  const Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const SearchOptions options = {.effort = 0.02};
  const Strategy packs = search_harmony(problem, options).strategy;
  ASSERT_TRUE(packs.packs);
  for (const bool noise : {true, false}) {
    Ledger ledger(problem, options);
    const auto plain = ledger.named(parse_baseline("data-parallel"), 1);
    ASSERT_TRUE(plain && ledger.consider(*plain, 1).fits);
    const Nanoseconds time = ledger.best_time();
    ledger.add(packs, 1, noise ? time - time / 200 : time / 2);
    const SearchResult found = ledger.finish();
    EXPECT_EQ(found.strategy.packs.has_value(), !noise);
    EXPECT_EQ(found.passed_over.has_value(), noise);
    if (noise) {
      EXPECT_LT(*found.passed_over, found.step_time);
    }
  }
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const SearchMethod& method : search_methods()) names.emplace_back(method.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, testing::ValuesIn(method_names()),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace windlass

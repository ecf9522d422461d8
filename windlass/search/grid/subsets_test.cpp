#include "windlass/search/grid/subsets.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
#include "windlass/base/test_effort.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/cases.h"
#include "windlass/plan/check.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

// Devices of the kinds "a" (fast), "b" and "c" (slow), as in "aabc".
Machine mixed_machine(const std::string& kinds, const std::string& memory = "8GiB") {
  std::string devices;
  for (const char kind : kinds)
    devices += fmt::format(R"({}{{"type": "{}"}})", devices.empty() ? "" : ", ", kind);
  std::string types;
  for (const auto& [name, tera] : {std::pair("a", 12), {"b", 4}, {"c", 1}})
    types += fmt::format(
        R"({}"{}": {{"memory": "{}", "peak": {{"fp32": "{}TFLOPS"}}, "memory_bandwidth": "{}GB/s"}})",
        types.empty() ? "" : ", ", name, memory, tera, 50 * tera);
  return machine_from_json(fmt::format(
                               R"({{"name": "{}", "device_types": {{{}}},
        "nodes": [{{"count": 1, "host": {{"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"}},
                    "devices": [{}], "switches": ["root"],
                    "links": [{{"from": "gpu*", "to": "root", "bandwidth": "12GB/s", "latency": "5us"}},
                              {{"from": "root", "to": "host", "bandwidth": "20GB/s", "latency": "1us"}}]}}]}})",
                               kinds, types, devices),
                           "test");
}

std::string names(const std::string& kinds, const DeviceSubset& subset) {
  std::string text;
  for (DeviceId device : subset.devices) text += kinds[device.index()];
  return text;
}

std::vector<std::string> subsets_of(const std::string& kinds, int64_t batch,
                                    const FixedDecisions& fixed = {}) {
  const Graph network = cases::mlp(batch);
  const Machine machine = mixed_machine(kinds);
  const auto cost = analytic_cost_model();
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  const WorkBound bound(problem, differentiate(network));
  std::vector<std::string> list;
  Nanoseconds last = 0;
  for (const DeviceSubset& subset : device_subsets(machine, bound, batch, fixed)) {
    EXPECT_TRUE(std::ranges::is_sorted(subset.devices));
    EXPECT_GE(subset.least, last);
    last = subset.least;
    list.push_back(names(kinds, subset));
  }
  std::ranges::sort(list);
  return list;
}

using Names = std::vector<std::string>;

TEST(Subsets, OfDevicesThatAreAlike) {
  // Powers of two; seven divides badly, six well.
  EXPECT_EQ(subsets_of("aaaaaaa", 8), (Names{"a", "aa", "aaaa", "aaaaaa"}));
  EXPECT_EQ(subsets_of("aaaa", 8), (Names{"a", "aa"}));
  // Five samples on eight devices.
  EXPECT_EQ(subsets_of("aaaaaaaa", 5), (Names{"a", "aa", "aaaa", "aaaaa"}));
  EXPECT_EQ(subsets_of("a", 5), Names());
}

TEST(Subsets, OfSeveralKinds) {
  // Fast ones first whatever their order; kinds alone; as many of the next kind.
  EXPECT_EQ(subsets_of("caabcbb", 8), (Names{"a", "aa", "aabb", "aabbb", "bbb", "caabbb", "cc"}));
}

TEST(Subsets, AsTheUserHasDecided) {
  FixedDecisions fixed;
  fixed.tp = 5;
  const Names list = subsets_of("aaaaaaaaaaa", 64, fixed);
  for (const char* wanted : {"aaaaa", "aaaaaaaaaa"})
    EXPECT_NE(std::ranges::find(list, wanted), list.end()) << wanted;
}

// A machine with some of the devices only, the links of the others without use.
Machine only(const Machine& machine, const std::vector<DeviceId>& devices) {
  Machine result = machine;
  result.devices.clear();
  for (Endpoint& endpoint : result.endpoints)
    if (endpoint.kind == Endpoint::Kind::Device) endpoint.kind = Endpoint::Kind::Switch;
  for (DeviceId device : devices) {
    Endpoint& endpoint = result.endpoints[machine[device].endpoint.index()];
    endpoint.kind = Endpoint::Kind::Device;
    endpoint.index = static_cast<int32_t>(result.devices.size());
    result.devices.push_back(machine[device]);
  }
  index_links(result);
  return result;
}

// The fastest step that structures on all devices of a machine give, if something fits.
std::optional<Seconds> fastest_on(const Problem& problem) {
  const SearchOptions options;
  Ledger ledger(problem, options);
  run_grid(ledger, {all_devices(problem.machine)});
  if (!ledger.fits()) return std::nullopt;
  return step_time(problem, ledger.best_time());
}

// The slow reference: every set of devices as a machine of its own. Nothing that the same search
// finds there is faster; in little memory, where the search of a set that is one of many ends
// sooner, nothing is much faster.
TEST(Subsets, AreAsGoodAsEveryMachineOfSomeDevices) {
  const auto cost = analytic_cost_model();
  Rng rng(5);
  int fewer = 0, several = 0, tight = 0;
  const int rounds = !hurried() ? 24 : kSanitized ? 3 : 6;
  for (int round = 0; round < rounds; ++round) {
    std::string kinds;
    const int64_t count = rng.integer(2, 5);
    for (int64_t d = 0; d < count; ++d) kinds += static_cast<char>('a' + rng.integer(0, 2));
    const int64_t batch = rng.integer(1, 5) << rng.integer(2, 9);
    const Graph network = rng.chance(0.5) ? cases::transformer(batch, 2)
                                          : cases::mlp(batch, 3, int64_t{256} << rng.integer(0, 3));
    Machine machine = mixed_machine(kinds);
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    SearchResult found = search_grid(problem);
    double slack = 1 + 1e-9;
    if (round % 3 == 0) {
      // Two thirds of what the fastest takes.
      const auto peak = found.frontier.back().limit.value;
      for (Device& device : machine.devices) device.limit = Bytes(peak / 3 * 2);
      found = search_grid(problem);
      slack = 1.05;
      ++tight;
    }
    const std::string name = fmt::format("round {}: {} batch {}", round, kinds, batch);
    ASSERT_NE(found.termination, Termination::Infeasible) << name;
    const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
    EXPECT_EQ(check_tasks(found.training, machine, found.strategy, step.tasks), Names()) << name;
    EXPECT_NEAR(step.step_time().value, found.step_time.value, 1e-12) << name;
    EXPECT_EQ(search_grid(problem).step_time.value, found.step_time.value) << name;
    const size_t used = used_devices(found.strategy).size();
    EXPECT_EQ(unused_devices(found.strategy, machine).size(), machine.devices.size() - used);
    fewer += used < machine.devices.size() ? 1 : 0;
    several += used > 1 ? 1 : 0;

    for (uint64_t set = 1; set < uint64_t{1} << count; ++set) {
      std::vector<DeviceId> devices;
      for (size_t d = 0; d < machine.devices.size(); ++d)
        if ((set >> d & 1) != 0) devices.emplace_back(d);
      const Machine part = only(machine, devices);
      const auto alone = fastest_on({.network = network, .machine = part, .cost = *cost});
      if (alone) {
        EXPECT_LE(found.step_time.value, alone->value * slack) << name << " set " << set;
      }
    }
  }
  EXPECT_GT(fewer, hurried() ? 0 : 10);
  EXPECT_GT(several, hurried() ? 0 : 8);
  EXPECT_EQ(tight, rounds / 3);
}

// What is found with all devices does not depend on other sets, and fewer devices are taken only if
// they are faster: five cards of which four do better, by every method that looks for it.
TEST(Subsets, NeverSlowerThanAllDevices) {
  const auto cost = analytic_cost_model();
  const Graph network = cases::cnn(64);
  for (const char* kinds : {"aaaaa", "aabbc", "cab"}) {
    const Machine machine = mixed_machine(kinds);
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    const auto all = fastest_on(problem);
    ASSERT_TRUE(all);
    const SearchResult grid = search_grid(problem);
    EXPECT_LE(grid.step_time.value, all->value) << kinds;
    const SearchResult joint = search_all(problem, {.effort = 0.05});
    EXPECT_LE(joint.step_time.value, grid.step_time.value * (1 + 1e-9)) << kinds;
    EXPECT_LE(joint.lower_bound.value, joint.step_time.value) << kinds;
    const SearchResult again = search_all(problem, {.effort = 0.05});
    EXPECT_EQ(again.step_time.value, joint.step_time.value) << kinds;
    EXPECT_EQ(again.strategy.groups, joint.strategy.groups) << kinds;
  }
}

// A structure that the user has fixed is carried out on as many devices as it takes.
TEST(Subsets, OfAFixedStructure) {
  const auto cost = analytic_cost_model();
  const Graph network = cases::transformer(8, 2);
  const Machine machine = mixed_machine("aaaaa");
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  SearchOptions options;
  options.effort = 0.02;
  options.fixed.tp = options.fixed.dp = 2;
  options.fixed.pp = 1;
  const SearchResult found = search_all(problem, options);
  EXPECT_EQ(found.termination, Termination::Feasible);
  EXPECT_EQ(used_devices(found.strategy).size(), 4);
}

// Cards that are too small for a step are left out where others have room for it.
TEST(Subsets, LeaveOutSmallMemory) {
  const auto cost = analytic_cost_model();
  const Graph network = cases::mlp(16, 3, 512);
  Machine machine = mixed_machine("abb");
  machine.devices[1].limit = machine.devices[2].limit = Bytes(4096);
  const Problem problem = {.network = network, .machine = machine, .cost = *cost};
  EXPECT_FALSE(fastest_on(problem));
  const SearchResult found = search_grid(problem);
  ASSERT_EQ(found.termination, Termination::Feasible);
  EXPECT_EQ(used_devices(found.strategy), std::vector{DeviceId(size_t{0})});
}

}  // namespace
}  // namespace windlass

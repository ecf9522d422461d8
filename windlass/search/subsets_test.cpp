#include "windlass/search/subsets.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/rng.h"
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

// Nothing that the same search finds on a machine of the chosen devices alone, or of all, is
// faster; and if every set of devices is tried, little is.
TEST(Subsets, AreAsGoodAsMachinesOfTheirOwn) {
  const auto cost = analytic_cost_model();
  Rng rng(5);
  int smaller = 0, misses = 0;
  double worst = 1;
  for (int round = 0; round < 40; ++round) {
    std::string kinds;
    const int64_t count = rng.integer(2, 5);
    for (int64_t d = 0; d < count; ++d) kinds += static_cast<char>('a' + rng.integer(0, 2));
    const int64_t batch = rng.integer(1, 5) << rng.integer(2, 9);
    const Graph network = rng.chance(0.5) ? cases::transformer(batch, 2)
                                          : cases::mlp(batch, 3, int64_t{256} << rng.integer(0, 3));
    Machine machine = mixed_machine(kinds);
    const Problem problem = {.network = network, .machine = machine, .cost = *cost};
    const SearchResult found = search_grid(problem);
    ASSERT_NE(found.termination, Termination::Infeasible);
    const TaskGraph tasks = lower(found.training, found.strategy, machine);
    EXPECT_EQ(check_tasks(found.training, machine, found.strategy, tasks), Names());
    EXPECT_EQ(search_grid(problem).step_time.value, found.step_time.value);
    const size_t used = used_devices(found.strategy).size();
    smaller += used < machine.devices.size() ? 1 : 0;
    EXPECT_EQ(unused_devices(found.strategy, machine).size(), machine.devices.size() - used);

    const WorkBound bound(problem, differentiate(network));
    const auto chosen = device_subsets(machine, bound, batch, {});
    double least = found.step_time.value;
    for (uint64_t set = 1; set < uint64_t{1} << count; ++set) {
      std::vector<DeviceId> devices;
      for (size_t d = 0; d < machine.devices.size(); ++d)
        if ((set >> d & 1) != 0) devices.emplace_back(d);
      const Machine part = only(machine, devices);
      const Problem alone = {.network = network, .machine = part, .cost = *cost};
      const SearchOptions options;
      Ledger ledger(alone, options);
      run_grid(ledger, 1, {all_devices(part)});
      ASSERT_TRUE(ledger.fits());
      const double time = step_time(problem, ledger.best_time()).value;
      const bool is_chosen = devices.size() == machine.devices.size() ||
                             std::ranges::any_of(chosen, [&](const DeviceSubset& subset) {
                               return subset.devices == devices;
                             });
      if (is_chosen) {
        EXPECT_LE(found.step_time.value, time * (1 + 1e-12)) << kinds << " " << set;
      }
      least = std::min(least, time);
    }
    fmt::print("{} {} batch {} uses {}: {} vs {}\n", round, kinds, batch, used, found.step_time.value, least);
    misses += least < 0.999 * found.step_time.value ? 1 : 0;
    worst = std::max(worst, found.step_time.value / least);
  }
  EXPECT_GT(smaller, 4);
  RecordProperty("misses", misses);
  fmt::print("smaller {} misses {} worst {}\n", smaller, misses, worst);
}

}  // namespace
}  // namespace windlass

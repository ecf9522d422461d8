#include "windlass/search/grid/subsets.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "windlass/search/grid/structures.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

// Has no prime factors but 2 and 3.
bool divides_well(int64_t count) {
  for (const int64_t factor : {2, 3})
    while (count % factor == 0) count /= factor;
  return count == 1;
}

class Chooser {
 public:
  Chooser(const Machine& machine, const WorkBound& bound, int64_t samples,
          const FixedDecisions& fixed)
      : machine_(machine), bound_(bound), samples_(samples), fixed_(fixed) {
    for (DeviceId device : all_devices(machine)) {
      order_.push_back(device);
      ++beside_[{kind_of(device), machine[device].node}];
    }
    std::ranges::stable_sort(order_, {}, [&](DeviceId device) {
      return std::tuple(kind_of(device), -beside_[{kind_of(device), machine_[device].node}],
                        machine_[device].node);
    });
  }

  std::vector<DeviceSubset> run() {
    for (const size_t count : counts()) add({at(0), at(count)});
    for (size_t begin = 0; begin < order_.size();) {
      const size_t end = end_of_kind(begin);
      add({at(begin), at(end)});
      begin = end;
    }
    add_nodes();
    std::ranges::stable_sort(subsets_, {}, &DeviceSubset::least);
    return std::move(subsets_);
  }

 private:
  // Fast ones first, and of those the ones with more memory.
  using Kind = std::tuple<double, int64_t, size_t>;
  Kind kind_of(DeviceId device) const {
    return {bound_.alone(device).value, -machine_[device].limit.value, machine_[device].type};
  }
  std::vector<DeviceId>::const_iterator at(size_t index) const {
    return order_.begin() + static_cast<std::ptrdiff_t>(index);
  }
  size_t end_of_kind(size_t begin) const {
    size_t end = begin;
    while (end < order_.size() && kind_of(order_[end]) == kind_of(order_[begin])) ++end;
    return end;
  }

  // In the order of how likely they help.
  std::vector<size_t> counts() const {
    const auto all = static_cast<int64_t>(order_.size());
    std::vector<int64_t> list;
    if (fixed_.structure()) {
      const int64_t unit = std::max<int64_t>(1, fixed_.dp) * std::max<int64_t>(1, fixed_.tp) *
                           std::max<int64_t>(1, fixed_.pp) * std::max<int64_t>(1, fixed_.cp);
      list = {unit, all / unit * unit};
    }
    for (size_t end = end_of_kind(0); end < order_.size(); end = end_of_kind(end)) {
      list.push_back(static_cast<int64_t>(end));
      // As many of the next kind.
      if (list.back() == static_cast<int64_t>(end_of_kind(0))) list.push_back(2 * list.back());
    }
    for (int64_t count = 1; count < all; count *= 2) list.push_back(count);
    const auto largest = [&](auto&& wanted) {
      int64_t count = all - 1;
      while (count > 1 && !wanted(count)) --count;
      return count;
    };
    if (!divides_well(all))
      list.push_back(largest([](int64_t count) { return count % 2 == 0 && divides_well(count); }));
    if (samples_ % all != 0)
      list.push_back(largest([&](int64_t count) { return samples_ % count == 0; }));
    std::vector<size_t> result;
    for (const int64_t count : list)
      if (count > 0 && count < all) result.push_back(static_cast<size_t>(count));
    return result;
  }

  // The strongest node, and the stronger half of them.
  void add_nodes() {
    std::map<NodeId, double> speeds;
    for (DeviceId device : order_)
      speeds[machine_[device].node] += 1 / std::max(1e-12, bound_.alone(device).value);
    std::vector<std::pair<double, NodeId>> nodes;
    for (const auto& [node, speed] : speeds) nodes.emplace_back(-speed, node);
    std::ranges::sort(nodes);
    for (const size_t count : {size_t{1}, nodes.size() / 2}) {
      std::set<NodeId> used;
      for (size_t n = 0; n < count; ++n) used.insert(nodes[n].second);
      std::vector<DeviceId> devices;
      for (DeviceId device : order_)
        if (used.contains(machine_[device].node)) devices.push_back(device);
      add(std::move(devices));
    }
  }

  void add(std::vector<DeviceId> devices) {
    if (devices.empty() || devices.size() == order_.size() || subsets_.size() == kMostSubsets)
      return;
    std::ranges::sort(devices);
    const auto same = [&](const DeviceSubset& other) { return other.devices == devices; };
    if (std::ranges::any_of(subsets_, same)) return;
    const auto least = static_cast<Nanoseconds>(bound_(devices).value * 1e9);
    subsets_.push_back({std::move(devices), least});
  }

  const Machine& machine_;
  const WorkBound& bound_;
  int64_t samples_;
  const FixedDecisions& fixed_;
  std::vector<DeviceId> order_;
  std::map<std::pair<Kind, NodeId>, int64_t> beside_;  // of a kind in a node
  std::vector<DeviceSubset> subsets_;
};

// What does not fit on all devices may fit on some of them if those have more memory, or if they
// are not many fewer and divide in other ways.
bool may_fit(const Ledger& ledger, const std::vector<DeviceId>& devices) {
  const Machine& machine = ledger.problem().machine;
  const auto limit = [&](DeviceId device) { return machine[device].limit; };
  const std::vector<DeviceId> all = all_devices(machine);
  return ledger.frugal().empty() ||
         (all.size() % devices.size() != 0 && 2 * devices.size() > all.size()) ||
         limit(std::ranges::min(devices, {}, limit)) > limit(std::ranges::min(all, {}, limit));
}

// The best of the fastest entries that several devices share; an empty list if there is none.
std::vector<DeviceId> best_group(const Ledger& ledger) {
  constexpr double kNear = 1.5;
  for (const Ledger::Entry& entry : ledger.entries()) {
    if (static_cast<double>(entry.time) > kNear * static_cast<double>(ledger.best_time())) break;
    std::vector<DeviceId> devices = used_devices(entry.strategy);
    if (devices.size() > 1) return devices;
  }
  return {};
}

}  // namespace

std::vector<DeviceSubset> device_subsets(const Machine& machine, const WorkBound& bound,
                                         int64_t samples, const FixedDecisions& fixed) {
  return Chooser(machine, bound, samples, fixed).run();
}

std::vector<DeviceSubset> promising_subsets(Ledger& ledger) {
  const Problem& problem = ledger.problem();
  if (problem.machine.devices.size() == 1) return {};
  std::optional<WorkBound>& work = ledger.kept<StructureMemo>().work;
  if (!work) work.emplace(problem, ledger.cut(1).training);
  const WorkBound& bound = *work;
  std::vector<DeviceSubset> list =
      device_subsets(problem.machine, bound, ledger.batch().samples, ledger.options().fixed);
  std::erase_if(list, [&](const DeviceSubset& subset) {
    return ledger.fits() ? ledger.beaten(subset.least) : !may_fit(ledger, subset.devices);
  });
  return list;
}

void run_subsets(Ledger& ledger, const std::vector<DeviceSubset>& subsets,
                 const SubsetOptions& options, SearchResult& facts) {
  Ledger book = ledger.branch(options.ceiling);
  std::vector<std::vector<DeviceId>> sets;
  for (const DeviceSubset& subset : subsets)
    if (!ledger.beaten(subset.least)) sets.push_back(subset.devices);
  if (sets.empty()) return;
  run_grid(book, sets);
  if (options.improve && book.fits()) {
    const std::vector<DeviceId> group = best_group(book);
    SearchResult sums;
    if (!group.empty() && !ledger.options().fixed.any()) run_exact(book, group, sums);
    run_walks(book, facts);
  }
  ledger.take(book);
}

}  // namespace windlass

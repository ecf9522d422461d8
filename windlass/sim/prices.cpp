#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/error.h"
#include "windlass/sim/simulate.h"

namespace windlass {
namespace {

Nanoseconds nanoseconds(Seconds time) {
  constexpr double kLongest = 1e17;  // three years
  const double value = std::round(time.value * 1e9);
  ensure(value >= 0 && value <= kLongest, "the price of a task is out of range");
  return static_cast<Nanoseconds>(value);
}

// Prices of the works of a graph, each asked for once per device type or node.
class PriceTable {
 public:
  PriceTable(const TaskGraph& graph, const Machine& machine, const CostModel& cost)
      : graph_(graph), machine_(machine), cost_(cost) {
    on_devices_.resize(graph.works.size() * machine.device_types.size());
  }

  struct Entry {
    Nanoseconds duration = 0;  // 0: not asked for yet
    int64_t workspace = 0;
  };

  const Entry& on_device(size_t work, size_t type) {
    Entry& entry = on_devices_[work * machine_.device_types.size() + type];
    if (entry.duration == 0)
      entry = entry_of(cost_.price(graph_.works[work], machine_.device_types[type]));
    return entry;
  }

  const Entry& on_host(size_t work, NodeId node) {
    Entry& entry = on_hosts_[{work, node}];
    if (entry.duration == 0) {
      entry = entry_of(cost_.price_on_host(graph_.works[work], machine_[node]));
      entry.workspace = 0;
    }
    return entry;
  }

 private:
  static Entry entry_of(const Price& price) {
    return {std::max<Nanoseconds>(1, nanoseconds(price.time)), price.workspace.value};
  }

  const TaskGraph& graph_;
  const Machine& machine_;
  const CostModel& cost_;
  std::vector<Entry> on_devices_;
  std::map<std::pair<size_t, NodeId>, Entry> on_hosts_;
};

}  // namespace

TaskTimes price_tasks(const TaskGraph& graph, const Machine& machine, const CostModel& cost) {
  PriceTable table(graph, machine, cost);
  TaskTimes times;
  times.duration.resize(graph.size());
  times.workspace.resize(graph.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks[i];
    const auto price = static_cast<size_t>(task.price);
    if (moves(task.kind)) {
      times.duration[i] = nanoseconds(graph.traffics[price].latency);
      continue;
    }
    const Lane& lane = graph[graph.task_lanes[graph.lane_begin[i]]];
    const Team& team = graph[lane.team];
    const PriceTable::Entry& entry = lane.kind == LaneKind::Host
                                         ? table.on_host(price, machine[team.devices.front()].node)
                                         : table.on_device(price, team.type);
    times.duration[i] = entry.duration;
    times.workspace[i] = entry.workspace;
  }
  return times;
}

}  // namespace windlass

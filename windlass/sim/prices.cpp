#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/error.h"
#include "windlass/sim/host_time.h"
#include "windlass/sim/simulate.h"

namespace windlass {
TaskPricer::Entry TaskPricer::entry_of(const Price& price) {
  return {std::max<Nanoseconds>(1, nanoseconds_of(price.time)), price.workspace.value};
}

const TaskPricer::Entry& TaskPricer::on_device(const TaskGraph& graph, size_t work, size_t type) {
  Entry& entry = on_devices_[work * machine_.device_types.size() + type];
  if (entry.duration == 0)
    entry = entry_of(cost_.price(graph.works[work], machine_.device_types[type]));
  return entry;
}

const TaskPricer::Entry& TaskPricer::on_host(const TaskGraph& graph, size_t work, NodeId node) {
  Entry& entry = on_hosts_[{work, node}];
  if (entry.duration == 0) {
    entry = entry_of(cost_.price_on_host(graph.works[work], machine_[node]));
    entry.workspace = 0;
  }
  return entry;
}

const TaskTimes& TaskPricer::price(const TaskGraph& graph) {
  on_devices_.resize(graph.works.size() * machine_.device_types.size());
  while (latencies_.size() < graph.traffics.size())
    latencies_.push_back(latency_of(graph.traffics[latencies_.size()]));
  times_.duration.resize(graph.size());
  times_.workspace.resize(graph.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks[i];
    const auto price = static_cast<size_t>(task.price);
    if (moves(task.kind)) {
      times_.duration[i] = latencies_[price];
      times_.workspace[i] = 0;
      continue;
    }
    const Lane& lane = graph[graph.task_lanes[graph.lane_begin[i]]];
    const Team& team = graph[lane.team];
    const Entry& entry = lane.kind == LaneKind::Host
                             ? on_host(graph, price, machine_[team.devices.front()].node)
                             : on_device(graph, price, team.type);
    times_.duration[i] = entry.duration;
    times_.workspace[i] = entry.workspace;
  }
  if (const RunnerCosts* costs = cost_.runner_costs())
    add_runner_costs(graph, machine_, *costs, times_);
  return times_;
}

TaskTimes price_tasks(const TaskGraph& graph, const Machine& machine, const CostModel& cost) {
  TaskPricer pricer(machine, cost);
  return pricer.price(graph);
}

}  // namespace windlass

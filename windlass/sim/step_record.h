// A step as it was carried out, to be laid beside its simulation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "windlass/cost/traffic.h"
#include "windlass/task/task_graph.h"
#include "windlass/task/task_times.h"

namespace windlass {

// When a part of a task ran, from the beginning of the step.
struct PartTime {
  TaskId task;
  // Whose part it is. None: it is all of the task, which its devices do together, or the host. What
  // devices of several processes do together is a part of each.
  DeviceId device = {};
  Nanoseconds start = 0, end = 0;
};

struct StepRecord {
  Nanoseconds time = 0;
  std::vector<Nanoseconds> start, end;  // by task: of the device that was last
  std::vector<PartTime> parts;          // ascending by task, then by device
  std::vector<int64_t> peaks;           // by memory: bytes counted, of the device with most
  std::vector<int64_t> device_peaks;    // by device of the machine: bytes counted
  // Of several processes: what times of one may be off from those of another.
  Nanoseconds clock_error = 0;
  std::vector<LinkLoad> links;  // ascending by direction; those that anything crossed
};

// Devices that have to do with a task, ascending: those of the teams on whose lanes it runs. None
// of an update on the host.
inline std::vector<DeviceId> devices_of(const TaskGraph& graph, TaskId task) {
  std::vector<DeviceId> devices;
  for (LaneId lane : graph.lanes_of(task)) {
    if (graph[lane].kind == LaneKind::Host || !graph[lane].team.valid()) continue;
    const std::vector<DeviceId>& team = graph[graph[lane].team].devices;
    devices.insert(devices.end(), team.begin(), team.end());
  }
  std::ranges::sort(devices);
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

}  // namespace windlass

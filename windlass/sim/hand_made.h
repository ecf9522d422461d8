// Task graphs made by hand, for tests.
#pragma once

#include <initializer_list>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

// One team with a memory of 100 bytes, a host memory without limit, and lanes in the order of
// `kinds`. Links move whole bytes per nanosecond.
struct HandMade {
  TaskGraph graph;
  TaskTimes times;

  explicit HandMade(std::initializer_list<LaneKind> kinds, int64_t limit = 100) {
    graph.memories.push_back({"gpu0", TeamId(0), {}, Bytes(limit)});
    graph.memories.push_back({"host0", {}, {NodeId(0)}, Bytes(int64_t{1} << 60)});
    graph.teams.push_back({{DeviceId(0)}, 0, MemoryId(0)});
    for (LaneKind kind : kinds) graph.lanes.push_back({kind, TeamId(0), {}});
    graph.works.resize(1);
  }

  int32_t link(double bytes_per_nanosecond) {
    graph.links.push_back({{}, BytesPerSecond(bytes_per_nanosecond * 1e9)});
    return static_cast<int32_t>(graph.links.size()) - 1;
  }

  int32_t traffic(int64_t volume, std::vector<SharedLoad> loads) {
    Traffic traffic;
    traffic.volume = Bytes(volume);
    graph.traffics.push_back(traffic);
    graph.loads.push_back(std::move(loads));
    return static_cast<int32_t>(graph.traffics.size()) - 1;
  }

  BufferId buffer(int64_t bytes, bool at_start = false, bool at_end = false, int memory = 0) {
    Buffer made;
    made.memory = MemoryId(memory);
    made.bytes = Bytes(bytes);
    made.at_start = at_start;
    made.at_end = at_end;
    return graph.add(made);
  }

  // `time` is the duration, or the latency if the kind moves bytes.
  TaskId task(TaskKind kind, const std::vector<int>& lanes, Nanoseconds time,
              const std::vector<TaskId>& after = {}, const std::vector<BufferId>& buffers = {},
              int32_t price = 0, int64_t workspace = 0) {
    Task made;
    made.kind = kind;
    made.price = price;
    std::vector<LaneId> on;
    for (int lane : lanes) on.emplace_back(lane);
    std::vector<Use> uses;
    for (BufferId id : buffers) uses.push_back({id, true});
    times.duration.push_back(time);
    times.workspace.push_back(workspace);
    return graph.add(made, on, after, uses);
  }
  TaskId compute(Nanoseconds time, const std::vector<TaskId>& after = {},
                 const std::vector<BufferId>& buffers = {}, int lane = 0) {
    return task(TaskKind::Forward, {lane}, time, after, buffers);
  }
};

}  // namespace windlass

// Teams, lanes, memories and traffic of packs of layers on a machine.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "windlass/machine/machine.h"
#include "windlass/task/task_graph.h"
#include "windlass/task/task_times.h"

namespace windlass {

// What a team moves. Bytes are those of one member unless said otherwise.
enum class PackMove : uint8_t {
  In,        // host to every member
  Out,       // every member to the host
  FirstOut,  // the first member alone to the host
  Gather,    // every member has its part of `bytes` and ends with all of it
  Scatter,   // every member has `bytes` and ends with the sum of its part
  Reduce,    // every member has `bytes` and ends with their sum
  Next,      // every member to the corresponding one of the next team
};
constexpr size_t kPackMoves = 7;

// One team for each place of a pipeline, with a member in each replica.
class PackTeams {
 public:
  // The machine must outlive it and have at least replicas * depth devices, all in node 0.
  PackTeams(const Machine& machine, int32_t replicas, int32_t depth);

  // Teams, lanes, memories, links; traffic grows as it is asked for.
  TaskGraph& graph() { return graph_; }

  LaneId compute(int32_t team) const { return lane(team, 0); }
  LaneId weights_in(int32_t team) const { return lane(team, 1); }
  LaneId stash_in(int32_t team) const { return lane(team, 2); }
  LaneId gradients_out(int32_t team) const { return lane(team, 3); }
  LaneId stash_out(int32_t team) const { return lane(team, 4); }
  LaneId gather(int32_t team) const { return lane(team, 5); }
  LaneId reduce(int32_t team) const { return lane(team, 6); }
  LaneId send(int32_t team) const { return lane(team, 7); }
  LaneId host(int32_t team) const { return lane(team, 8); }
  MemoryId memory(int32_t team) const { return MemoryId(static_cast<size_t>(team)); }
  MemoryId host_memory() const { return MemoryId(static_cast<size_t>(depth_)); }

  // Index into traffics.
  int32_t traffic(PackMove move, int32_t team, int64_t bytes);
  // Of such traffic, whatever its size.
  Nanoseconds latency(PackMove move, int32_t team) const { return latencies_[model(move, team)]; }
  // Of the devices' memory, bytes a second.
  double memory_bandwidth() const {
    return machine_.device_types[graph_.teams.front().type].memory_bandwidth.value;
  }
  int32_t replicas() const { return replicas_; }
  int32_t depth() const { return depth_; }

 private:
  static constexpr size_t kLanes = 9;
  LaneId lane(int32_t team, size_t which) const {
    return LaneId(static_cast<size_t>(team) * kLanes + which);
  }
  size_t model(PackMove move, int32_t team) const {
    return static_cast<size_t>(move) * static_cast<size_t>(depth_) + static_cast<size_t>(team);
  }
  Traffic plan(PackMove move, int32_t team, Bytes bytes) const;

  const Machine& machine_;
  int32_t replicas_, depth_;
  TaskGraph graph_;
  std::vector<Traffic> models_;                              // by move and team, of kModelBytes
  std::vector<Nanoseconds> latencies_;                       // of those
  std::vector<std::unordered_map<int64_t, int32_t>> known_;  // by move and team: traffic by bytes
  // By move and team, the one asked for last: transfers of the same size follow each other.
  struct Last {
    int64_t bytes = -1;
    int32_t traffic = 0;
  };
  std::vector<Last> last_;
};

}  // namespace windlass

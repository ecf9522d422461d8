// Teams: the devices of a strategy sorted into those that do the same, with their memories and
// lanes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "windlass/strategy/strategy.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// Host memory that members of a team use: on each of its nodes, so many members.
struct HostShare {
  MemoryId memory;
  int64_t members = 0;
};

struct GroupTeams {
  std::vector<TeamId> teams;
  std::vector<std::vector<int32_t>> members;  // parallel to teams: member numbers in the group
};

// Whether anything of the strategy lies on a host or is done there.
bool uses_hosts(const Strategy& strategy);

class Teams {
 public:
  // Fills the teams and memories of `graph`. `kinds`: size_kinds() of the strategy.
  Teams(const Machine& machine, const Strategy& strategy,
        const std::vector<std::vector<int32_t>>& kinds, TaskGraph& graph);

  const GroupTeams& of_group(int32_t group) const { return groups_[static_cast<size_t>(group)]; }
  // Of a strategy that uses hosts. All nodes of a team are alike.
  const HostShare& host(TeamId team) const { return hosts_[team.index()]; }

  // Made when first asked for. Teams on the same host share its lane. What a device does itself is
  // on its compute lane; of what is sent, that of the receiver.
  LaneId lane(TeamId team, LaneKind kind) {
    const LaneId known = lanes_[team.index()][static_cast<size_t>(kind)];
    return known.valid() ? known : make_lane(team, kind);
  }
  LaneId send_lane(TeamId from, TeamId to);

 private:
  LaneId make_lane(TeamId team, LaneKind kind);

  TaskGraph& graph_;
  std::vector<GroupTeams> groups_;
  std::vector<HostShare> hosts_;            // by team
  std::vector<std::vector<LaneId>> lanes_;  // by team, by kind
  std::map<std::pair<TeamId, TeamId>, LaneId> send_lanes_;
  std::map<MemoryId, LaneId> host_lanes_;
  std::vector<bool> copies_itself_, copies_in_turn_;  // by team
};

}  // namespace windlass

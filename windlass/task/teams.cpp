#include "windlass/task/teams.h"

#include <algorithm>
#include <tuple>

#include "windlass/machine/device_names.h"

namespace windlass {

bool uses_hosts(const Strategy& strategy) {
  return strategy.virtual_memory ||
         std::ranges::find(strategy.saved, MemoryAction::Offload) != strategy.saved.end() ||
         std::ranges::any_of(strategy.weights, [](const Residency& weight) {
           return weight.host || weight.host_update;
         });
}

Teams::Teams(const Machine& machine, const Strategy& strategy,
             const std::vector<std::vector<int32_t>>& kinds, TaskGraph& graph)
    : graph_(graph) {
  // Type, limit, groups, and in each of them the kind of its pieces.
  using Likeness = std::tuple<size_t, int64_t, std::vector<int32_t>, std::vector<int32_t>>;
  std::map<DeviceId, std::vector<int32_t>> member_of, kinds_of;
  std::vector<DeviceId> order;
  for (size_t g = 0; g < strategy.groups.size(); ++g)
    for (size_t m = 0; m < strategy.groups[g].size(); ++m) {
      const DeviceId device = strategy.groups[g][m];
      auto& list = member_of[device];
      if (list.empty()) order.push_back(device);
      list.push_back(static_cast<int32_t>(g));
      if (!kinds[g].empty()) kinds_of[device].push_back(kinds[g][m]);
    }
  const auto likeness = [&](DeviceId device) {
    return Likeness{machine[device].type, usable_memory(machine[device], strategy).value,
                    member_of[device], kinds_of[device]};
  };
  // What a team has on hosts it has on each of them alike: those with other teams or another memory
  // are told apart.
  using HostLikeness = std::pair<int64_t, std::vector<Likeness>>;
  std::map<NodeId, HostLikeness> hosts;
  if (uses_hosts(strategy))
    for (const auto& [device, groups] : member_of) {
      HostLikeness& host = hosts[machine[device].node];
      host.first = machine[machine[device].node].memory.value;
      host.second.push_back(likeness(device));
    }
  for (auto& [node, host] : hosts) std::ranges::sort(host.second);
  std::map<std::pair<Likeness, HostLikeness>, TeamId> known;
  std::map<DeviceId, TeamId> team_of;
  for (DeviceId device : order) {
    const Device& d = machine[device];
    const auto [entry, fresh] =
        known.try_emplace({likeness(device), hosts[d.node]}, TeamId(graph.teams.size()));
    if (fresh) graph.teams.push_back({{}, d.type, {}});
    graph.teams[entry->second.index()].devices.push_back(device);
    team_of[device] = entry->second;
  }
  lanes_.assign(graph.teams.size(), std::vector<LaneId>(7));
  for (size_t t = 0; t < graph.teams.size(); ++t) {
    Team& team = graph.teams[t];
    team.memory = MemoryId(graph.memories.size());
    graph.memories.push_back({device_names(machine, team.devices),
                              TeamId(t),
                              {},
                              usable_memory(machine[team.devices[0]], strategy)});
    copies_itself_.push_back(machine.device_types[team.type].copies_itself);
    copies_in_turn_.push_back(copies_itself_.back() || strategy.in_turn);
  }

  for (const auto& group : strategy.groups) {
    GroupTeams& teams = groups_.emplace_back();
    for (size_t m = 0; m < group.size(); ++m) {
      const TeamId team = team_of[group[m]];
      auto found = std::ranges::find(teams.teams, team);
      if (found == teams.teams.end()) {
        teams.teams.push_back(team);
        teams.members.emplace_back();
        found = teams.teams.end() - 1;
      }
      teams.members[static_cast<size_t>(found - teams.teams.begin())].push_back(
          static_cast<int32_t>(m));
    }
  }

  // Nodes with the same number of members of each team, and the same memory, are one.
  std::map<NodeId, std::map<TeamId, int64_t>> counts;
  for (const auto& [device, team] : team_of) ++counts[machine[device].node][team];
  std::map<std::pair<int64_t, std::map<TeamId, int64_t>>, MemoryId> classes;
  hosts_.resize(graph.teams.size());
  for (const auto& [node, teams] : counts) {
    const auto [entry, fresh] =
        classes.try_emplace({machine[node].memory.value, teams}, MemoryId(graph.memories.size()));
    if (fresh) {
      graph.memories.push_back({machine[node].name, {}, {}, machine[node].memory});
      for (const auto& [team, members] : teams) hosts_[team.index()] = {entry->second, members};
    }
    graph.memories[entry->second.index()].hosts.push_back(node);
  }
}

LaneId Teams::make_lane(TeamId team, LaneKind kind) {
  LaneId& lane = lanes_[team.index()][static_cast<size_t>(kind)];
  const bool copies = kind == LaneKind::SwapIn || kind == LaneKind::SwapOut;
  if (kind != LaneKind::Compute &&
      (copies_itself_[team.index()] || (copies && copies_in_turn_[team.index()])))
    return lane = this->lane(team, LaneKind::Compute);
  const LaneId next(graph_.lanes.size());
  if (kind == LaneKind::Host) {
    const auto [entry, fresh] = host_lanes_.try_emplace(hosts_[team.index()].memory, next);
    lane = entry->second;
    if (!fresh) return lane;
  }
  lane = next;
  graph_.lanes.push_back({kind, team, {}});
  return lane;
}

LaneId Teams::send_lane(TeamId from, TeamId to) {
  if (copies_itself_[to.index()]) return lane(to, LaneKind::Compute);
  const auto [entry, fresh] = send_lanes_.try_emplace({from, to}, LaneId(graph_.lanes.size()));
  if (fresh) graph_.lanes.push_back({LaneKind::Send, from, to});
  return entry->second;
}

}  // namespace windlass

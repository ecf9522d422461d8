// Traffic of one sort between the same ends differs in size only, so that links are shared out once
// for a model of each sort, and further sizes are scaled.
#include "windlass/task/packs/pack_teams.h"

#include <cmath>

#include "windlass/base/error.h"
#include "windlass/cost/traffic.h"
#include "windlass/machine/device_names.h"

namespace windlass {
namespace {

constexpr int64_t kModelBytes = int64_t{1} << 30;

int64_t scaled(Bytes bytes, int64_t size) {
  return static_cast<int64_t>(
      std::llround(static_cast<double>(bytes.value) * static_cast<double>(size) /
                   static_cast<double>(kModelBytes)));
}

}  // namespace

PackTeams::PackTeams(const Machine& machine, int32_t replicas, int32_t depth)
    : machine_(machine), replicas_(replicas), depth_(depth) {
  ensure(static_cast<size_t>(replicas) * static_cast<size_t>(depth) <= machine.devices.size(),
         "more places than devices");
  constexpr std::array kKinds = {LaneKind::Compute, LaneKind::SwapIn,  LaneKind::SwapIn,
                                 LaneKind::SwapOut, LaneKind::SwapOut, LaneKind::Communicate,
                                 LaneKind::Reduce,  LaneKind::Send,    LaneKind::Host};
  for (int32_t t = 0; t < depth; ++t) {
    Team team;
    Memory memory;
    for (int32_t r = 0; r < replicas; ++r)
      team.devices.push_back(DeviceId(static_cast<size_t>(r * depth + t)));
    team.type = machine[team.devices.front()].type;
    team.memory = MemoryId(static_cast<size_t>(t));
    memory.name = device_names(machine, team.devices);
    memory.team = TeamId(static_cast<size_t>(t));
    memory.limit = machine[team.devices.front()].limit;
    for (DeviceId device : team.devices)
      memory.limit = std::min(memory.limit, machine[device].limit);
    for (LaneKind kind : kKinds) {
      Lane lane{kind, memory.team, {}};
      if (kind == LaneKind::Send) lane.receiver = TeamId(static_cast<size_t>((t + 1) % depth));
      graph_.lanes.push_back(lane);
    }
    graph_.teams.push_back(std::move(team));
    graph_.memories.push_back(std::move(memory));
  }
  graph_.memories.push_back(
      {.name = "host", .team = {}, .hosts = {NodeId(size_t{0})}, .limit = machine.nodes[0].memory});
  graph_.works.emplace_back();
  for (size_t move = 0; move < kPackMoves; ++move)
    for (int32_t t = 0; t < depth; ++t)
      graph_.traffics.push_back(plan(static_cast<PackMove>(move), t, Bytes(kModelBytes)));
  models_ = graph_.traffics;
  for (const Traffic& traffic : models_) latencies_.push_back(latency_of(traffic));
  last_.resize(models_.size());
  known_.resize(models_.size());
  share_links(graph_, machine);
}

Traffic PackTeams::plan(PackMove move, int32_t team, Bytes bytes) const {
  const Team& members = graph_.teams[static_cast<size_t>(team)];
  const EndpointId host = machine_.nodes[0].endpoint;
  std::vector<Copy> copies;
  const std::vector<DeviceGroup> groups{members.devices};
  switch (move) {
    case PackMove::In:
      for (DeviceId d : members.devices) copies.push_back({host, machine_[d].endpoint, bytes});
      break;
    case PackMove::Out:
      for (DeviceId d : members.devices) copies.push_back({machine_[d].endpoint, host, bytes});
      break;
    case PackMove::FirstOut:
      copies.push_back({machine_[members.devices.front()].endpoint, host, bytes});
      break;
    case PackMove::Gather: return plan_collective(machine_, Collective::AllGather, groups, bytes);
    case PackMove::Scatter:
      return plan_collective(machine_, Collective::ReduceScatter, groups, bytes);
    case PackMove::Reduce: return plan_collective(machine_, Collective::AllReduce, groups, bytes);
    case PackMove::Next:
      for (DeviceId d : members.devices) {
        const size_t base = d.index() - static_cast<size_t>(team);
        const DeviceId next(base + static_cast<size_t>((team + 1) % depth_));
        copies.push_back({machine_[d].endpoint, machine_[next].endpoint, bytes});
      }
      break;
  }
  return plan_copies(machine_, copies);
}

int32_t PackTeams::traffic(PackMove move, int32_t team, int64_t bytes) {
  const size_t like = model(move, team);
  if (last_[like].bytes == bytes) return last_[like].traffic;
  const auto [entry, fresh] =
      known_[like].try_emplace(bytes, static_cast<int32_t>(graph_.traffics.size()));
  last_[like] = {bytes, entry->second};
  if (!fresh) return entry->second;
  Traffic traffic = models_[like];
  traffic.volume = Bytes(scaled(traffic.volume, bytes));
  for (LinkLoad& load : traffic.loads) load.bytes = Bytes(scaled(load.bytes, bytes));
  graph_.traffics.push_back(std::move(traffic));
  graph_.loads.push_back(graph_.loads[like]);
  return entry->second;
}

}  // namespace windlass

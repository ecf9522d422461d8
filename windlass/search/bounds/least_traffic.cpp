#include "windlass/search/bounds/least_traffic.h"

#include <algorithm>
#include <cmath>

#include "windlass/cost/traffic.h"

namespace windlass {
namespace {

constexpr double kRoundedLoads = 1 - 1.0 / 256;  // the simulator's, to 1/1024 of a volume

}  // namespace

LeastTraffic::LeastTraffic(const Machine& machine) : machine_(machine) {
  latency_ = INFINITY;
  TrafficPlanner planner(machine);
  // Of many devices, those that are near to each other.
  constexpr size_t kNeighbours = 16;
  for (size_t a = 0; a < std::min(kNeighbours, machine.devices.size()); ++a) {
    double all = 0;
    const EndpointId from = machine.devices[a].endpoint;
    for (const Link& link : machine.links)
      if (link.a == from || link.b == from) all += link.bandwidth.value;
    bandwidth_ = std::max(bandwidth_, all);
    for (size_t b = 0; b < std::min(kNeighbours, machine.devices.size()); ++b) {
      if (a == b) continue;
      const Copy copy = {from, machine.devices[b].endpoint, Bytes(1)};
      latency_ = std::min(latency_, time_alone(machine, planner.copies({&copy, 1})).value);
    }
  }
  if (machine.devices.size() < 2) latency_ = 0;
  bandwidth_ /= kRoundedLoads;
}

double LeastTraffic::all_reduce(int64_t members, int64_t bytes) {
  const auto devices = static_cast<int64_t>(machine_.devices.size());
  if (members < 2 || bytes <= 0 || members > devices) return 0;
  const auto [entry, fresh] = known_.try_emplace({members, bytes}, INFINITY);
  if (!fresh) return entry->second;
  // One after the other, or as far apart as there are devices.
  for (int64_t step = 1; step * members <= devices; ++step)
    for (int64_t first = 0; first + step * (members - 1) < devices; first += members) {
      DeviceGroup group;
      for (int64_t k = 0; k < members; ++k)
        group.emplace_back(static_cast<size_t>(first + step * k));
      const Traffic traffic =
          plan_collective(machine_, Collective::AllReduce, {&group, 1}, Bytes(bytes));
      entry->second = std::min(entry->second, time_alone(machine_, traffic).value * kRoundedLoads);
    }
  return entry->second;
}

double LeastTraffic::all_reduce_byte(int64_t members) {
  constexpr int64_t kLarge = int64_t{1} << 32;
  return all_reduce(members, kLarge) / static_cast<double>(kLarge);
}

}  // namespace windlass

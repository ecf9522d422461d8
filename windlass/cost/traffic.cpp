#include "windlass/cost/traffic.h"

#include <algorithm>
#include <array>

#include "windlass/cost/load_sum.h"

namespace windlass {

std::string_view collective_name(Collective collective) {
  static constexpr std::array<std::string_view, 5> kNames = {
      "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"};
  return kNames[static_cast<size_t>(collective)];
}

std::string_view algorithm_name(Algorithm algorithm) {
  static constexpr std::array<std::string_view, 4> kNames = {"direct", "ring", "tree",
                                                             "hierarchical"};
  return kNames[static_cast<size_t>(algorithm)];
}

TrafficPlanner::TrafficPlanner(const Machine& machine)
    : machine_(machine), loads_(std::make_unique<LoadSum>(machine)) {}
TrafficPlanner::~TrafficPlanner() = default;
TrafficPlanner::TrafficPlanner(TrafficPlanner&&) noexcept = default;

Traffic plan_copies(const Machine& machine, std::span<const Copy> copies) {
  return TrafficPlanner(machine).copies(copies);
}

Traffic TrafficPlanner::copies(std::span<const Copy> copies) {
  LoadSum& loads = *loads_;
  Seconds latency;
  for (const Copy& copy : copies) {
    if (copy.bytes.value <= 0 || copy.from == copy.to) continue;
    const Seconds route = loads.send(copy.from, copy.to, static_cast<double>(copy.bytes.value));
    latency = std::max(latency, kCopyStart + route);
  }
  return loads.take(latency, Algorithm::Direct);
}

Seconds time_alone(const Machine& machine, const Traffic& traffic) {
  Seconds slowest;
  for (const LinkLoad& load : traffic.loads)
    slowest = std::max(slowest, load.bytes / machine[load.direction.link].bandwidth);
  return traffic.latency + slowest;
}

}  // namespace windlass

// Traffic: what a transfer or a collective puts on which link. The moving counterpart of Work: the
// simulator shares the links among the traffic that is under way at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "windlass/machine/collective.h"
#include "windlass/machine/machine.h"

namespace windlass {

std::string_view collective_name(Collective collective);

// How a collective is carried out. A group that has the same number q of members in each of several
// nodes is striped: q rings or trees on 1/q of the bytes each, so that every member's own
// connection to the network is used. docs/cost_model.md has the bytes and steps of each.
enum class Algorithm : uint8_t {
  Direct,        // pairwise copies
  Ring,          // through all members node by node, every link of it busy all the time
  Tree,          // up and down two binary trees that share the bytes: few steps, a few more bytes
  Hierarchical,  // inside of each node, then between equal ranks of the nodes, then inside
};
std::string_view algorithm_name(Algorithm algorithm);

// AllReduce has all four. ReduceScatter and AllGather have no Tree, Broadcast no Hierarchical,
// AllToAll only Direct.
bool has_algorithm(Collective collective, Algorithm algorithm);

// Software costs beside the latency of links; sources in docs/cost_model.md.
inline constexpr Seconds kCollectiveStart{6e-6};  // of a collective, before its first step
inline constexpr Seconds kCopyStart{3e-6};        // of a copy
inline constexpr Seconds kStepCost{0.5e-6};       // of each step, or of each peer of a Direct one
inline constexpr Seconds kStagingCost{5e-6};      // of each route through host memory

// One direction of a link. A half-duplex link has one direction only, `forward`.
struct LinkDirection {
  LinkId link;
  bool forward = true;
  auto operator<=>(const LinkDirection&) const = default;
};

struct LinkLoad {
  LinkDirection direction;
  Bytes bytes;  // that cross it
};

struct Traffic {
  Seconds latency;              // before the first byte, and between steps, whatever the size
  Bytes volume;                 // that one member sends: the unit in which fair shares are equal
  std::vector<LinkLoad> loads;  // ascending by direction, each once; empty if nothing moves
  Algorithm algorithm = Algorithm::Direct;
};

// Devices that run a collective among themselves, in ring order.
using DeviceGroup = std::vector<DeviceId>;

// The same collective on `bytes` in all `groups` at the same time, by the algorithm that is fastest
// when nobody else is there. A group's members are regrouped by node; inside of a node their order
// is kept. `bytes` is the size of the whole, unsplit tensor, all groups alike:
//   AllReduce      every member has `bytes` and ends with `bytes`
//   ReduceScatter  every member has `bytes` and ends with its part
//   AllGather      every member has its part and ends with `bytes`
//   AllToAll       every member has its part of `bytes` (1/n) and ends with another part: it sends
//                  bytes / n^2 to each other member
//   Broadcast      the first member has `bytes`, all end with it
// Groups of one member and 0 bytes give empty traffic. The second form throws Error{Unsupported}
// if the collective has no such algorithm; Hierarchical is Ring where a group is not striped.
Traffic plan_collective(const Machine& machine, Collective collective,
                        std::span<const DeviceGroup> groups, Bytes bytes);
Traffic plan_collective(const Machine& machine, Collective collective, Algorithm algorithm,
                        std::span<const DeviceGroup> groups, Bytes bytes);

// Copies that start together; none from an endpoint to itself. Ends are endpoints, so that host
// memory can be one.
struct Copy {
  EndpointId from, to;
  Bytes bytes;
};
Traffic plan_copies(const Machine& machine, std::span<const Copy> copies);

// The same, for one plan after another on one machine: routes are found once. Refers to the
// machine. Not shared between threads.
class TrafficPlanner {
 public:
  explicit TrafficPlanner(const Machine& machine);
  ~TrafficPlanner();
  TrafficPlanner(TrafficPlanner&&) noexcept;

  Traffic collective(Collective collective, std::span<const DeviceGroup> groups, Bytes bytes);
  Traffic copies(std::span<const Copy> copies);

 private:
  const Machine& machine_;
  std::unique_ptr<class LoadSum> loads_;
};

// Time when nobody else is there: latency plus the slowest link.
Seconds time_alone(const Machine& machine, const Traffic& traffic);

}  // namespace windlass

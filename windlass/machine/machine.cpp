#include "windlass/machine/machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <optional>
#include <set>

#include "windlass/base/error.h"

namespace windlass {
namespace {

struct Neighbour {
  EndpointId endpoint;
  Hop hop;
};

std::vector<std::vector<Neighbour>> neighbours_of(const Machine& machine) {
  std::vector<std::vector<Neighbour>> result(machine.endpoints.size());
  for (size_t i = 0; i < machine.links.size(); ++i) {
    const Link& link = machine.links[i];
    result[link.a.index()].push_back({link.b, {LinkId(i), true}});
    result[link.b.index()].push_back({link.a, {LinkId(i), false}});
  }
  return result;
}

// Routes by breadth-first search over (hops, -bandwidth, link ids). Traffic passes through switches
// only: a device or host is an end, not a way.
std::optional<std::vector<Hop>> shortest_hops(const Machine& machine, EndpointId from,
                                              EndpointId to) {
  if (from == to) return std::vector<Hop>{};
  const auto neighbours = neighbours_of(machine);
  struct Reached {
    int64_t hops = -1;
    double bandwidth = 0;
    EndpointId previous;
    Hop hop;
  };
  std::vector<Reached> reached(machine.endpoints.size());
  reached[from.index()] = {0, HUGE_VAL, {}, {}};
  const bool inside = machine[from].node.valid() && machine[from].node == machine[to].node;
  std::deque<EndpointId> open = {from};
  while (!open.empty()) {
    const EndpointId here = open.front();
    open.pop_front();
    if (here != from && machine[here].kind != Endpoint::Kind::Switch) continue;
    const Reached current = reached[here.index()];
    for (const Neighbour& next : neighbours[here.index()]) {
      if (inside && machine[next.endpoint].node != machine[from].node) continue;
      Reached& there = reached[next.endpoint.index()];
      const double bandwidth = std::min(current.bandwidth, machine[next.hop.link].bandwidth.value);
      const bool fresh = there.hops < 0;
      if (!fresh && (there.hops < current.hops + 1 || there.bandwidth >= bandwidth)) continue;
      there = {current.hops + 1, bandwidth, here, next.hop};
      if (fresh) open.push_back(next.endpoint);
    }
  }
  if (reached[to.index()].hops < 0) return std::nullopt;
  std::vector<Hop> hops;
  for (EndpointId at = to; at != from; at = reached[at.index()].previous)
    hops.push_back(reached[at.index()].hop);
  std::reverse(hops.begin(), hops.end());
  return hops;
}

// Endpoints that traffic from `from` reaches through switches; `inside`: without leaving its node.
std::set<EndpointId> reachable(const Machine& machine,
                               const std::vector<std::vector<Neighbour>>& neighbours,
                               EndpointId from, bool inside) {
  std::set<EndpointId> found = {from};
  std::vector<EndpointId> open = {from};
  while (!open.empty()) {
    const EndpointId here = open.back();
    open.pop_back();
    if (here != from && machine[here].kind != Endpoint::Kind::Switch) continue;
    for (const Neighbour& next : neighbours[here.index()]) {
      if (inside && machine[next.endpoint].node != machine[from].node) continue;
      if (found.insert(next.endpoint).second) open.push_back(next.endpoint);
    }
  }
  return found;
}

Route priced(const Machine& machine, std::vector<Hop> hops, bool staged) {
  Route route{std::move(hops), Seconds(0), BytesPerSecond(HUGE_VAL), staged};
  for (const Hop& hop : route.hops) {
    route.latency += machine[hop.link].latency;
    route.bandwidth = std::min(route.bandwidth, machine[hop.link].bandwidth);
  }
  return route;
}

}  // namespace

std::string_view precision_name(Precision precision) {
  static constexpr std::array<std::string_view, 5> kNames = {"fp64", "fp32", "tf32", "bf16",
                                                             "fp16"};
  return kNames[static_cast<size_t>(precision)];
}

Route find_route(const Machine& machine, EndpointId from, EndpointId to) {
  const auto require = [&](EndpointId a, EndpointId b) {
    auto hops = shortest_hops(machine, a, b);
    if (!hops)
      fail_input("machine \"{}\": no link leads from {} to {}", machine.name, machine[a].name,
                 machine[b].name);
    return *std::move(hops);
  };
  const Endpoint& source = machine[from];
  const Endpoint& target = machine[to];
  if (from != to && source.kind == Endpoint::Kind::Device &&
      target.kind == Endpoint::Kind::Device) {
    const NodeId node = machine.devices[static_cast<size_t>(source.index)].node;
    const NodeId other = machine.devices[static_cast<size_t>(target.index)].node;
    if (node == other && !machine[node].peer_to_peer) {
      std::vector<Hop> hops = require(from, machine[node].endpoint);
      const std::vector<Hop> down = require(machine[node].endpoint, to);
      hops.insert(hops.end(), down.begin(), down.end());
      return priced(machine, std::move(hops), true);
    }
  }
  return priced(machine, require(from, to), false);
}

void check_machine(const Machine& machine) {
  constexpr size_t kMaxDevices = 65'536;
  if (machine.devices.empty()) fail_input("machine \"{}\" has no devices", machine.name);
  if (machine.devices.size() > kMaxDevices)
    fail_input("machine \"{}\" has {} devices, at most {} are supported", machine.name,
               machine.devices.size(), kMaxDevices);
  std::set<std::string> names;
  for (const Endpoint& endpoint : machine.endpoints)
    if (!names.insert(endpoint.name).second)
      fail_input("machine \"{}\" has two endpoints called \"{}\"", machine.name, endpoint.name);
  for (const DeviceType& type : machine.device_types) {
    if (!type.peak.contains(Precision::Fp32))
      fail_input("device type \"{}\" has no fp32 rate", type.name);
    if (type.memory.value <= 0 || type.reserved >= type.memory)
      fail_input("device type \"{}\": {} of memory leave nothing beside {} reserved", type.name,
                 format_bytes(type.memory), format_bytes(type.reserved));
  }
  // Links lead both ways, so what a host reaches, reaches it.
  const auto neighbours = neighbours_of(machine);
  std::set<EndpointId> joined;
  for (const Node& node : machine.nodes)
    joined.merge(reachable(machine, neighbours, node.endpoint, true));
  for (const Device& device : machine.devices) {
    if (device.limit.value <= 0) fail_input("device \"{}\" has no memory", device.name);
    if (!joined.contains(device.endpoint))
      fail_input("device \"{}\" has no link to its host \"{}\"", device.name,
                 machine[device.node].name);
  }
  const auto hosts = reachable(machine, neighbours, machine.nodes[0].endpoint, false);
  for (const Node& node : machine.nodes)
    if (!hosts.contains(node.endpoint))
      fail_input("no link joins the nodes \"{}\" and \"{}\"", machine.nodes[0].name, node.name);
}

}  // namespace windlass

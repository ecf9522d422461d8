#include "windlass/machine/machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <unordered_map>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using Neighbours = std::vector<std::vector<Neighbour>>;

Neighbours neighbours_of(const Machine& machine) {
  Neighbours result(machine.endpoints.size());
  const auto add = [&](EndpointId from, EndpointId to, Hop hop) {
    const Endpoint& there = machine[to];
    result[from.index()].push_back({to, there.node, there.kind == Endpoint::Kind::Switch, hop});
  };
  for (size_t i = 0; i < machine.links.size(); ++i) {
    const Link& link = machine.links[i];
    add(link.a, link.b, {LinkId(i), true});
    add(link.b, link.a, {LinkId(i), false});
  }
  return result;
}

// An endpoint that a search has come to, and how.
struct Reached {
  EndpointId endpoint;
  int64_t hops = 0;
  double bandwidth = 0;
  size_t previous = 0;  // index into the list of reached ones
  Hop hop;
};

// The reached endpoints in the order they were found. Few as a rule, so that they are looked
// through; beyond that they are indexed.
class ReachedList {
 public:
  Reached& operator[](size_t i) { return list_[i]; }
  size_t size() const { return list_.size(); }

  std::optional<size_t> find(EndpointId endpoint) const {
    if (list_.size() > kFew) {
      const auto found = index_.find(endpoint);
      return found == index_.end() ? std::nullopt : std::optional(found->second);
    }
    for (size_t i = 0; i < list_.size(); ++i)
      if (list_[i].endpoint == endpoint) return i;
    return std::nullopt;
  }

  void add(const Reached& reached) {
    list_.push_back(reached);
    if (list_.size() == kFew + 1)
      for (size_t i = 0; i < list_.size(); ++i) index_[list_[i].endpoint] = i;
    if (list_.size() > kFew + 1) index_[reached.endpoint] = list_.size() - 1;
  }

 private:
  static constexpr size_t kFew = 64;
  std::vector<Reached> list_;
  std::unordered_map<EndpointId, size_t> index_;
};

// Breadth-first search over (hops, -bandwidth, link ids). Traffic passes through switches only: a
// device or host is an end, not a way, and so is not looked at unless it is the end.
std::optional<std::vector<Hop>> shortest_hops(const Machine& machine, const Neighbours& neighbours,
                                              EndpointId from, EndpointId to) {
  if (from == to) return std::vector<Hop>{};
  const NodeId here = machine[from].node, there = machine[to].node;
  const bool inside = here.valid() && here == there;
  ReachedList reached;
  reached.add({from, 0, HUGE_VAL, 0, {}});
  for (size_t i = 0; i < reached.size(); ++i) {
    const Reached current = reached[i];
    if (current.endpoint == to) break;  // all of its predecessors have been expanded
    for (const Neighbour& next : neighbours[current.endpoint.index()]) {
      if (!next.is_switch && next.endpoint != to) continue;
      if (next.node != here && (inside || (next.node != there && next.node.valid()))) continue;
      const double bandwidth = std::min(current.bandwidth, machine[next.hop.link].bandwidth.value);
      const Reached found = {next.endpoint, current.hops + 1, bandwidth, i, next.hop};
      if (const auto known = reached.find(next.endpoint)) {
        Reached& old = reached[*known];
        if (old.hops == found.hops && old.bandwidth < bandwidth) old = found;
      } else {
        reached.add(found);
      }
    }
  }
  const auto end = reached.find(to);
  if (!end) return std::nullopt;
  std::vector<Hop> hops(static_cast<size_t>(reached[*end].hops));
  size_t at = *end;
  for (size_t k = hops.size(); k-- > 0; at = reached[at].previous) hops[k] = reached[at].hop;
  return hops;
}

// Endpoints that traffic from `from` reaches through switches; `inside`: without leaving its node.
std::set<EndpointId> reachable(const Machine& machine, const Neighbours& neighbours,
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

void index_links(Machine& machine) { machine.neighbours = neighbours_of(machine); }

Route find_route(const Machine& machine, EndpointId from, EndpointId to) {
  const bool indexed = machine.neighbours.size() == machine.endpoints.size();
  const Neighbours made = indexed ? Neighbours() : neighbours_of(machine);
  const Neighbours& neighbours = indexed ? machine.neighbours : made;
  const auto require = [&](EndpointId a, EndpointId b) {
    auto hops = shortest_hops(machine, neighbours, a, b);
    if (!hops)
      fail_input("machine \"{}\": no link leads from {} to {}", machine.name, machine[a].name,
                 machine[b].name);
    return *std::move(hops);
  };
  const Endpoint& source = machine[from];
  const Endpoint& target = machine[to];
  const bool within = from != to && source.kind == Endpoint::Kind::Device &&
                      target.kind == Endpoint::Kind::Device && source.node == target.node;
  if (within && !machine[source.node].peer_to_peer) {
    const auto direct = shortest_hops(machine, neighbours, from, to);
    if (direct && direct->size() == 1) return priced(machine, *direct, false);
    const EndpointId host = machine[source.node].endpoint;
    std::vector<Hop> hops = require(from, host);
    const std::vector<Hop> down = require(host, to);
    hops.insert(hops.end(), down.begin(), down.end());
    return priced(machine, std::move(hops), true);
  }
  return priced(machine, require(from, to), false);
}

std::vector<DeviceId> all_devices(const Machine& machine) {
  std::vector<DeviceId> all;
  for (size_t d = 0; d < machine.devices.size(); ++d) all.emplace_back(d);
  return all;
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

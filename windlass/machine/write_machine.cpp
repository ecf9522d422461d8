#include "windlass/machine/write_machine.h"

#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

using nlohmann::ordered_json;

ordered_json write_type(const DeviceType& type) {
  ordered_json peak = ordered_json::object();
  for (const auto& [precision, rate] : type.peak)
    peak[std::string(precision_name(precision))] = rate.value;
  ordered_json json = {{"memory", type.memory.value},
                       {"reserved", type.reserved.value},
                       {"peak", peak},
                       {"memory_bandwidth", type.memory_bandwidth.value},
                       {"launch_overhead", type.launch_overhead.value}};
  if (type.matrix_share > 0) json["matrix_share"] = type.matrix_share;
  if (type.stream_share > 0) json["stream_share"] = type.stream_share;
  if (type.copies_itself) json["copies_itself"] = true;
  json["source"] = type.source;
  if (!type.calibration.any()) return json;
  const Calibration& calibration = type.calibration;
  ordered_json families = ordered_json::object();
  for (const auto& [name, points] : calibration.families)
    for (const KernelRatio& point : points)
      families[name].push_back({{"analytic", point.analytic.value},
                                {"ratio", point.ratio},
                                {"low", point.low},
                                {"high", point.high}});
  json["calibration"] = {{"beside_devices", calibration.beside_devices},
                         {"beside_copies", calibration.beside_copies},
                         {"beside_updates", calibration.beside_updates},
                         {"families", std::move(families)}};
  for (const auto& [name, share] : calibration.workspace)
    json["calibration"]["workspace"][name] = share;
  for (const CopyTime& copy : calibration.copies)
    json["calibration"]["copies"].push_back({{"bytes", copy.bytes.value},
                                             {"time", copy.time.value},
                                             {"low", copy.low.value},
                                             {"high", copy.high.value}});
  return json;
}

// "node3.gpu5" without its node; "gpu5" without its number.
std::string local_name(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
}
std::string stem_of(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

// The parts of a machine by node, in order.
struct NodeParts {
  std::vector<const Device*> devices;
  std::vector<const Endpoint*> switches;
  std::vector<const Link*> links;
  ordered_json network = {};
};

ordered_json write_devices(const Machine& machine, const NodeParts& parts,
                           const std::string& prefix) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < parts.devices.size();) {
    const Device& first = *parts.devices[i];
    const std::string stem = stem_of(local_name(first.name, prefix));
    size_t end = i;
    while (end < parts.devices.size() && parts.devices[end]->type == first.type &&
           parts.devices[end]->limit == first.limit &&
           stem_of(local_name(parts.devices[end]->name, prefix)) == stem)
      ++end;
    list.push_back({{"type", machine.device_types[first.type].name},
                    {"name", stem},
                    {"count", end - i},
                    {"limit", first.limit.value}});
    i = end;
  }
  return list;
}

ordered_json write_node(const Machine& machine, const Node& node, const NodeParts& parts,
                        const std::string& prefix) {
  ordered_json switches = ordered_json::array(), links = ordered_json::array();
  for (const Endpoint* endpoint : parts.switches)
    switches.push_back(local_name(endpoint->name, prefix));
  for (const Link* link : parts.links)
    links.push_back({{"from", local_name(machine[link->a].name, prefix)},
                     {"to", local_name(machine[link->b].name, prefix)},
                     {"bandwidth", link->bandwidth.value},
                     {"latency", link->latency.value},
                     {"duplex", link->full_duplex ? "full" : "half"}});
  ordered_json result = {{"host",
                          {{"memory", node.memory.value},
                           {"memory_bandwidth", node.memory_bandwidth.value},
                           {"peak", node.peak.value}}},
                         {"devices", write_devices(machine, parts, prefix)},
                         {"peer_to_peer", node.peer_to_peer}};
  if (node.core_speed != 1) result["host"]["core_speed"] = node.core_speed;
  if (node.one_process) result["one_process"] = true;
  result["switches"] = switches;
  result["links"] = links;
  return result;
}

}  // namespace

ordered_json machine_json(const Machine& machine) {
  const bool prefixed = machine.nodes.size() > 1;
  std::vector<NodeParts> parts(machine.nodes.size());
  for (const Device& device : machine.devices)
    parts[device.node.index()].devices.push_back(&device);
  for (const Endpoint& endpoint : machine.endpoints)
    if (endpoint.kind == Endpoint::Kind::Switch && endpoint.node.valid())
      parts[endpoint.node.index()].switches.push_back(&endpoint);
  std::optional<ordered_json> network;  // that of the first node
  std::string per;
  for (const Link& link : machine.links) {
    const NodeId a = machine[link.a].node, b = machine[link.b].node;
    if (a.valid() && a == b) {
      parts[a.index()].links.push_back(&link);
      continue;
    }
    const Endpoint& end = machine[a.valid() ? link.a : link.b];
    const ordered_json own = {{"bandwidth", link.bandwidth.value}, {"latency", link.latency.value}};
    parts[end.node.index()].network = own;
    if (network) continue;
    network = own;
    per = end.kind == Endpoint::Kind::Switch ? "node" : "device";
  }
  ordered_json nodes = ordered_json::array();
  for (size_t n = 0; n < machine.nodes.size(); ++n) {
    const std::string prefix = prefixed ? fmt::format("node{}.", n) : "";
    ordered_json node = write_node(machine, machine.nodes[n], parts[n], prefix);
    if (network && parts[n].network != *network) node["network"] = parts[n].network;
    if (!nodes.empty()) {
      ordered_json& last = nodes.back();
      node["count"] = last["count"];
      if (node == last) {
        last["count"] = last["count"].get<int64_t>() + 1;
        continue;
      }
    }
    node["count"] = 1;
    nodes.push_back(std::move(node));
  }
  ordered_json types = ordered_json::object();
  for (const DeviceType& type : machine.device_types) types[type.name] = write_type(type);
  ordered_json json = {{"name", machine.name},
                       {"description", machine.description},
                       {"device_types", types},
                       {"nodes", nodes}};
  if (network) {
    json["network"] = *network;
    json["network"]["per"] = per;
  }
  return json;
}

std::string machine_to_json(const Machine& machine) {
  return machine_json(machine).dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace windlass

#include "windlass/machine/write_machine.h"

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

ordered_json write_type(const DeviceType& type) {
  ordered_json peak;
  for (const auto& [precision, rate] : type.peak)
    peak[std::string(precision_name(precision))] = rate.value;
  return {{"memory", type.memory.value},
          {"reserved", type.reserved.value},
          {"peak", peak},
          {"memory_bandwidth", type.memory_bandwidth.value},
          {"launch_overhead", type.launch_overhead.value},
          {"source", type.source}};
}

// "cpu3" without its number.
std::string stem_of(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

ordered_json write_devices(const Machine& machine) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < machine.devices.size();) {
    const Device& first = machine.devices[i];
    size_t end = i;
    while (end < machine.devices.size() && machine.devices[end].type == first.type &&
           machine.devices[end].limit == first.limit &&
           stem_of(machine.devices[end].name) == stem_of(first.name))
      ++end;
    list.push_back({{"type", machine.device_types[first.type].name},
                    {"name", stem_of(first.name)},
                    {"count", end - i},
                    {"limit", first.limit.value}});
    i = end;
  }
  return list;
}

ordered_json write_node(const Machine& machine) {
  const Node& node = machine.nodes[0];
  ordered_json switches = ordered_json::array(), links = ordered_json::array();
  for (const Endpoint& endpoint : machine.endpoints)
    if (endpoint.kind == Endpoint::Kind::Switch) switches.push_back(endpoint.name);
  for (const Link& link : machine.links)
    links.push_back({{"from", machine[link.a].name},
                     {"to", machine[link.b].name},
                     {"bandwidth", link.bandwidth.value},
                     {"latency", link.latency.value},
                     {"duplex", link.full_duplex ? "full" : "half"}});
  return {{"host",
           {{"memory", node.memory.value},
            {"memory_bandwidth", node.memory_bandwidth.value},
            {"peak", node.peak.value}}},
          {"devices", write_devices(machine)},
          {"peer_to_peer", node.peer_to_peer},
          {"switches", switches},
          {"links", links}};
}

}  // namespace

std::string machine_to_json(const Machine& machine) {
  ensure(machine.nodes.size() == 1, "machine_to_json: several nodes");
  ordered_json types;
  for (const DeviceType& type : machine.device_types) types[type.name] = write_type(type);
  const ordered_json json = {{"name", machine.name},
                             {"description", machine.description},
                             {"device_types", types},
                             {"nodes", ordered_json::array({write_node(machine)})}};
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace windlass

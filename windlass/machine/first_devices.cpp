#include "windlass/machine/first_devices.h"

#include <vector>

#include "windlass/base/error.h"

namespace windlass {

Machine first_devices(const Machine& machine, size_t count) {
  ensure(count > 0 && count <= machine.devices.size(), "the machine has no such number of devices");
  Machine part = machine;
  part.devices.resize(count);
  std::vector<bool> has_devices(machine.nodes.size());
  for (const Device& device : part.devices) has_devices[device.node.index()] = true;
  std::vector<NodeId> new_node(machine.nodes.size());
  part.nodes.clear();
  for (size_t i = 0; i < machine.nodes.size(); ++i) {
    if (!has_devices[i]) continue;
    new_node[i] = NodeId(part.nodes.size());
    part.nodes.push_back(machine.nodes[i]);
  }
  std::vector<EndpointId> new_endpoint(machine.endpoints.size());
  part.endpoints.clear();
  for (size_t i = 0; i < machine.endpoints.size(); ++i) {
    Endpoint endpoint = machine.endpoints[i];
    if (endpoint.node.valid()) {
      endpoint.node = new_node[endpoint.node.index()];
      if (!endpoint.node.valid()) continue;
    }
    if (endpoint.kind == Endpoint::Kind::Device && static_cast<size_t>(endpoint.index) >= count)
      continue;
    if (endpoint.kind == Endpoint::Kind::Host)
      endpoint.index = static_cast<int32_t>(endpoint.node.index());
    new_endpoint[i] = EndpointId(part.endpoints.size());
    part.endpoints.push_back(std::move(endpoint));
  }
  for (Device& device : part.devices) {
    device.node = new_node[device.node.index()];
    device.endpoint = new_endpoint[device.endpoint.index()];
  }
  for (Node& node : part.nodes) node.endpoint = new_endpoint[node.endpoint.index()];
  part.links.clear();
  for (Link link : machine.links) {
    link.a = new_endpoint[link.a.index()];
    link.b = new_endpoint[link.b.index()];
    if (link.a.valid() && link.b.valid()) part.links.push_back(std::move(link));
  }
  index_links(part);
  return part;
}

}  // namespace windlass

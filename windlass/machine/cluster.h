// Hosts that a network joins, as each was found out by itself, put together to one machine.
#pragma once

#include <string>
#include <vector>

#include "windlass/machine/machine.h"

namespace windlass {

struct ClusterHost {
  std::string name;  // as people know it
  Machine machine;   // of one node with a switch called "root": its devices and the links inside
  // Of its connection to the others: of one direction, and of a short message to another host.
  BytesPerSecond bandwidth;
  Seconds latency;
};

// What a machine of several CPU hosts is called.
inline constexpr const char* kClusterName = "cluster";

// Whether a machine is made of CPU devices of this host, or of hosts like it.
bool of_cpu_hosts(const Machine& machine);

// Of the node that has most.
size_t most_devices_of_a_node(const Machine& machine);

// The hosts in their order. Measured figures differ from host to host: those that are alike (the
// same parts, rates that differ by less than a sixth) get the same figures, the medians, and of
// memories the least; likewise connections, within a quarter. `source`, where the figures of
// the network come from, stands in the description. Throws Error{Input} if there are fewer than two
// hosts.
Machine cluster_machine(const std::vector<ClusterHost>& hosts, const std::string& source);

}  // namespace windlass

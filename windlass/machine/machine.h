// Machines: devices, host memories, and the links between them. Plain data; a machine is a JSON
// file (docs/machine_format.md), a preset, or this host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/id.h"
#include "windlass/base/units.h"

namespace windlass {

using DeviceId = Id<struct DeviceTag>;
using NodeId = Id<struct NodeTag>;
using EndpointId = Id<struct EndpointTag>;
using LinkId = Id<struct LinkTag>;

// Arithmetic that a device has a rate for. Named apart from graph dtypes: this folder knows no
// graphs.
enum class Precision : uint8_t { Fp64, Fp32, Tf32, Bf16, Fp16 };
std::string_view precision_name(Precision precision);

// A kind of device.
// What kernels took beside what the analytic cost model says of them, about one size: times of the
// model, and of those what was measured. `low` and `high` hold four fifths of the kernels.
struct KernelRatio {
  Seconds analytic;
  double ratio = 1, low = 1, high = 1;
};

// What a copy of so many bytes between host memory and a device took; `low` and `high` hold four
// fifths of the times that were seen.
struct CopyTime {
  Bytes bytes;
  Seconds time, low, high;
};

// How the kernels of a device were measured (run/calibrate.h). Applied by the cost model.
struct Calibration {
  // By family of ops, "compression" beside: ascending in `analytic` and in what was measured. A
  // family that is not there is as the model says.
  std::map<std::string, std::vector<KernelRatio>> families = {};
  // How many times as long kernels take while another device computes, while copies to and from
  // host memory run, and while the host updates weights: the upper end of predictions has the
  // largest of them.
  double beside_devices = 1, beside_copies = 1, beside_updates = 1;
  // By family: the most bytes that a kernel held beside operands and results, for each byte of
  // these. A family that is not there is as the model says.
  std::map<std::string, double> workspace = {};
  // By size, ascending: the device's link has the line through them.
  std::vector<CopyTime> copies = {};

  bool any() const { return !families.empty(); }
};

struct DeviceType {
  std::string name;
  Bytes memory;                              // installed
  Bytes reserved;                            // taken by driver and context before the first tensor
  std::map<Precision, FlopsPerSecond> peak;  // dense; fp32 is always there
  // Of its matrix units' peak, what large products reach in long runs, where that is known: cards
  // whose power or cooling does not carry the peak. 0: what the cost model assumes of all.
  double matrix_share = 0;
  // Of its memory's bandwidth, what kernels reach that read and write long runs; 0: likewise.
  double stream_share = 0;
  BytesPerSecond memory_bandwidth;
  Seconds launch_overhead;  // from one kernel to the next when they are tiny
  // Its own cores copy to and from host memory and other devices, add up what they exchange and
  // carry out updates on the host: nothing of that runs beside its kernels.
  bool copies_itself = false;
  std::string source;  // where the figures come from
  Calibration calibration = {};
};

struct Device {
  std::string name;  // "gpu0", unique in the machine
  NodeId node;
  size_t type = 0;  // index into Machine::device_types
  Bytes limit;      // what training may use: memory - reserved, unless set lower
  EndpointId endpoint;
};

// A host with its memory. Several devices hang on it.
struct Node {
  std::string name;
  Bytes memory;                     // of the host, usable for training
  BytesPerSecond memory_bandwidth;  // of the host
  FlopsPerSecond peak;              // fp32, of all its cores together: updates on the host
  // How fast one of its cores is, as times that a core of an A100 server (EPYC 7742) is: divides
  // what frameworks take to hand an op to a device (cost_model.h, HostCosts).
  double core_speed = 1;
  bool peer_to_peer = true;  // false: copies between devices that no link joins directly
                             // go through host memory
  EndpointId endpoint;
  // Its devices are threads of one process: what several exchange, one of them does in one go, so
  // that steps of an exchange do not wait for each other.
  bool one_process = false;
};

// Where links end: a device, a host's memory, a switch, or the network between nodes.
struct Endpoint {
  enum class Kind : uint8_t { Device, Host, Switch };
  Kind kind = Kind::Switch;
  int32_t index = -1;  // device or node
  std::string name;
  NodeId node;  // none for the network
};

// A physical segment. All transfers whose routes use it share its bandwidth: in each direction
// apart if full duplex, both together if not.
struct Link {
  std::string name;
  EndpointId a, b;
  BytesPerSecond bandwidth;  // of one direction
  Seconds latency;
  bool full_duplex = true;
};

// One link of a route, and whether it is passed from its end a to its end b.
struct Hop {
  LinkId link;
  bool forward = true;
  bool operator==(const Hop&) const = default;
};

// What lies at the other end of a link.
struct Neighbour {
  EndpointId endpoint;
  NodeId node;  // of that endpoint
  bool is_switch = false;
  Hop hop;
};

struct Machine {
  std::string name;
  std::string description;
  std::vector<DeviceType> device_types;
  std::vector<Device> devices;
  std::vector<Node> nodes;
  std::vector<Endpoint> endpoints;
  std::vector<Link> links;
  // Of each endpoint, in the order of link ids: index_links() makes it. Routes are found without
  // it too, only slower.
  std::vector<std::vector<Neighbour>> neighbours;

  const Device& operator[](DeviceId id) const { return devices[id.index()]; }
  const Node& operator[](NodeId id) const { return nodes[id.index()]; }
  const Link& operator[](LinkId id) const { return links[id.index()]; }
  const Endpoint& operator[](EndpointId id) const { return endpoints[id.index()]; }
  const DeviceType& type_of(DeviceId id) const { return device_types[devices[id.index()].type]; }
};

// In the order of their ids.
std::vector<DeviceId> all_devices(const Machine& machine);

// How bytes get from one endpoint to another.
struct Route {
  std::vector<Hop> hops;
  Seconds latency;           // sum over the hops
  BytesPerSecond bandwidth;  // of the narrowest hop, when nobody else is there
  bool staged = false;       // through host memory on the way, as a copy of its own
};

// Fills `neighbours`. To be called after the last change of endpoints and links.
void index_links(Machine& machine);

// The route with the fewest hops, ties by the larger bandwidth, then by the lower link ids. Inside
// of a node it does not leave the node; between two nodes it passes no third. Between devices of a
// node without peer-to-peer it leads through the node's host, unless one link joins the two. Throws
// Error{Input} if there is none. A route to itself has no hops. About a microsecond on an indexed
// machine, and a nanosecond more for each link of the largest switch passed.
Route find_route(const Machine& machine, EndpointId from, EndpointId to);

// Throws Error{Input} naming what is wrong: no devices, unreachable devices, repeated names, sizes
// out of range.
void check_machine(const Machine& machine);

}  // namespace windlass

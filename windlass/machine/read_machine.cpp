#include "windlass/machine/read_machine.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"
#include "windlass/machine/read_calibration.h"

namespace windlass {
namespace {

constexpr int64_t kMaxNodeDevices = 4096;  // of one node
constexpr int64_t kMaxAllDevices = 131'072;
constexpr int64_t kMaxLinks = 1'000'000;

struct DeviceSpec {
  std::string name;  // "gpu0"
  size_t type = 0;
  std::optional<Bytes> limit;
};

struct LinkSpec {
  std::vector<std::string> from, to;  // patterns: "gpu0", "gpu0-3", "gpu*"
  BytesPerSecond bandwidth;
  Seconds latency;
  bool full_duplex = true;
  std::string where;
};

// A node as the file describes it; the same spec may stand for many nodes.
struct NodeSpec {
  int64_t count = 1;
  Node host;
  std::vector<DeviceSpec> devices;
  std::vector<std::string> switches;
  std::vector<LinkSpec> links;
  std::optional<LinkSpec> network;  // its own connection, if it is another than most have
};

struct NetworkSpec {
  LinkSpec link;
  bool per_device = false;
};

DeviceType read_device_type(JsonObject object, std::string name) {
  DeviceType type;
  type.name = std::move(name);
  type.memory = object.bytes("memory");
  type.reserved = object.bytes("reserved", Bytes(0));
  type.memory_bandwidth = object.bandwidth("memory_bandwidth");
  type.launch_overhead = object.seconds("launch_overhead", Seconds(5e-6));
  type.matrix_share = object.number("matrix_share", 0, 0, 1);
  type.stream_share = object.number("stream_share", 0, 0, 1);
  type.copies_itself = object.boolean("copies_itself", false);
  type.source = object.text("source", "");
  if (auto calibration = object.object("calibration"))
    type.calibration = read_calibration(std::move(*calibration));
  auto peak = object.object("peak");
  if (!peak) fail_input("{}: \"peak\" is missing", object.where());
  for (Precision precision :
       {Precision::Fp64, Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16}) {
    const std::string key(precision_name(precision));
    if (precision == Precision::Fp32 || peak->has(key))
      type.peak[precision] = peak->flops_rate(key);
  }
  peak->finish();
  object.finish();
  return type;
}

// "gpu0-3" and "pcie*" as the names they stand for.
std::vector<std::string> expand_pattern(const std::string& pattern,
                                        const std::vector<std::string>& names,
                                        const std::string& where) {
  std::vector<std::string> result;
  for (const std::string& name : names)
    if (matches_glob(name, pattern)) result.push_back(name);
  const size_t dash = pattern.rfind('-');
  if (result.empty() && dash != std::string::npos) {
    size_t digits = dash;
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(pattern[digits - 1]))) --digits;
    int64_t first = 0, last = 0;
    const auto read = [](std::string_view text, int64_t& value) {
      const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
      return failed == std::errc() && end == text.data() + text.size() && !text.empty();
    };
    if (read(std::string_view(pattern).substr(digits, dash - digits), first) &&
        read(std::string_view(pattern).substr(dash + 1), last) && first <= last &&
        last - first < kMaxNodeDevices) {
      for (int64_t i = first; i <= last; ++i) {
        const std::string name = pattern.substr(0, digits) + std::to_string(i);
        if (std::find(names.begin(), names.end(), name) == names.end())
          fail_input("{}: \"{}\" names {}, which is not there", where, pattern, name);
        result.push_back(name);
      }
    }
  }
  if (result.empty())
    fail_input("{}: \"{}\" is no device, switch or host here{}", where, pattern,
               did_you_mean(pattern, names));
  return result;
}

LinkSpec read_connection(JsonObject& object, Seconds usual_latency = Seconds(5e-6)) {
  LinkSpec link;
  link.bandwidth = object.bandwidth("bandwidth");
  link.latency = object.seconds("latency", usual_latency);
  return link;
}

NodeSpec read_node(JsonObject object, const std::vector<DeviceType>& types) {
  NodeSpec node;
  node.count = object.integer("count", 1, 1, kMaxNodes);
  node.host.peer_to_peer = object.boolean("peer_to_peer", true);
  node.host.one_process = object.boolean("one_process", false);
  auto host = object.object("host");
  if (!host) fail_input("{}: \"host\" is missing", object.where());
  node.host.memory = host->bytes("memory");
  node.host.memory_bandwidth = host->bandwidth("memory_bandwidth");
  node.host.peak = host->flops_rate("peak");
  node.host.core_speed = host->number("core_speed", 1, 0.01, 100);
  host->finish();

  std::vector<std::string> known;
  for (const DeviceType& type : types) known.push_back(type.name);
  std::map<std::string, int64_t> numbers;
  for (JsonObject& device : object.objects("devices")) {
    const std::string name = device.text("type");
    const auto type = std::find(known.begin(), known.end(), name);
    if (type == known.end())
      fail_input("{}: no device type is called \"{}\"{}", device.where(), name,
                 did_you_mean(name, known));
    DeviceSpec spec{"", static_cast<size_t>(type - known.begin()), std::nullopt};
    if (device.has("limit")) spec.limit = device.bytes("limit");
    const std::string stem = device.text("name", "gpu");
    if (stem != "gpu" && stem != "cpu")
      fail_input("{}: \"name\" is \"{}\", expected gpu or cpu", device.where(), stem);
    const int64_t count = device.integer("count", 1, 1, kMaxNodeDevices);
    for (int64_t i = 0; i < count; ++i) {
      spec.name = fmt::format("{}{}", stem, numbers[stem]++);
      node.devices.push_back(spec);
    }
    device.finish();
  }
  if (node.devices.empty()) fail_input("{}: has no devices", object.where());
  if (static_cast<int64_t>(node.devices.size()) > kMaxNodeDevices)
    fail_input("{}: has more than {} devices", object.where(), kMaxNodeDevices);
  if (object.has("switches")) node.switches = object.texts("switches");
  if (auto own = object.object("network")) {
    node.network = read_connection(*own);
    own->finish();
  }
  for (JsonObject& link : object.objects("links")) {
    LinkSpec spec = read_connection(link, Seconds(0));
    spec.where = link.where();
    spec.from = {link.text("from")};
    spec.to = {link.text("to")};
    const std::string duplex = link.text("duplex", "full");
    if (duplex != "full" && duplex != "half")
      fail_input("{}: \"duplex\" is \"{}\", expected full or half", link.where(), duplex);
    spec.full_duplex = duplex == "full";
    link.finish();
    node.links.push_back(std::move(spec));
  }
  object.finish();
  return node;
}

// Puts machines together node by node.
class Assembler {
 public:
  Assembler(Machine& machine, const MachineOptions& options, bool prefixed)
      : machine_(machine), options_(options), prefixed_(prefixed) {}

  void add(const NodeSpec& spec, const std::optional<NetworkSpec>& network) {
    const NodeId id(machine_.nodes.size());
    node_ = id;
    prefix_ = prefixed_ ? fmt::format("node{}.", id.value) : "";
    names_.clear();
    Node node = spec.host;
    node.name = prefixed_ ? fmt::format("node{}", id.value) : "host";
    node.endpoint = endpoint(Endpoint::Kind::Host, id.value, "host");
    for (const DeviceSpec& device : spec.devices) add_device(device, id);
    for (const std::string& name : spec.switches) {
      if (find(name).valid()) fail_input("switch \"{}\" has the name of something else", name);
      endpoint(Endpoint::Kind::Switch, -1, name);
    }
    for (const LinkSpec& link : spec.links) add_links(link);
    if (network) join_network(spec, node, *network);
    machine_.nodes.push_back(std::move(node));
  }

 private:
  EndpointId endpoint(Endpoint::Kind kind, int32_t index, const std::string& name) {
    machine_.endpoints.push_back({kind, index, prefix_ + name, node_});
    names_.push_back({name, EndpointId(machine_.endpoints.size() - 1)});
    return names_.back().second;
  }

  EndpointId find(const std::string& name) const {
    for (const auto& [known, id] : names_)
      if (known == name) return id;
    return {};
  }

  void add_device(const DeviceSpec& spec, NodeId node) {
    const DeviceType& type = machine_.device_types[spec.type];
    Device device;
    device.name = prefix_ + spec.name;
    device.node = node;
    device.type = spec.type;
    const Bytes available = type.memory - type.reserved;
    device.limit = options_.memory.value_or(spec.limit.value_or(available));
    if (device.limit > type.memory)
      fail_input("device \"{}\" has {}, its limit cannot be {}", device.name,
                 format_bytes(type.memory), format_bytes(device.limit));
    device.endpoint =
        endpoint(Endpoint::Kind::Device, static_cast<int32_t>(machine_.devices.size()), spec.name);
    machine_.devices.push_back(std::move(device));
  }

  void add_link(EndpointId a, EndpointId b, const LinkSpec& spec) {
    if (static_cast<int64_t>(machine_.links.size()) >= kMaxLinks)
      fail_input("the machine has more than {} links", kMaxLinks);
    machine_.links.push_back({fmt::format("{}-{}", machine_[a].name, machine_[b].name), a, b,
                              spec.bandwidth, spec.latency, spec.full_duplex});
  }

  // Every pair of ends; a pattern against itself joins each pair once.
  void add_links(const LinkSpec& spec) {
    std::vector<std::string> names;
    for (const auto& [name, id] : names_) names.push_back(name);
    const auto from = expand_pattern(spec.from[0], names, spec.where);
    const auto to = expand_pattern(spec.to[0], names, spec.where);
    for (size_t i = 0; i < from.size(); ++i)
      for (size_t j = from == to ? i + 1 : 0; j < to.size(); ++j) {
        if (from[i] == to[j]) fail_input("{}: links {} to itself", spec.where, from[i]);
        add_link(find(from[i]), find(to[j]), spec);
      }
  }

  void join_network(const NodeSpec& spec, const Node& node, const NetworkSpec& network) {
    if (!fabric_.valid()) {
      fabric_ = EndpointId(machine_.endpoints.size());
      machine_.endpoints.push_back({Endpoint::Kind::Switch, -1, "network", {}});
    }
    const LinkSpec& link = spec.network.value_or(network.link);
    if (network.per_device) {
      for (size_t i = 0; i < spec.devices.size(); ++i)
        add_link(machine_.devices[machine_.devices.size() - spec.devices.size() + i].endpoint,
                 fabric_, link);
      add_link(node.endpoint, fabric_, link);
      return;
    }
    const EndpointId root = find("root");
    if (!root.valid())
      fail_input(
          "a network per node needs a switch called \"root\" in each node, or \"per\": \"device\"");
    add_link(root, fabric_, link);
  }

  Machine& machine_;
  const MachineOptions& options_;
  bool prefixed_;
  NodeId node_;
  std::string prefix_;
  std::vector<std::pair<std::string, EndpointId>> names_;
  EndpointId fabric_;
};

NetworkSpec read_network(JsonObject object) {
  NetworkSpec network = {read_connection(object)};
  const std::string per = object.text("per", "node");
  if (per != "node" && per != "device")
    fail_input("{}: \"per\" is \"{}\", expected node or device", object.where(), per);
  network.per_device = per == "device";
  object.finish();
  return network;
}

Machine read_machine(std::string_view text, const MachineOptions& options) {
  const nlohmann::json document = parse_json(text);
  JsonObject top(document, "");
  Machine machine;
  machine.name = top.text("name");
  machine.description = top.text("description", "");
  if (auto types = top.object("device_types"))
    for (const std::string& name : types->keys())
      machine.device_types.push_back(read_device_type(*types->object(name), name));
  if (machine.device_types.empty()) fail_input("\"device_types\" is missing or empty");

  std::vector<NodeSpec> specs;
  for (JsonObject& node : top.objects("nodes"))
    specs.push_back(read_node(node, machine.device_types));
  if (specs.empty()) fail_input("\"nodes\" is missing or empty");
  std::optional<NetworkSpec> network;
  if (auto object = top.object("network")) network = read_network(*object);
  top.finish();

  if (options.nodes) {
    if (specs.size() != 1)
      fail_input("it has several kinds of nodes: a number of nodes cannot be chosen");
    specs[0].count = *options.nodes;
  }
  int64_t nodes = 0, devices = 0;
  for (const NodeSpec& spec : specs) {
    nodes = checked_add(nodes, spec.count);
    const auto each = static_cast<int64_t>(spec.devices.size() + spec.switches.size());
    devices = checked_add(devices, checked_mul(spec.count, each));
  }
  if (nodes > kMaxNodes) fail_input("{} nodes, at most {} are supported", nodes, kMaxNodes);
  if (devices > kMaxAllDevices)
    fail_input("{} devices and switches, at most {} are supported", devices, kMaxAllDevices);
  if (nodes > 1 && !network) fail_input("several nodes need a \"network\"");
  Assembler assembler(machine, options, nodes > 1);
  for (const NodeSpec& spec : specs)
    for (int64_t i = 0; i < spec.count; ++i)
      assembler.add(spec, nodes > 1 ? network : std::nullopt);
  if (options.nodes && *options.nodes > 1)
    machine.name = fmt::format("{}*{}", machine.name, *options.nodes);
  check_machine(machine);
  index_links(machine);
  return machine;
}

}  // namespace

Machine machine_from_json(std::string_view text, const std::string& where,
                          const MachineOptions& options) {
  try {
    return read_machine(text, options);
  } catch (const Error& error) {
    throw error.within(where);
  }
}

}  // namespace windlass

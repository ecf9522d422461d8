#include "windlass/machine/local.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"

namespace windlass {
namespace {

constexpr int64_t kMaxLocalDevices = 4096;
constexpr Seconds kLaunchOverhead(1e-6);
constexpr Seconds kOwnLatency(1e-6);  // of a copy between two kernels

// Least of what so many threads get alone and their share when all devices are at work.
template <typename Rate>
Rate share(Rate one, Rate all, int64_t threads, int64_t devices) {
  return std::min(one * static_cast<double>(threads), all / static_cast<double>(devices));
}

// What training may use of the host: the system and other programs keep a sixteenth.
Bytes spare_memory(const HostFigures& host) {
  return Bytes(host.memory.value - host.memory.value / 16);
}

Bytes device_memory(const LocalOptions& options, const HostFigures& host) {
  const Bytes spare = spare_memory(host);
  const int64_t devices = options.devices * options.hosts;
  if (!options.memory) {
    const int64_t fair = spare.value / (devices + options.hosts);
    return Bytes(std::max(kMiB.value, fair - fair % kMiB.value));
  }
  if (options.memory->value < 1) fail_input("local: the memory of a device must be above 0");
  if (checked_mul(options.memory->value, devices) >= spare.value)
    fail_input("local: {} device{} of {} leave nothing of the {} that this host can spare", devices,
               devices == 1 ? "" : "s", format_bytes(*options.memory), format_bytes(spare));
  return *options.memory;
}

}  // namespace

Machine local_machine(const LocalOptions& options) {
  if (options.devices < 1 || options.devices > kMaxLocalDevices)
    fail_input("local: {} devices, expected 1 to {}", options.devices, kMaxLocalDevices);
  if (options.hosts < 1 || options.hosts > kMaxLocalDevices / options.devices)
    fail_input("local: {} hosts with {} device{} each, expected 1 to {} devices in all",
               options.hosts, options.devices, options.devices == 1 ? "" : "s", kMaxLocalDevices);
  const int64_t all = options.devices * options.hosts;
  const HostFigures host = options.host ? *options.host : measure_host();
  const bool copies_itself = !options.link_bandwidth && options.hosts * options.processes == 1 &&
                             all <= host.cores && all * options.threads >= host.cores;
  const BytesPerSecond link = options.link_bandwidth.value_or(
      copies_itself ? share(host.copy_one, host.copy_all, options.threads, all) : host.copy_one);
  const Seconds latency = copies_itself && all == 1 ? kOwnLatency : host.handoff;

  Machine machine;
  machine.name = "local";
  machine.description = fmt::format("this host: {} core{}, {}", host.cores,
                                    host.cores == 1 ? "" : "s", format_bytes(host.memory));
  DeviceType type;
  type.name = "cpu";
  type.memory = device_memory(options, host);
  type.peak[Precision::Fp32] = share(host.peak_one, host.peak_all, options.threads, all);
  type.memory_bandwidth = share(host.triad_one, host.triad_all, options.threads, all);
  type.launch_overhead = kLaunchOverhead;
  type.copies_itself = copies_itself;
  type.source =
      "measured on this host: the threads of one device, with as many at work as there are devices";
  machine.device_types = {type};

  Node node;
  node.name = "host";
  node.memory = Bytes((spare_memory(host) - type.memory * all).value / options.hosts);
  node.memory_bandwidth = host.triad_all / static_cast<double>(options.hosts);
  node.peak = host.peak_all / static_cast<double>(options.hosts);
  node.one_process = true;
  node.endpoint = EndpointId(size_t{0});
  const NodeId here(size_t{0});
  const EndpointId root(size_t{1});
  machine.nodes = {node};
  machine.endpoints = {{Endpoint::Kind::Host, 0, "host", here},
                       {Endpoint::Kind::Switch, -1, "root", here}};
  for (int64_t i = 0; i < options.devices; ++i) {
    const std::string name = fmt::format("cpu{}", i);
    const EndpointId endpoint(machine.endpoints.size());
    machine.endpoints.push_back({Endpoint::Kind::Device, static_cast<int32_t>(i), name, here});
    machine.devices.push_back({name, here, 0, type.memory, endpoint});
    machine.links.push_back({name + "-root", endpoint, root, link, latency, true});
  }
  // A link as wide as was asked for is not narrowed by the segment that all share.
  machine.links.push_back(
      {"root-host", root, node.endpoint, std::max(host.copy_all, link), Seconds(0), true});
  // As a machine file would have it, so that plans can carry it.
  if (options.hosts == 1) return machine_from_json(machine_to_json(machine), machine.name);
  const LoopbackFigures loopback = options.loopback ? *options.loopback : measure_loopback();
  nlohmann::ordered_json json = machine_json(machine);
  json["description"] = fmt::format("{} as {} hosts", machine.description, options.hosts);
  json["network"] = {{"bandwidth", loopback.bandwidth.value},
                     {"latency", loopback.latency.value},
                     {"per", "node"}};
  json["nodes"][0]["count"] = options.hosts;
  return machine_from_json(json.dump(), machine.name);
}

}  // namespace windlass

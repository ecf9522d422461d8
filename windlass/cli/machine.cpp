// `windlass machine`: the machines that can be planned for.

#include <cstdio>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/cli.h"
#include "windlass/cli/table.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct MachineFlags {
  std::string machine;
  std::string memory;
  bool json = false;
};

MachineOptions options_of(const MachineFlags& flags) {
  MachineOptions options;
  if (!flags.memory.empty()) options.memory = parse_bytes(flags.memory);
  return options;
}

void list_machines(const MachineFlags& flags) {
  ordered_json json = ordered_json::array();
  Table table({Align::Left, Align::Left});
  for (const MachinePreset& preset : machine_presets()) {
    const Machine machine = load_machine(std::string(preset.name));
    table.add({machine.name, machine.description});
    json.push_back({{"name", machine.name}, {"description", machine.description}});
  }
  if (flags.json) {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  fmt::print("{}", table.text());
  fmt::print("A number of nodes may follow: 8xa100-80g*4. A JSON file is a machine too.\n");
}

ordered_json to_json(const Machine& machine) {
  ordered_json json;
  json["name"] = machine.name;
  json["description"] = machine.description;
  auto& devices = json["devices"] = ordered_json::array();
  for (const Device& device : machine.devices) {
    const DeviceType& type = machine.device_types[device.type];
    ordered_json peak;
    for (const auto& [precision, rate] : type.peak)
      peak[std::string(precision_name(precision))] = rate.value;
    devices.push_back({{"name", device.name},
                       {"type", type.name},
                       {"node", machine[device.node].name},
                       {"memory_bytes", type.memory.value},
                       {"limit_bytes", device.limit.value},
                       {"memory_bandwidth_bytes_per_s", type.memory_bandwidth.value},
                       {"launch_overhead_s", type.launch_overhead.value},
                       {"peak_flops_per_s", peak}});
  }
  auto& nodes = json["nodes"] = ordered_json::array();
  for (const Node& node : machine.nodes)
    nodes.push_back({{"name", node.name},
                     {"memory_bytes", node.memory.value},
                     {"memory_bandwidth_bytes_per_s", node.memory_bandwidth.value},
                     {"peak_flops_per_s", node.peak.value},
                     {"peer_to_peer", node.peer_to_peer}});
  auto& links = json["links"] = ordered_json::array();
  for (const Link& link : machine.links)
    links.push_back({{"name", link.name},
                     {"from", machine[link.a].name},
                     {"to", machine[link.b].name},
                     {"bandwidth_bytes_per_s", link.bandwidth.value},
                     {"latency_s", link.latency.value},
                     {"full_duplex", link.full_duplex}});
  return json;
}

// Kinds of routes between endpoints, counted: people want to see "12 x gpu-gpu 12 GB/s", not 12
// lines.
void print_routes(const Machine& machine) {
  constexpr size_t kMaxShown = 32;  // devices whose routes are looked at
  struct Kind {
    std::string from, to;
    double bandwidth, latency;
    bool staged;
    auto operator<=>(const Kind&) const = default;
  };
  std::map<Kind, int> kinds;
  const auto add = [&](EndpointId a, EndpointId b, std::string from, std::string to) {
    const Route route = find_route(machine, a, b);
    ++kinds[{std::move(from), std::move(to), route.bandwidth.value, route.latency.value,
             route.staged}];
  };
  const size_t count = std::min(machine.devices.size(), kMaxShown);
  for (size_t i = 0; i < count; ++i) {
    const Device& device = machine.devices[i];
    add(machine[device.node].endpoint, device.endpoint, "host", "device");
    for (size_t j = i + 1; j < count; ++j)
      add(device.endpoint, machine.devices[j].endpoint, "device",
          machine.devices[j].node == device.node ? "device" : "device of another node");
  }
  Table table({Align::Right, Align::Left, Align::Right, Align::Right, Align::Left});
  for (const auto& [kind, number] : kinds)
    table.add({std::to_string(number), fmt::format("{} - {}", kind.from, kind.to),
               format_bandwidth(BytesPerSecond(kind.bandwidth)),
               format_seconds(Seconds(kind.latency)), kind.staged ? "through host memory" : ""});
  fmt::print("\nroutes, alone on the links{}\n{}",
             count < machine.devices.size() ? " (first devices)" : "", table.text("  "));
}

void show_machine(const MachineFlags& flags) {
  const Machine machine = load_machine(flags.machine, options_of(flags));
  if (flags.json) {
    fmt::print("{}\n", to_json(machine).dump(2));
    return;
  }
  fmt::print("{}: {}\n", machine.name, machine.description);
  std::map<size_t, int> counts;
  for (const Device& device : machine.devices) ++counts[device.type];
  Table table({Align::Right, Align::Left, Align::Left});
  for (const auto& [type_index, count] : counts) {
    const DeviceType& type = machine.device_types[type_index];
    std::string peak;
    for (const auto& [precision, rate] : type.peak)
      peak += fmt::format("{}{} {}", peak.empty() ? "" : ", ", precision_name(precision),
                          format_flops_rate(rate));
    table.add({std::to_string(count), type.name,
               fmt::format("{}, {}; {}", format_bytes(type.memory),
                           format_bandwidth(type.memory_bandwidth), peak)});
  }
  const Node& node = machine.nodes[0];
  table.add(
      {std::to_string(machine.nodes.size()), machine.nodes.size() == 1 ? "host" : "hosts",
       fmt::format("{}, {}", format_bytes(node.memory), format_bandwidth(node.memory_bandwidth))});
  fmt::print("{}", table.text("  "));
  fmt::print("  limit of each device: {}\n", format_bytes(machine.devices[0].limit));
  print_routes(machine);
}

}  // namespace

void add_machine(CLI::App& program) {
  CLI::App* verb = program.add_subcommand("machine", "Machines that can be planned for.");
  verb->require_subcommand(1);
  auto flags = std::make_shared<MachineFlags>();
  CLI::App* list = verb->add_subcommand("list", "Names and descriptions of the presets.");
  list->add_flag("--json", flags->json, "print for programs");
  list->callback([flags] { list_machines(*flags); });
  CLI::App* show = verb->add_subcommand("show", "Devices, memories and links of a machine.");
  show->add_option("MACHINE", flags->machine,
                   "preset such as 4x3090 or 8xa100-80g*4, or a JSON file")
      ->required();
  show->add_option("--memory", flags->memory, "limit of each device, e.g. 10GiB");
  show->add_flag("--json", flags->json, "print for programs");
  show->callback([flags] { show_machine(*flags); });
  verb->footer(
      "Examples:\n  windlass machine list\n  windlass machine show 4x1080ti\n"
      "  windlass machine show my_box.json --json");
}

}  // namespace windlass

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/machine_flags.h"
#include "windlass/cli/number_in.h"
#include "windlass/cli/pricing.h"
#include "windlass/cli/probe_ranks.h"
#include "windlass/cli/rank_processes.h"
#include "windlass/machine/cluster.h"
#include "windlass/machine/local.h"
#include "windlass/machine/probe.h"
#include "windlass/machine/write_machine.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

struct MachineVerb {
  MachineFlags flags;
  bool json = false;
  double time_out = kRankTimeOut;  // of other processes
  std::string bind;
};

void list_machines(bool as_json) {
  ordered_json json = ordered_json::array();
  Table table({Align::Left, Align::Left});
  for (const MachinePreset& preset : machine_presets()) {
    const Machine machine = load_machine(std::string(preset.name));
    table.add({machine.name, machine.description});
    json.push_back({{"name", machine.name}, {"description", machine.description}});
  }
  if (as_json) {
    fmt::print("{}\n", json.dump(2));
    return;
  }
  table.add({"local", "this host as CPU devices, measured on the spot"});
  fmt::print("{}", table.text());
  fmt::print(
      "Fewer devices of one are 2x3090 or 3x3090. A number of nodes may follow: 8xa100-80g*4. A "
      "JSON file\nis a machine too.\n");
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

void print_machine(const Machine& machine) {
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

void show_machine(const MachineVerb& verb) {
  const Machine machine = verb.flags.load();
  if (verb.json)
    fmt::print("{}\n", machine_to_json(machine));
  else
    print_machine(machine);
}

ProbeResult probe_alone(const MachineFlags& flags) {
  const MachineOptions options = flags.machine_options();
  const bool as_devices =
      options.devices || options.hosts || options.memory || options.link_bandwidth;
  return as_devices ? ProbeResult{load_machine("local", options), {}} : probe_host();
}

// People at a terminal get a table; files and pipes get a machine file. With flags of `local` it is
// that machine, figures and all. Of several processes the first one prints, and always a file:
// mpirun gives them a terminal whatever its own output is.
ExitCode probe_machine(const MachineVerb& verb) {
  if (verb.flags.memory.ends_with('%'))
    fail_input("--memory {}: a probe takes bytes, e.g. 10GiB", verb.flags.memory);
  verb.flags.machine_options();  // flags that are wrong are told of once
  if (verb.flags.hosts.value_or(1) > 1 && !own_place())
    return RankStarter().run(own_command(), *verb.flags.hosts, verb.time_out).code;
  ProbeResult found;
  bool as_file = verb.json || !isatty(STDOUT_FILENO);
  if (const std::unique_ptr<Ranks> ranks = join_others(verb.time_out, verb.bind)) {
    try {
      found = probe_ranks(*ranks, verb.flags, verb.time_out);
    } catch (const Error& error) {
      ranks->fail(error.message());
      throw error.within(fmt::format("rank {}", ranks->rank()));
    }
    if (ranks->rank() != 0) return ExitCode::Done;
    as_file = true;
  } else {
    found = probe_alone(verb.flags);
  }
  for (const std::string& note : found.notes) fmt::print(stderr, "note: {}\n", printable(note));
  if (!as_file) {
    print_machine(found.machine);
    fmt::print("\nTo keep these figures: windlass machine probe > here.json\n");
  } else {
    fmt::print("{}\n", machine_to_json(found.machine));
  }
  return ExitCode::Done;
}

// "80%" as 0.8.
double parse_percent(std::string_view text) {
  double value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size() - 1, value);
  if (failed != std::errc() || end != text.data() + text.size() - 1 || !(value > 0 && value <= 100))
    fail_input("--memory: \"{}\" is not a share of memory; expected e.g. 80% or 10GiB", text);
  return value / 100;
}

}  // namespace

void MachineFlags::add_to(CLI::App& verb) {
  verb.add_option("--memory", memory, "limit of each device: 10GiB, or 80% of what it has");
  verb.add_option("--devices", devices,
                  "number of CPU devices of the machine \"local\" (default 1)");
  verb.add_option("--hosts", hosts,
                  "processes that the machine \"local\" counts as hosts, with --devices each "
                  "(default 1)")
      ->check(positive_number());
  verb.add_option("--link-bandwidth", link_bandwidth,
                  "of each device's link to host memory on the machine \"local\", e.g. 12GB/s "
                  "(default: measured)");
}

void MachineFlags::add_to(CLI::App& verb, const std::string& machines) {
  verb.add_option("--on", machine, machines)->type_name("MACHINE");
  verb.add_option("--host-reserve", host_reserve,
                  "percent of each host's memory that is kept back for the system")
      ->capture_default_str()
      ->check(number_in(0, 99))
      ->type_name("PERCENT");
  add_to(verb);
}

MachineOptions MachineFlags::machine_options() const {
  MachineOptions options;
  const auto read = [](const char* flag, const std::string& text, auto parse) {
    try {
      return parse(text);
    } catch (const Error& error) {
      throw error.within(flag);
    }
  };
  if (!memory.empty() && !memory.ends_with('%'))
    options.memory = read("--memory", memory, parse_bytes);
  if (!link_bandwidth.empty())
    options.link_bandwidth = read("--link-bandwidth", link_bandwidth, parse_bandwidth);
  if (devices) options.devices = *devices;
  if (hosts) options.hosts = *hosts;
  options.threads = threads;
  options.processes = processes;
  return options;
}

size_t MachineFlags::local_devices() const {
  std::error_code ignored;
  if (machine != kLocalName && std::filesystem::is_regular_file(machine, ignored))
    return devices_here(load_machine(machine));
  return static_cast<size_t>(std::max<int64_t>(1, devices.value_or(1)) *
                             std::max<int64_t>(1, hosts.value_or(1)));
}

Machine MachineFlags::load() const {
  Machine loaded = load_machine(machine, machine_options());
  if (!of_cpu_hosts(loaded))
    for (Node& node : loaded.nodes)
      node.memory = Bytes(
          static_cast<int64_t>(static_cast<double>(node.memory.value) * (1 - host_reserve / 100)));
  if (memory.ends_with('%')) {
    const double share = parse_percent(memory);
    for (Device& device : loaded.devices)
      device.limit = Bytes(static_cast<int64_t>(static_cast<double>(device.limit.value) * share));
  }
  return loaded;
}

void add_machine(CLI::App& program, ExitCode& exit_code) {
  CLI::App* verb = program.add_subcommand("machine", "Machines that can be planned for.");
  verb->require_subcommand(1);
  auto values = std::make_shared<MachineVerb>();
  values->flags.host_reserve = 0;  // machines are shown as they are
  CLI::App* list = verb->add_subcommand("list", "Names and descriptions of the presets.");
  list->add_flag("--json", values->json, "print for programs");
  list->callback([values] { list_machines(values->json); });
  CLI::App* show = verb->add_subcommand("show", "Devices, memories and links of a machine.");
  show->add_option("MACHINE", values->flags.machine,
                   "preset such as 4x3090 or 8xa100-80g*4, \"local\", or a JSON file")
      ->required();
  values->flags.add_to(*show);
  show->add_flag("--json", values->json, "print the machine as a file, to be edited and used");
  show->callback([values] { show_machine(*values); });
  CLI::App* probe = verb->add_subcommand(
      "probe",
      "Measures this host, or the hosts of several processes and the links between them, and finds "
      "NVIDIA cards; written to a file it is a machine.");
  values->flags.add_to(*probe);
  probe->get_option("--hosts")->description(
      "processes to start here, each of which counts as a host; torchrun, mpirun and srun start "
      "them on hosts of their own");
  probe
      ->add_option("--time-out", values->time_out,
                   "seconds after which a process or a link that does not answer is lost")
      ->capture_default_str()
      ->check(number_in(0.2, 1e6));
  probe->add_option("--bind", values->bind, "address of this process, for messages of the others")
      ->type_name("ADDRESS");
  probe->add_flag("--json", values->json, "print the machine file on a terminal too");
  probe->callback([values, &exit_code] { exit_code = probe_machine(*values); });
  verb->footer(
      "Examples:\n  windlass machine list\n  windlass machine show 4x1080ti\n"
      "  windlass machine show 1x3090 --json > my_box.json\n"
      "  windlass machine show local --devices 2 --memory 512MiB --link-bandwidth 12GB/s\n"
      "  windlass machine probe > here.json\n"
      "  srun --nodes 4 windlass machine probe --devices 2 > cluster.json");
}

}  // namespace windlass

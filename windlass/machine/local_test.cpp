#include "windlass/machine/local.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/probe.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"

namespace windlass {
namespace {

// Four cores: 100 GFLOPS and 20 GB/s each alone, 300 GFLOPS and 30 GB/s together.
HostFigures four_cores() {
  return {.cores = 4,
          .memory = Bytes(16 * kGiB.value),
          .peak_one = FlopsPerSecond(100e9),
          .peak_all = FlopsPerSecond(300e9),
          .triad_one = BytesPerSecond(20e9),
          .triad_all = BytesPerSecond(30e9),
          .copy_one = BytesPerSecond(8e9),
          .copy_all = BytesPerSecond(12e9)};
}

BytesPerSecond rate(const Machine& machine, EndpointId from, EndpointId to) {
  return find_route(machine, from, to).bandwidth;
}

TEST(Local, DevicesShareTheHost) {
  const Machine one = local_machine({.host = four_cores()});
  ASSERT_EQ(one.devices.size(), 1u);
  EXPECT_EQ(one.name, "local");
  EXPECT_EQ(one.devices[0].name, "cpu0");
  EXPECT_DOUBLE_EQ(one.device_types[0].peak.at(Precision::Fp32).value, 100e9);
  EXPECT_DOUBLE_EQ(one.device_types[0].memory_bandwidth.value, 20e9);
  EXPECT_DOUBLE_EQ(one.nodes[0].peak.value, 300e9);
  EXPECT_TRUE(one.nodes[0].one_process);

  // Of what one thread reaches, twice; of four, what all reach together.
  const auto peak = [](int64_t threads) {
    const Machine machine = local_machine({.threads = threads, .host = four_cores()});
    return machine.device_types[0].peak.at(Precision::Fp32).value;
  };
  EXPECT_DOUBLE_EQ(peak(2), 200e9);
  EXPECT_DOUBLE_EQ(peak(4), 300e9);

  const Machine four = local_machine({.devices = 4, .host = four_cores()});
  EXPECT_DOUBLE_EQ(four.device_types[0].peak.at(Precision::Fp32).value, 75e9);  // 300 / 4
  EXPECT_DOUBLE_EQ(four.device_types[0].memory_bandwidth.value, 7.5e9);         // 30 / 4
  // 15 of 16 GiB, in five shares.
  EXPECT_EQ(four.devices[3].limit.value, 3 * kGiB.value);
  EXPECT_EQ(four.nodes[0].memory.value, 3 * kGiB.value);
}

// Two processes as hosts: 15 of 16 GiB in six shares of 2.5 GiB, four for devices.
TEST(Local, HostsShareTheHost) {
  const Machine machine =
      local_machine({.devices = 2,
                     .hosts = 2,
                     .host = four_cores(),
                     .loopback = LoopbackFigures{BytesPerSecond(1e9), Seconds(50e-6)}});
  EXPECT_EQ(machine.name, "local");
  ASSERT_EQ(machine.nodes.size(), 2u);
  ASSERT_EQ(machine.devices.size(), 4u);
  EXPECT_EQ(machine.devices[1].node.index(), 0u);
  EXPECT_EQ(machine.devices[2].node.index(), 1u);
  EXPECT_EQ(machine.devices[3].limit.value, 5 * kGiB.value / 2);
  EXPECT_EQ(machine.nodes[1].memory.value, 5 * kGiB.value / 2);
  EXPECT_DOUBLE_EQ(machine.device_types[0].peak.at(Precision::Fp32).value, 75e9);  // 300 / 4
  EXPECT_DOUBLE_EQ(rate(machine, machine.devices[0].endpoint, machine.devices[2].endpoint).value,
                   1e9);
  EXPECT_THROW(local_machine({.hosts = 0, .host = four_cores()}), Error);
  EXPECT_THROW(local_machine({.devices = 4096, .hosts = 2, .host = four_cores()}), Error);
}

TEST(Local, LoopbackIsMeasured) {
  const LoopbackFigures found = measure_loopback();
  EXPECT_GT(found.bandwidth.value, 0);
  EXPECT_GT(found.latency.value, 0);
}

TEST(Local, OptionsAreWhatRoutesSay) {
  const Machine machine = local_machine({.devices = 2,
                                         .memory = Bytes(512 * kMiB.value),
                                         .link_bandwidth = BytesPerSecond(2e9),
                                         .host = four_cores()});
  const EndpointId host = machine.nodes[0].endpoint;
  const EndpointId first = machine.devices[0].endpoint, second = machine.devices[1].endpoint;
  EXPECT_EQ(machine.devices[1].limit.value, 512 * kMiB.value);
  EXPECT_EQ(machine.nodes[0].memory.value, 14 * kGiB.value);
  EXPECT_DOUBLE_EQ(rate(machine, host, first).value, 2e9);
  EXPECT_DOUBLE_EQ(rate(machine, first, second).value, 2e9);
  EXPECT_FALSE(find_route(machine, first, second).staged);
  // The last link is the segment that both share.
  const LinkId shared = find_route(machine, first, host).hops.back().link;
  EXPECT_EQ(shared, find_route(machine, second, host).hops.back().link);
  EXPECT_DOUBLE_EQ(machine[shared].bandwidth.value, 12e9);
  const Machine wide =
      local_machine({.link_bandwidth = BytesPerSecond(50e9), .host = four_cores()});
  EXPECT_DOUBLE_EQ(rate(wide, wide.nodes[0].endpoint, wide.devices[0].endpoint).value, 50e9);
}

// Only if kernels leave no core for it, and no link is imitated; and machine files keep it.
TEST(Local, DevicesWithAllCoresCopyThemselves) {
  const auto made = [](LocalOptions options) {
    options.host = four_cores();
    return local_machine(options);
  };
  const Machine busy = made({.threads = 4});
  EXPECT_TRUE(busy.device_types[0].copies_itself);
  EXPECT_DOUBLE_EQ(rate(busy, busy.nodes[0].endpoint, busy.devices[0].endpoint).value, 12e9);
  EXPECT_TRUE(machine_from_json(machine_to_json(busy), "again").device_types[0].copies_itself);
  const Machine idle = made({.threads = 3});
  EXPECT_FALSE(idle.device_types[0].copies_itself);
  EXPECT_DOUBLE_EQ(rate(idle, idle.nodes[0].endpoint, idle.devices[0].endpoint).value, 8e9);
  // Two with two cores each: half of what all copy.
  const Machine two = made({.devices = 2, .threads = 2});
  EXPECT_TRUE(two.device_types[0].copies_itself);
  EXPECT_DOUBLE_EQ(rate(two, two.devices[0].endpoint, two.devices[1].endpoint).value, 6e9);
  EXPECT_FALSE(made({.devices = 3, .threads = 1}).device_types[0].copies_itself);
  EXPECT_TRUE(made({.devices = 4, .threads = 1}).device_types[0].copies_itself);
  EXPECT_FALSE(made({.devices = 4, .threads = 1, .processes = 2}).device_types[0].copies_itself);
  // Each has a share of a core only, and as much as it would have of slower ones.
  EXPECT_FALSE(made({.devices = 5, .threads = 1}).device_types[0].copies_itself);
  const Machine linked = made({.link_bandwidth = BytesPerSecond(2e9), .threads = 4});
  EXPECT_FALSE(linked.device_types[0].copies_itself);
}

TEST(Local, RefusesWhatTheHostDoesNotHave) {
  const auto refused = [](LocalOptions options) {
    options.host = four_cores();
    try {
      local_machine(options);
      return false;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::Input && error.message().starts_with("local: ");
    }
  };
  EXPECT_TRUE(refused({.devices = 0}));
  EXPECT_TRUE(refused({.devices = -1}));
  EXPECT_TRUE(refused({.devices = 1'000'000}));
  EXPECT_TRUE(refused({.devices = 2, .memory = Bytes(8 * kGiB.value)}));
  EXPECT_TRUE(refused({.memory = Bytes(INT64_MAX)}));
  EXPECT_TRUE(refused({.memory = Bytes(0)}));
}

TEST(Local, IsAMachineByName) {
  const Machine machine = load_machine(
      "local",
      {.memory = Bytes(16 * kMiB.value), .devices = 2, .link_bandwidth = BytesPerSecond(1e9)});
  EXPECT_EQ(machine.devices.size(), 2u);
  EXPECT_EQ(machine.devices[0].limit.value, 16 * kMiB.value);
  EXPECT_DOUBLE_EQ(rate(machine, machine.nodes[0].endpoint, machine.devices[1].endpoint).value,
                   1e9);
  EXPECT_THROW(load_machine("4x3090", {.devices = 2}), Error);
  EXPECT_THROW(load_machine("4x3090", {.link_bandwidth = BytesPerSecond(1e9)}), Error);
}

TEST(Local, MeasuredFiguresAreConsistent) {
  const HostFigures host = measure_host();
  EXPECT_GE(host.cores, 1);
  EXPECT_GT(host.memory.value, 64 * kMiB.value);
  for (double value : {host.peak_one.value, host.peak_all.value, host.triad_one.value,
                       host.triad_all.value, host.copy_one.value, host.copy_all.value}) {
    EXPECT_GT(value, 1e6);
    EXPECT_LT(value, 1e16);
  }
  EXPECT_LE(host.triad_one, host.triad_all);
  EXPECT_LE(host.copy_one, host.copy_all);
}

// The machine by its parts, to compare.
std::string described(const Machine& machine) {
  std::string text = machine.name + "|" + machine.description + "\n";
  for (const Device& device : machine.devices) {
    const DeviceType& type = machine.device_types[device.type];
    text += fmt::format("{} {} {} {} {} {} {} {}", device.name, type.name, type.memory.value,
                        type.reserved.value, device.limit.value, type.memory_bandwidth.value,
                        type.launch_overhead.value, type.source);
    for (const auto& [precision, peak] : type.peak)
      text += fmt::format(" {}={}", precision_name(precision), peak.value);
    text += "\n";
  }
  for (const Node& node : machine.nodes)
    text += fmt::format("{} {} {} {} {}\n", node.name, node.memory.value,
                        node.memory_bandwidth.value, node.peak.value, node.peer_to_peer);
  for (const Link& link : machine.links)
    text += fmt::format("{} {} {} {}\n", link.name, link.bandwidth.value, link.latency.value,
                        link.full_duplex);
  return text;
}

TEST(Local, AMachineFileReadsAsTheSameMachine) {
  const Machine local = local_machine({.devices = 3, .host = four_cores()});
  EXPECT_EQ(described(machine_from_json(machine_to_json(local), "local.json")), described(local));
  const Machine measured = local_machine({.devices = 2});
  EXPECT_EQ(described(machine_from_json(machine_to_json(measured), "m.json")), described(measured));
  for (const MachinePreset& preset : machine_presets()) {
    const Machine machine = load_machine(std::string(preset.name));
    EXPECT_EQ(described(machine_from_json(machine_to_json(machine), "m.json")), described(machine));
  }
}

}  // namespace
}  // namespace windlass

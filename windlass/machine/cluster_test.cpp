#include "windlass/machine/cluster.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/local.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"

namespace windlass {
namespace {

// Four cores of some speed, 16 GiB, on a network of 1 GB/s and 50 us.
ClusterHost host(double speed, int64_t memory = 16 * kGiB.value, double bandwidth = 1e9,
                 double latency = 50e-6, int64_t devices = 1) {
  const HostFigures figures = {.cores = 4,
                               .memory = Bytes(memory),
                               .peak_one = FlopsPerSecond(100e9 * speed),
                               .peak_all = FlopsPerSecond(300e9 * speed),
                               .triad_one = BytesPerSecond(20e9 * speed),
                               .triad_all = BytesPerSecond(30e9 * speed),
                               .copy_one = BytesPerSecond(8e9 * speed),
                               .copy_all = BytesPerSecond(12e9 * speed)};
  return {"somewhere", local_machine({.devices = devices, .host = figures}),
          BytesPerSecond(bandwidth), Seconds(latency)};
}

double peak_of(const Machine& machine, size_t device) {
  return machine.type_of(DeviceId(device)).peak.at(Precision::Fp32).value;
}
Route path_between(const Machine& machine, size_t a, size_t b) {
  return find_route(machine, machine.devices[a].endpoint, machine.devices[b].endpoint);
}

// 1, 1.05 and 0.95 times as fast are one kind: 100 GFLOPS; the smallest memory of them is what all
// have: 15 GiB less a sixteenth, of which the device has half.
TEST(Cluster, HostsThatAreAlikeGetTheSameFigures) {
  const Machine machine =
      cluster_machine({host(1), host(1.05, 15 * kGiB.value), host(0.95)}, "measured");
  EXPECT_EQ(machine.name, "cluster");
  EXPECT_TRUE(of_cpu_hosts(machine));
  EXPECT_EQ(machine.device_types.size(), 1u);
  ASSERT_EQ(machine.nodes.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(peak_of(machine, i), 100e9);
    EXPECT_EQ(machine.devices[i].limit.value, 15 * kGiB.value * 15 / 16 / 2);
  }
  EXPECT_EQ(machine.description,
            "3 as somewhere (this host: 4 cores, 16.0 GiB); network: measured");
}

TEST(Cluster, HostsThatDifferKeepTheirOwn) {
  const Machine machine =
      cluster_machine({host(1), host(2), host(1, 16 * kGiB.value, 1e9, 50e-6, 2)}, "");
  EXPECT_EQ(machine.device_types.size(), 3u);
  ASSERT_EQ(machine.devices.size(), 4u);
  EXPECT_DOUBLE_EQ(peak_of(machine, 0), 100e9);
  EXPECT_DOUBLE_EQ(peak_of(machine, 1), 200e9);
  EXPECT_EQ(machine.devices[2].node.index(), 2u);
  EXPECT_EQ(machine.devices[3].node.index(), 2u);
  EXPECT_EQ(most_devices_of_a_node(machine), 2u);
}

// Of 0.1, 0.95, 1 and 1.1 GB/s the median is 0.95, the lower of the two in the middle: those about
// it are taken for it, that of the last host has 0.1. A message passes two connections: 25 us each,
// and links inside of both hosts.
TEST(Cluster, ASlowConnectionIsThatOfItsHost) {
  const int64_t memory = 16 * kGiB.value;
  const Machine machine = cluster_machine(
      {host(1, memory, 1e9), host(1, memory, 1.1e9), host(1, memory, 0.95e9), host(1, memory, 1e8)},
      "measured between processes");
  EXPECT_DOUBLE_EQ(path_between(machine, 0, 1).bandwidth.value, 0.95e9);
  EXPECT_DOUBLE_EQ(path_between(machine, 2, 1).bandwidth.value, 0.95e9);
  EXPECT_DOUBLE_EQ(path_between(machine, 0, 3).bandwidth.value, 1e8);
  const Seconds inside =
      find_route(machine, machine.devices[0].endpoint, machine.nodes[0].endpoint).latency;
  EXPECT_NEAR(path_between(machine, 0, 1).latency.value, 50e-6 + 2 * inside.value, 1e-9);
  // And in a file.
  const std::string text = machine_to_json(machine);
  const Machine again = machine_from_json(text, "cluster.json");
  EXPECT_EQ(machine_to_json(again), text);
  EXPECT_DOUBLE_EQ(path_between(again, 0, 3).bandwidth.value, 1e8);
  EXPECT_DOUBLE_EQ(path_between(again, 0, 2).bandwidth.value, 0.95e9);
  EXPECT_EQ(again.description, machine.description);
}

TEST(Cluster, TakesSeveralHosts) {
  EXPECT_THROW(cluster_machine({}, ""), Error);
  EXPECT_THROW(cluster_machine({host(1)}, ""), Error);
}

TEST(Cluster, AConnectionOfItsOwnIsReadStrictly) {
  const std::string text =
      machine_to_json(cluster_machine({host(1), host(1, 16 * kGiB.value, 1e8)}, "measured"));
  const auto with = [&](const std::string& key) {
    std::string wrong = text;
    const size_t at = wrong.rfind("\"network\"", wrong.rfind("\"network\"") - 1);
    EXPECT_NE(at, std::string::npos);
    wrong.insert(wrong.find('{', at) + 1, key);
    return wrong;
  };
  EXPECT_NO_THROW(machine_from_json(text, "m.json"));
  EXPECT_THROW(machine_from_json(with("\"per\": \"device\","), "m.json"), Error);
  EXPECT_THROW(machine_from_json(with("\"latncy\": 1,"), "m.json"), Error);
}

}  // namespace
}  // namespace windlass

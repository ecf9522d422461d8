#include "windlass/cost/traffic.h"

#include <map>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/cost/routes.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

constexpr int64_t kMB = 1'000'000;

DeviceGroup members(size_t first, size_t count, size_t stride = 1) {
  DeviceGroup group;
  for (size_t i = 0; i < count; ++i) group.push_back(DeviceId(first + i * stride));
  return group;
}

Seconds alone(const Machine& machine, Collective collective, Algorithm algorithm,
              const std::vector<DeviceGroup>& groups, int64_t bytes) {
  return time_alone(machine, plan_collective(machine, collective, algorithm, groups, Bytes(bytes)));
}

// Most bytes on a direction of the links whose name contains `part`.
int64_t heaviest(const Machine& machine, const Traffic& traffic, const std::string& part) {
  int64_t most = 0;
  for (const LinkLoad& load : traffic.loads)
    if (machine[load.direction.link].name.find(part) != std::string::npos)
      most = std::max(most, load.bytes.value);
  return most;
}

TEST(Routes, TableSaysWhatFindRouteSays) {
  for (const std::string name : {"8xa100-80g*3", "4x2080ti*3", "4xv100-16g*2", "laptop"}) {
    const Machine machine = load_machine(name);
    RouteTable table(machine);
    for (size_t a = 0; a < machine.endpoints.size(); ++a)
      for (size_t b = 0; b < machine.endpoints.size(); ++b) {
        if (machine.endpoints[a].kind == Endpoint::Kind::Switch ||
            machine.endpoints[b].kind == Endpoint::Kind::Switch)
          continue;
        const Route route = find_route(machine, EndpointId(a), EndpointId(b));
        const RouteView view = table.find(EndpointId(a), EndpointId(b));
        ASSERT_EQ(view.hops(), route.hops.size());
        for (size_t i = 0; i < view.hops(); ++i) ASSERT_EQ(view.hop(i), route.hops[i]);
        ASSERT_EQ(view.latency(), route.latency);
        ASSERT_EQ(view.staged(), route.staged);
      }
  }
}

TEST(Collective, RingOnASwitch) {
  const Machine machine = load_machine("8xa100-80g");
  // Each of 8 members sends 2 x 7/8 x 80 MB = 140 MB over its 220 GB/s, in 14 steps of two links of
  // 3 us and 0.5 us of software, after 6 us: 636.4 us + 91 us + 6 us.
  const Traffic sum = plan_collective(machine, Collective::AllReduce, Algorithm::Ring,
                                      {{members(0, 8)}}, Bytes(80 * kMB));
  EXPECT_EQ(sum.volume.value, 140 * kMB);
  ASSERT_EQ(sum.loads.size(), 16u);
  for (const LinkLoad& load : sum.loads) EXPECT_EQ(load.bytes.value, 140 * kMB);
  EXPECT_NEAR(sum.latency.value, 97e-6, 1e-12);
  EXPECT_NEAR(time_alone(machine, sum).value, 140e6 / 220e9 + 97e-6, 1e-12);
  // Half of it each: 70 MB in 7 steps.
  for (const Collective half : {Collective::ReduceScatter, Collective::AllGather})
    EXPECT_NEAR(alone(machine, half, Algorithm::Ring, {members(0, 8)}, 80 * kMB).value,
                70e6 / 220e9 + 6e-6 + 7 * 6.5e-6, 1e-12);
  // A broadcast passes all on, 7 times.
  EXPECT_NEAR(
      alone(machine, Collective::Broadcast, Algorithm::Ring, {members(0, 8)}, 80 * kMB).value,
      80e6 / 220e9 + 6e-6 + 7 * 6.5e-6, 1e-12);
}

TEST(Collective, ThreadsOfOneProcessPayLatencyOnce) {
  Machine machine = load_machine("8xa100-80g*2");
  const std::vector<DeviceGroup> inside = {members(0, 8)}, across = {members(0, 16)};
  const Traffic before =
      plan_collective(machine, Collective::AllReduce, Algorithm::Ring, inside, Bytes(80 * kMB));
  const Seconds far = alone(machine, Collective::AllReduce, Algorithm::Ring, across, 80 * kMB);
  for (Node& node : machine.nodes) node.one_process = true;
  const Traffic sum =
      plan_collective(machine, Collective::AllReduce, Algorithm::Ring, inside, Bytes(80 * kMB));
  // The start, and two links of 3 us; the bytes are those of the ring.
  EXPECT_NEAR(sum.latency.value, 12e-6, 1e-12);
  EXPECT_EQ(sum.volume, before.volume);
  ASSERT_EQ(sum.loads.size(), before.loads.size());
  for (size_t i = 0; i < sum.loads.size(); ++i)
    EXPECT_EQ(sum.loads[i].bytes, before.loads[i].bytes);
  // Between nodes there are several processes.
  EXPECT_EQ(alone(machine, Collective::AllReduce, Algorithm::Ring, across, 80 * kMB), far);
}

// Cores that copy: of 4 members each writes a quarter of a sum and reads four for it, which is as
// much as copying all of it; half of that and an eighth where the sum stays in parts. What is
// gathered is copied whole.
TEST(Collective, DevicesThatCopyThemselvesCopyTheirOwnPart) {
  Machine machine = load_machine("8xa100-80g");
  for (Node& node : machine.nodes) node.one_process = true;
  for (DeviceType& type : machine.device_types) type.copies_itself = true;
  const std::vector<DeviceGroup> group = {members(0, 4)};
  const auto volume = [&](Collective collective) {
    return plan_collective(machine, collective, group, Bytes(80 * kMB)).volume.value;
  };
  EXPECT_EQ(volume(Collective::AllReduce), 80 * kMB);
  EXPECT_EQ(volume(Collective::ReduceScatter), 50 * kMB);
  EXPECT_EQ(volume(Collective::AllGather), 80 * kMB);
  EXPECT_EQ(volume(Collective::AllToAll), 20 * kMB);
}

TEST(Collective, TreesBetweenNodesChainsInside) {
  const Machine machine = load_machine("8xa100-80g");
  const std::vector<DeviceGroup> all = {members(0, 8)};
  // Up and down 7 steps of 6.5 us: as a ring, which sends less.
  const Traffic tree =
      plan_collective(machine, Collective::AllReduce, Algorithm::Tree, all, Bytes(80 * kMB));
  EXPECT_NEAR(tree.latency.value, 6e-6 + 2 * 7 * 6.5e-6, 1e-12);
  EXPECT_EQ(plan_collective(machine, Collective::AllReduce, all, Bytes(1000)).algorithm,
            Algorithm::Ring);
  // No member sends more than twice the bytes: it is inside of one of two trees only.
  EXPECT_EQ(tree.volume.value, 160 * kMB);
  // One card of each of 16 nodes, 4 levels against 15 steps around.
  const Machine nodes = load_machine("8xa100-80g*16");
  const std::vector<DeviceGroup> across = {members(0, 16, 8)};
  EXPECT_EQ(plan_collective(nodes, Collective::AllReduce, across, Bytes(1000)).algorithm,
            Algorithm::Tree);
  EXPECT_EQ(plan_collective(nodes, Collective::AllReduce, across, Bytes(400 * kMB)).algorithm,
            Algorithm::Ring);
}

// All-reduces of eight cards as they were measured (stas00/ml-engineering, network): A100 and H200.
TEST(Collective, AsMeasuredOnNvlink) {
  const auto seconds = [](const char* name, int64_t bytes) {
    const Machine machine = load_machine(name);
    return time_alone(machine, plan_collective(machine, Collective::AllReduce, {{members(0, 8)}},
                                               Bytes(bytes)))
        .value;
  };
  const auto bus = [](int64_t bytes, double rate) {
    return 1.75 * static_cast<double>(bytes) / rate;
  };
  constexpr int64_t kMebi = 1 << 20;
  EXPECT_NEAR(seconds("8xa100-80g", kMebi) / 102e-6, 1, 0.1);
  EXPECT_NEAR(seconds("8xa100-80g", 64 * kMebi) / bus(64 * kMebi, 172e9), 1, 0.1);
  EXPECT_NEAR(seconds("8xa100-80g", 256 * kMebi) / bus(256 * kMebi, 194e9), 1, 0.1);
  EXPECT_NEAR(seconds("8xa100-80g", 16384 * kMebi) / bus(16384 * kMebi, 235e9), 1, 0.1);
  EXPECT_NEAR(seconds("8xh200", 32 << 10) / 40e-6, 1, 0.1);
  EXPECT_NEAR(seconds("8xh200", kMebi) / 46e-6, 1, 0.1);
  EXPECT_NEAR(seconds("8xh200", 32 * kMebi) / bus(32 * kMebi, 276e9), 1, 0.15);
  EXPECT_NEAR(seconds("8xh200", 256 * kMebi) / bus(256 * kMebi, 436e9), 1, 0.15);
}

TEST(Collective, BroadcastFromTheFirst) {
  const Machine machine = load_machine("8xa100-80g");
  // To two children in the first tree and to the root of the second, half of the bytes each;
  // nothing comes back.
  const Traffic tree = plan_collective(machine, Collective::Broadcast, Algorithm::Tree,
                                       {{members(0, 8)}}, Bytes(80 * kMB));
  EXPECT_EQ(tree.volume.value, 120 * kMB);
  for (const LinkLoad& load : tree.loads) {
    const bool into_first =
        machine[load.direction.link].name == "gpu0-nvswitch" && !load.direction.forward;
    EXPECT_FALSE(into_first);
  }
}

TEST(Collective, GroupsShareAnUplink) {
  const Machine machine = load_machine("4x1080ti");
  // gpu0, gpu1 | gpu2, gpu3 behind two switches: neighbours never leave the switch.
  EXPECT_NEAR(alone(machine, Collective::AllReduce, Algorithm::Ring, {members(0, 2), members(2, 2)},
                    12 * kMB)
                  .value,
              12e6 / 12e9 + 6e-6 + 2 * 6.5e-6, 1e-12);
  // One pair across sends 12 MB each way; two pairs at once put 24 MB on each uplink.
  const double across = 6e-6 + 2 * 10.5e-6;
  EXPECT_NEAR(
      alone(machine, Collective::AllReduce, Algorithm::Ring, {members(0, 2, 2)}, 12 * kMB).value,
      12e6 / 12e9 + across, 1e-12);
  EXPECT_NEAR(alone(machine, Collective::AllReduce, Algorithm::Ring,
                    {members(0, 2, 2), members(1, 2, 2)}, 12 * kMB)
                  .value,
              24e6 / 12e9 + across, 1e-12);
}

TEST(Collective, HalfDuplexLinksAddBothDirections) {
  Machine machine = load_machine("4x1080ti");
  for (Link& link : machine.links) link.full_duplex = false;
  const Traffic sum = plan_collective(machine, Collective::AllReduce, Algorithm::Ring,
                                      {{members(0, 2)}}, Bytes(12 * kMB));
  ASSERT_EQ(sum.loads.size(), 2u);
  for (const LinkLoad& load : sum.loads) {
    EXPECT_TRUE(load.direction.forward);
    EXPECT_EQ(load.bytes.value, 24 * kMB);
  }
}

TEST(Collective, WithoutPeerToPeerThroughTheHost) {
  const Machine machine = load_machine("4x2080ti");
  const Traffic sum = plan_collective(machine, Collective::AllReduce, Algorithm::Ring,
                                      {{members(0, 2)}}, Bytes(12 * kMB));
  // Up from both and down to both: 24 MB cross the switch's uplink and the host's link each way,
  // where 12 MB crossed neither with peer-to-peer.
  EXPECT_EQ(heaviest(machine, sum, "pcie0-root"), 24 * kMB);
  EXPECT_EQ(heaviest(machine, sum, "root-host"), 24 * kMB);
  // Two steps of 2 x (3 + 2 + 1) us, 5 us of staging and 0.5 us.
  EXPECT_NEAR(sum.latency.value, 6e-6 + 2 * 17.5e-6, 1e-12);
  EXPECT_NEAR(time_alone(machine, sum).value, 24e6 / 12e9 + 41e-6, 1e-12);
}

TEST(Collective, MeshUsesAllItsLinks) {
  const Machine machine = load_machine("4xv100-16g");
  const Traffic sum =
      plan_collective(machine, Collective::AllReduce, {{members(0, 4)}}, Bytes(400 * kMB));
  // Every pair exchanges a quarter, twice: 200 MB on each of 3 links, 600 MB in all as in a ring.
  EXPECT_EQ(sum.algorithm, Algorithm::Direct);
  EXPECT_EQ(sum.volume.value, 600 * kMB);
  for (const LinkLoad& load : sum.loads) EXPECT_EQ(load.bytes.value, 200 * kMB);
}

TEST(Collective, RingIsStripedOverTheNetworkOfAllMembers) {
  const Machine machine = load_machine("8xa100-80g*2");
  const Traffic sum = plan_collective(machine, Collective::AllReduce, Algorithm::Ring,
                                      {{members(0, 16)}}, Bytes(160 * kMB));
  // 2 x 15/16 x 160 MB = 300 MB in 8 rings of 37.5 MB: one crosses each connection to the network,
  // seven the way from one device to the next.
  EXPECT_EQ(heaviest(machine, sum, "network"), 37'500'000);
  EXPECT_EQ(heaviest(machine, sum, "nvswitch"), 7 * 37'500'000);
  EXPECT_EQ(sum.volume.value, 300 * kMB);
  EXPECT_NEAR(time_alone(machine, sum).value - sum.latency.value, 37.5e6 / 19.25e9, 1e-12);
  // A ring has 14 steps inside and 2 between nodes; a chunk makes 15/16 of two rounds.
  EXPECT_NEAR(sum.latency.value, 6e-6 + 1.875 * (14 * 6.5e-6 + 2 * 10.5e-6), 1e-12);

  // Inside 2 x 7/8 x 160 MB, between 2 x 1/2 x 20 MB.
  const Traffic parts = plan_collective(machine, Collective::AllReduce, Algorithm::Hierarchical,
                                        {{members(0, 16)}}, Bytes(160 * kMB));
  EXPECT_EQ(heaviest(machine, parts, "nvswitch"), 280 * kMB);
  EXPECT_EQ(heaviest(machine, parts, "network"), 20 * kMB);
  EXPECT_NEAR(parts.latency.value, 6e-6 + 14 * 6.5e-6 + 2 * 10.5e-6, 1e-12);
}

TEST(Collective, OneConnectionOfANodeCarriesAll) {
  const Machine machine = load_machine("4x1080ti*2");
  const Traffic sum = plan_collective(machine, Collective::AllReduce, Algorithm::Ring,
                                      {{members(0, 8)}}, Bytes(80 * kMB));
  EXPECT_EQ(heaviest(machine, sum, "network"), 140 * kMB);
  // Replicas of four-way groups: four pairs across share the connection. 2 x 1/2 x 80 MB each.
  const std::vector<DeviceGroup> pairs = {members(0, 2, 4), members(1, 2, 4), members(2, 2, 4),
                                          members(3, 2, 4)};
  const Traffic across =
      plan_collective(machine, Collective::AllReduce, Algorithm::Ring, pairs, Bytes(80 * kMB));
  EXPECT_EQ(heaviest(machine, across, "network"), 320 * kMB);
  EXPECT_EQ(across.volume.value, 80 * kMB);
}

TEST(Collective, AllToAll) {
  const Machine machine = load_machine("8xa100-80g");
  // Each member has 80 MB of 640 and sends 10 MB to each of 7 others.
  const Traffic swap =
      plan_collective(machine, Collective::AllToAll, {{members(0, 8)}}, Bytes(640 * kMB));
  EXPECT_EQ(swap.volume.value, 70 * kMB);
  EXPECT_EQ(swap.algorithm, Algorithm::Direct);
  EXPECT_NEAR(time_alone(machine, swap).value, 70e6 / 220e9 + 6e-6 + 6e-6 + 7 * 0.5e-6, 1e-12);
}

TEST(Collective, NothingToDo) {
  const Machine machine = load_machine("8xa100-80g");
  for (const auto& [group, bytes] : std::vector<std::pair<DeviceGroup, int64_t>>{
           {members(0, 1), 100}, {members(0, 8), 0}, {{}, 100}}) {
    const Traffic none = plan_collective(machine, Collective::AllReduce, {{group}}, Bytes(bytes));
    EXPECT_TRUE(none.loads.empty());
    EXPECT_EQ(none.latency.value, 0);
    EXPECT_EQ(none.volume.value, 0);
  }
}

TEST(Collective, AlgorithmsThatDoNotExistAreRefused) {
  const Machine machine = load_machine("8xa100-80g");
  EXPECT_THROW(alone(machine, Collective::AllToAll, Algorithm::Ring, {members(0, 8)}, 8), Error);
  EXPECT_THROW(alone(machine, Collective::AllGather, Algorithm::Tree, {members(0, 8)}, 8), Error);
}

TEST(Collective, MoreBytesTakeLongerAndTheChoiceIsTheFastest) {
  Rng rng(7);
  for (const std::string name : {"8xa100-80g*2", "4x2080ti*2", "4xv100-16g", "8x1080ti"}) {
    const Machine machine = load_machine(name);
    for (int round = 0; round < 30; ++round) {
      DeviceGroup group;
      for (size_t i = 0; i < machine.devices.size(); ++i)
        if (rng.uniform(0, 1) < 0.6) group.push_back(DeviceId(i));
      const auto collective = static_cast<Collective>(rng.integer(0, 4));
      const Bytes bytes(rng.integer(1, 100 * kMB));
      const Traffic chosen = plan_collective(machine, collective, {{group}}, bytes);
      const Seconds time = time_alone(machine, chosen);
      EXPECT_LE(time, time_alone(machine, plan_collective(machine, collective, {{group}},
                                                          bytes + Bytes(5 * kMB))));
      for (size_t i = 1; i < chosen.loads.size(); ++i)
        EXPECT_LT(chosen.loads[i - 1].direction, chosen.loads[i].direction);
      if (group.size() < 2) continue;
      EXPECT_GT(chosen.volume.value, 0);
      for (const Algorithm other : {Algorithm::Ring, Algorithm::Tree, Algorithm::Hierarchical})
        if (has_algorithm(collective, other)) {
          EXPECT_LE(time, alone(machine, collective, other, {group}, bytes.value));
        }
    }
  }
}

TEST(Collective, ThousandDevicesArePlanned) {
  const Machine machine = load_machine("8xa100-80g*128");
  const Traffic all =
      plan_collective(machine, Collective::AllReduce, {{members(0, 1024)}}, Bytes(1024 * kMB));
  std::vector<DeviceGroup> groups;
  for (size_t i = 0; i < 8; ++i) groups.push_back(members(i, 128, 8));
  const Traffic striped = plan_collective(machine, Collective::ReduceScatter, groups, Bytes(kMB));
  EXPECT_NEAR(static_cast<double>(heaviest(machine, all, "network")), 2 * 128e6, 5e6);
  EXPECT_EQ(heaviest(machine, striped, "nvswitch"), 0);
}

TEST(Copies, ShareLinksAndTakeTheLongestLatency) {
  const Machine machine = load_machine("4x1080ti");
  const EndpointId host = machine.nodes[0].endpoint;
  const auto device = [&](size_t i) { return machine.devices[i].endpoint; };
  // Two devices behind one switch load 12 MB each: 24 MB on the uplink.
  const std::vector<Copy> two = {{host, device(0), Bytes(12 * kMB)},
                                 {host, device(1), Bytes(12 * kMB)}};
  const Traffic in = plan_copies(machine, two);
  EXPECT_EQ(in.volume.value, 24 * kMB);
  EXPECT_NEAR(time_alone(machine, in).value, 24e6 / 12e9 + 3e-6 + 6e-6, 1e-12);
  // Out and in at once do not disturb each other on full-duplex links.
  const std::vector<Copy> both = {{host, device(0), Bytes(12 * kMB)},
                                  {device(0), host, Bytes(12 * kMB)}};
  EXPECT_NEAR(time_alone(machine, plan_copies(machine, both)).value, 12e6 / 12e9 + 9e-6, 1e-12);
  const std::vector<Copy> nothing = {{host, host, Bytes(5)}, {host, device(0), Bytes(0)}};
  EXPECT_TRUE(plan_copies(machine, nothing).loads.empty());
  EXPECT_EQ(plan_copies(machine, nothing).latency.value, 0);
}

}  // namespace
}  // namespace windlass

#include "windlass/machine/machine.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/machine/device_names.h"
#include "windlass/machine/first_devices.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

Route between(const Machine& machine, size_t a, size_t b) {
  return find_route(machine, machine.devices[a].endpoint, machine.devices[b].endpoint);
}

TEST(Machine, EveryPresetReadsUnderItsName) {
  EXPECT_GE(machine_presets().size(), 11u);
  for (const MachinePreset& preset : machine_presets()) {
    const Machine machine = load_machine(std::string(preset.name));
    EXPECT_EQ(machine.name, preset.name);
    EXPECT_FALSE(machine.description.empty());
    for (size_t i = 0; i < machine.devices.size(); ++i)
      for (size_t j = 0; j < machine.devices.size(); ++j) EXPECT_NO_THROW(between(machine, i, j));
  }
}

TEST(Machine, RoutesShareSwitches) {
  const Machine machine = load_machine("4x1080ti");
  ASSERT_EQ(machine.devices.size(), 4u);
  // Behind one switch: up and down. Behind two: over both uplinks as well.
  EXPECT_EQ(between(machine, 0, 1).hops.size(), 2u);
  EXPECT_EQ(between(machine, 0, 2).hops.size(), 4u);
  EXPECT_FALSE(between(machine, 0, 2).staged);
  const auto to_host = [&](size_t device) {
    return find_route(machine, machine.devices[device].endpoint, machine.nodes[0].endpoint);
  };
  EXPECT_EQ(to_host(0).hops[1].link, to_host(1).hops[1].link);
  EXPECT_NE(to_host(0).hops[1].link, to_host(2).hops[1].link);
  EXPECT_DOUBLE_EQ(to_host(0).bandwidth.value, 12e9);
}

TEST(Machine, WithoutPeerToPeerCopiesPassTheHost) {
  const Route route = between(load_machine("4x2080ti"), 0, 1);
  EXPECT_TRUE(route.staged);
  EXPECT_EQ(route.hops.size(), 6u);  // gpu0, pcie0, root, host, and back down
}

// All endpoints relaxed until nothing changes, third nodes left out.
struct Best {
  size_t hops = SIZE_MAX;
  double bandwidth = 0;
};
Best slow_route(const Machine& machine, EndpointId from, EndpointId to) {
  std::vector<Best> best(machine.endpoints.size());
  best[from.index()] = {0, HUGE_VAL};
  const NodeId here = machine[from].node, there = machine[to].node;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Link& link : machine.links)
      for (const auto& [a, b] : {std::pair(link.a, link.b), std::pair(link.b, link.a)}) {
        const Best& source = best[a.index()];
        if (source.hops == SIZE_MAX) continue;
        if (a != from && machine[a].kind != Endpoint::Kind::Switch) continue;
        const NodeId node = machine[b].node;
        if (node != here && (here == there || (node != there && node.valid()))) continue;
        const Best found = {source.hops + 1, std::min(source.bandwidth, link.bandwidth.value)};
        Best& old = best[b.index()];
        if (found.hops > old.hops) continue;
        if (found.hops == old.hops && found.bandwidth <= old.bandwidth) continue;
        old = found;
        changed = true;
      }
  }
  return best[to.index()];
}

TEST(Machine, RoutesAreTheShortest) {
  for (const char* name : {"4xv100-16g", "8xa100-80g*2", "4x1080ti*3", "laptop"}) {
    const Machine machine = load_machine(name);
    Machine plain = machine;
    plain.neighbours.clear();
    for (const Device& a : machine.devices)
      for (const Device& b : machine.devices) {
        const Route route = find_route(machine, a.endpoint, b.endpoint);
        const Best expected = slow_route(machine, a.endpoint, b.endpoint);
        EXPECT_EQ(route.hops.size(), expected.hops) << name << a.name << b.name;
        EXPECT_EQ(route.bandwidth.value, expected.bandwidth) << name << a.name << b.name;
        EXPECT_EQ(route.hops, find_route(plain, a.endpoint, b.endpoint).hops);
      }
  }
}

TEST(Machine, ADirectLinkNeedsNoPeerToPeer) {
  std::string text(R"({
    "name": "bridged",
    "device_types": {
      "card": {"memory": "24GiB", "peak": {"fp32": "30TFLOPS"}, "memory_bandwidth": "900GB/s"}
    },
    "nodes": [{
      "host": {"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"},
      "devices": [{"type": "card", "count": 3}],
      "peer_to_peer": false,
      "links": [{"from": "gpu*", "to": "host", "bandwidth": "12GB/s"},
                {"from": "gpu0", "to": "gpu1", "bandwidth": "50GB/s"}]
    }]
  })");
  const Machine machine = machine_from_json(text, "bridged.json");
  EXPECT_FALSE(between(machine, 0, 1).staged);
  EXPECT_DOUBLE_EQ(between(machine, 1, 0).bandwidth.value, 50e9);
  EXPECT_TRUE(between(machine, 0, 2).staged);
}

// A switch can have very many neighbours and a node very many switches.
TEST(Machine, ManySwitches) {
  std::string switches, links;
  for (int i = 0; i < 1000; ++i) {
    switches += fmt::format("{}\"s{}\"", i ? "," : "", i);
    links += fmt::format(R"({{"from": "{}", "to": "s{}", "bandwidth": 1e9}},)",
                         i ? fmt::format("s{}", i - 1) : "gpu0", i);
  }
  const std::string text = fmt::format(
      R"({{"name": "chain", "device_types": {{"card": {{"memory": "1GiB",
           "peak": {{"fp32": 1e12}}, "memory_bandwidth": 1e11}}}},
         "nodes": [{{"host": {{"memory": "1GiB", "memory_bandwidth": 1e10, "peak": 1e12}},
           "devices": [{{"type": "card"}}], "switches": [{}],
           "links": [{} {{"from": "s999", "to": "host", "bandwidth": 1e9}}]}}]}})",
      switches, links);
  const Machine machine = machine_from_json(text, "chain.json");
  EXPECT_EQ(find_route(machine, machine.devices[0].endpoint, machine.nodes[0].endpoint).hops.size(),
            1001u);
}

TEST(Machine, NvlinkIsPreferredToPcie) {
  EXPECT_DOUBLE_EQ(between(load_machine("8xa100-80g"), 0, 7).bandwidth.value, 220e9);
  const Route pair = between(load_machine("4xv100-16g"), 0, 3);
  EXPECT_EQ(pair.hops.size(), 1u);
  EXPECT_DOUBLE_EQ(pair.bandwidth.value, 48e9);
}

TEST(Machine, NodesAreJoinedByTheNetwork) {
  const Machine machine = load_machine("8xa100-80g*4");
  EXPECT_EQ(machine.name, "8xa100-80g*4");
  EXPECT_EQ(machine.devices.size(), 32u);
  EXPECT_EQ(machine.nodes.size(), 4u);
  EXPECT_DOUBLE_EQ(between(machine, 0, 31).bandwidth.value, 19.25e9);  // 154 Gb/s
  EXPECT_DOUBLE_EQ(between(machine, 0, 7).bandwidth.value, 220e9);
  // A node's own traffic does not take the network, though it would be fewer hops.
  const Route host = find_route(machine, machine.nodes[0].endpoint, machine.devices[0].endpoint);
  EXPECT_DOUBLE_EQ(host.bandwidth.value, 24e9);
  EXPECT_EQ(host.hops.size(), 3u);
  const Machine cluster = load_machine("4x1080ti*2");
  EXPECT_DOUBLE_EQ(between(cluster, 0, 4).bandwidth.value, 12e9);
  EXPECT_EQ(load_machine("8xh100-80g*64").devices.size(), 512u);
}

TEST(Machine, LimitCanBeLowered) {
  const Machine machine = load_machine("4x3090", {.memory = Bytes(10 * kGiB.value)});
  EXPECT_EQ(machine.devices[3].limit.value, 10 * kGiB.value);
  EXPECT_EQ(load_machine("4x3090").devices[0].limit.value, 24 * kGiB.value - 600 * kMiB.value);
  EXPECT_THROW(load_machine("4x3090", {.memory = Bytes(25 * kGiB.value)}), Error);
}

constexpr std::string_view kMixed = R"({
  "name": "mixed",
  "device_types": {
    "big": {"memory": "24GiB", "peak": {"fp32": "30TFLOPS"}, "memory_bandwidth": "900GB/s"},
    "small": {"memory": 8589934592, "peak": {"fp32": 1e13}, "memory_bandwidth": 4e11}
  },
  "nodes": [{
    "host": {"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"},
    "devices": [{"type": "big"}, {"type": "small", "count": 2}],
    "links": [{"from": "gpu0-2", "to": "host", "bandwidth": "12GB/s", "latency": "5us", "duplex": "half"}]
  }]
})";

TEST(Machine, DevicesNeedNotBeEqual) {
  const Machine machine = machine_from_json(kMixed, "mixed.json");
  ASSERT_EQ(machine.devices.size(), 3u);
  EXPECT_EQ(machine.type_of(DeviceId(size_t{0})).name, "big");
  EXPECT_EQ(machine.type_of(DeviceId(size_t{2})).memory.value, 8 * kGiB.value);
  EXPECT_FALSE(machine.links[0].full_duplex);
}

// Replaces a piece of the mixed machine, which must then be refused with that hint.
TEST(Machine, MistakesAreNamed) {
  const struct {
    std::string_view piece, instead, hint;
  } cases[] = {
      {"\"memory_bandwidth\": \"900GB/s\"", "\"memory_bandwith\": \"900GB/s\"",
       "did you mean \"memory_bandwidth\""},
      {"\"24GiB\"", "\"24Gib/s\"", "device_types.big: \"memory\""},
      {"\"24GiB\"", "-5", "not a size"},
      {"\"type\": \"small\"", "\"type\": \"smal\"", "did you mean \"small\""},
      {"\"count\": 2", "\"count\": 0", "whole number from 1"},
      {"gpu0-2", "gpu0-3", "gpu3, which is not there"},
      {"gpu0-2", "gpu0-1", "has no link to its host"},
      {"\"to\": \"host\"", "\"to\": \"hots\"", "did you mean \"host\""},
      {"\"half\"", "\"quarter\"", "expected full or half"},
      {"\"30TFLOPS\"", "\"fast\"", "not a rate of computation"},
      {"\"nodes\": [{", "\"nodes\": [{\"count\": 3,", "network"},
  };
  for (const auto& [piece, instead, hint] : cases) {
    std::string text(kMixed);
    text.replace(text.find(piece), piece.size(), instead);
    try {
      machine_from_json(text, "mixed.json");
      ADD_FAILURE() << "accepted " << instead;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input);
      EXPECT_NE(error.message().find(hint), std::string::npos) << error.message();
      EXPECT_TRUE(error.message().starts_with("mixed.json: ")) << error.message();
    }
  }
}

TEST(Machine, UnknownNamesGetTheNearestPreset) {
  for (const char* name : {"4x3900", "4x3090*0", "4x3090*x", "8xa100-80g*99999999999"}) {
    try {
      load_machine(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input);
    }
  }
  try {
    load_machine("4x1080t");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("did you mean \"4x1080ti\""), std::string::npos)
        << error.message();
  }
}

TEST(Machine, PresetsCanBeHadWithFewerDevices) {
  const Machine two = load_machine("2x3090"), six = load_machine("6xA100-80G");
  EXPECT_EQ(two.name, "2x3090");
  ASSERT_EQ(two.devices.size(), 2u);
  const Machine four = load_machine("4x3090");
  EXPECT_EQ(two.type_of(DeviceId(0)).name, four.type_of(DeviceId(0)).name);
  EXPECT_EQ(between(two, 0, 1).hops.size(), between(four, 0, 1).hops.size());
  // Of the smallest preset that has enough.
  EXPECT_NE(two.description.find("2 of the devices of 4x3090"), std::string::npos);
  EXPECT_EQ(six.devices.size(), 6u);
  EXPECT_EQ(load_machine("2x3090", {.memory = Bytes(1 << 30)}).devices[1].limit, Bytes(1 << 30));
  const auto message = [](const char* name) {
    try {
      load_machine(name);
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_NE(message("16xb200").find("8xb200*2"), std::string::npos) << message("16xb200");
  EXPECT_NE(message("9xb200").find("at most 8"), std::string::npos) << message("9xb200");
  EXPECT_NE(message("2x3090*4").find("4x3090*4"), std::string::npos) << message("2x3090*4");
  EXPECT_NE(message("0x3090").find("no such machine"), std::string::npos);
  EXPECT_NE(message("99999999999999999999x3090").find("no such machine"), std::string::npos);
  EXPECT_NE(message("2x").find("no such machine"), std::string::npos);
}

TEST(Machine, FirstDevicesAreAMachine) {
  for (const MachinePreset& preset : machine_presets()) {
    const Machine machine = load_machine(std::string(preset.name));
    for (size_t count = 1; count <= machine.devices.size(); ++count) {
      SCOPED_TRACE(fmt::format("{} of {}", count, preset.name));
      const Machine part = first_devices(machine, count);
      EXPECT_NO_THROW(check_machine(part));
      ASSERT_EQ(part.devices.size(), count);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(part.devices[i].name, machine.devices[i].name);
        EXPECT_EQ(part[part.devices[i].endpoint].index, static_cast<int32_t>(i));
        // Routes are those of the whole machine.
        const Route here = between(part, 0, i), there = between(machine, 0, i);
        EXPECT_EQ(here.bandwidth, there.bandwidth);
        EXPECT_EQ(here.latency, there.latency);
        EXPECT_EQ(here.staged, there.staged);
      }
    }
  }
}

// A host without devices goes, with its links.
TEST(Machine, FirstDevicesOfSeveralHosts) {
  const Machine machine = load_machine("8xa100-80g*3");
  ASSERT_EQ(machine.devices.size(), 24u);
  EXPECT_EQ(first_devices(machine, 8).nodes.size(), 1u);
  const Machine two = first_devices(machine, 11);
  EXPECT_EQ(two.nodes.size(), 2u);
  EXPECT_NO_THROW(check_machine(two));
  EXPECT_EQ(between(two, 0, 10).bandwidth, between(machine, 0, 10).bandwidth);
  EXPECT_LT(two.links.size(), machine.links.size());
}

TEST(DeviceNames, InAFewWords) {
  Machine machine = load_machine("8xa100-80g");
  const auto names = [&](std::vector<size_t> numbers) {
    std::vector<DeviceId> devices;
    for (size_t number : numbers) devices.push_back(DeviceId(number));
    return device_names(machine, devices);
  };
  EXPECT_EQ(names({3}), "gpu3");
  EXPECT_EQ(names({0, 1, 2, 3}), "gpu0..gpu3");
  EXPECT_EQ(names({0, 3}), "gpu0+gpu3");
  EXPECT_EQ(names({0, 2, 3, 4, 6}), "gpu0+gpu2..gpu4+gpu6");
  EXPECT_EQ(names({2, 1, 0}), "gpu2+gpu1+gpu0");
  EXPECT_EQ(names({4, 3, 2, 1, 0}), "gpu4..gpu0 (5 devices)");
  EXPECT_EQ(limit_text(machine), format_bytes(machine.devices[0].limit));
  machine.devices[5].limit = Bytes(1 << 30);
  EXPECT_EQ(limit_text(machine), "1.00 GiB to " + format_bytes(machine.devices[0].limit));
}

}  // namespace
}  // namespace windlass

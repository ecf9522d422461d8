#include "windlass/machine/nvidia.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"
#include "windlass/base/text.h"
#include "windlass/machine/command.h"
#include "windlass/machine/probe.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

HostFigures some_host() {
  return {.cores = 32,
          .memory = Bytes(256 * kGiB.value),
          .peak_one = FlopsPerSecond(100e9),
          .peak_all = FlopsPerSecond(2e12),
          .triad_one = BytesPerSecond(15e9),
          .triad_all = BytesPerSecond(120e9),
          .copy_one = BytesPerSecond(8e9),
          .copy_all = BytesPerSecond(50e9)};
}

// Lines of texts below are written with blanks; nvidia-smi separates by tabs.
std::string tabbed(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool run = text[i] == ' ' && i + 1 < text.size() && text[i + 1] == ' ';
    if (run) {
      while (i + 1 < text.size() && text[i + 1] == ' ') ++i;
      result += '\t';
    } else {
      result += text[i];
    }
  }
  return result;
}

constexpr std::string_view kTwo3090 =
    "  \x1b[4mGPU0  GPU1  CPU Affinity  NUMA Affinity  GPU NUMA ID\x1b[0m\n"
    "GPU0   X   NV4  0-31  0    N/A\n"
    "GPU1  NV4   X   0-31  0    N/A\n"
    "\n"
    "Legend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP "
    "interconnect\n";

// Two processors with two cards behind a switch each.
constexpr std::string_view kFour1080 =
    "  GPU0  GPU1  GPU2  GPU3  CPU Affinity\n"
    "GPU0   X   PIX  SYS  SYS  0-9,20-29\n"
    "GPU1  PIX   X   SYS  SYS  0-9,20-29\n"
    "GPU2  SYS  SYS   X   PIX  10-19,30-39\n"
    "GPU3  SYS  SYS  PIX   X   10-19,30-39\n";

// Network adapters tell which cards share a switch though NVLink hides it.
constexpr std::string_view kEightA100 =
    "  GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7  NIC0  NIC1  NIC2  NIC3  CPU Affinity  NUMA "
    "Affinity\n"
    "GPU0   X   NV12  NV12  NV12  NV12  NV12  NV12  NV12  PXB  NODE  SYS  SYS  0-63  0\n"
    "GPU1  NV12   X   NV12  NV12  NV12  NV12  NV12  NV12  PXB  NODE  SYS  SYS  0-63  0\n"
    "GPU2  NV12  NV12   X   NV12  NV12  NV12  NV12  NV12  NODE  PXB  SYS  SYS  0-63  0\n"
    "GPU3  NV12  NV12  NV12   X   NV12  NV12  NV12  NV12  NODE  PXB  SYS  SYS  0-63  0\n"
    "GPU4  NV12  NV12  NV12  NV12   X   NV12  NV12  NV12  SYS  SYS  PXB  NODE  64-127  1\n"
    "GPU5  NV12  NV12  NV12  NV12  NV12   X   NV12  NV12  SYS  SYS  PXB  NODE  64-127  1\n"
    "GPU6  NV12  NV12  NV12  NV12  NV12  NV12   X   NV12  SYS  SYS  NODE  PXB  64-127  1\n"
    "GPU7  NV12  NV12  NV12  NV12  NV12  NV12  NV12   X   SYS  SYS  NODE  PXB  64-127  1\n"
    "NIC0  PXB  PXB  NODE  NODE  SYS  SYS  SYS  SYS   X   NODE  SYS  SYS\n"
    "\nLegend:\n\nNIC Legend:\n\n  NIC0: mlx5_0\n";

Machine machine_of(std::string_view topology, std::string_view card, size_t count,
                   std::vector<std::string>* notes = nullptr) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += fmt::format("{}\n", card);
  std::vector<std::string> ignored;
  return nvidia_machine(some_host(), parse_nvidia_cards(list),
                        parse_nvidia_topology(tabbed(topology), count), notes ? *notes : ignored);
}

Route route_between(const Machine& machine, size_t a, size_t b) {
  return find_route(machine, machine.devices[a].endpoint, machine.devices[b].endpoint);
}
Route to_host(const Machine& machine, size_t device) {
  return find_route(machine, machine.devices[device].endpoint, machine.nodes[0].endpoint);
}

TEST(Nvidia, CardsByNameAndMemory) {
  const auto cards =
      parse_nvidia_cards("NVIDIA A100-SXM4-80GB, 81920 MiB\r\nTesla T4, 15360 MiB\n\n");
  ASSERT_EQ(cards.size(), 2u);
  EXPECT_EQ(cards[0].name, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(cards[0].memory.value, 80 * kGiB.value);
  EXPECT_EQ(cards[1].name, "Tesla T4");
  EXPECT_TRUE(parse_nvidia_cards("").empty());
  for (const char* text : {"No devices were found", "Card, [N/A]", "Card, 80 GiB", "Card, -5 MiB",
                           "Card, 0 MiB", ", 5 MiB", "Card, 99999999999999999999 MiB"})
    EXPECT_THROW(parse_nvidia_cards(text), Error) << text;
}

TEST(Nvidia, KnownCardsHaveTheFiguresOfPresets) {
  const struct {
    const char *card, *preset;
  } cases[] = {
      {"NVIDIA H100 80GB HBM3", "8xh100-80g"},    {"NVIDIA A100-SXM4-80GB", "8xa100-80g"},
      {"NVIDIA A100-SXM4-40GB", "8xa100-40g"},    {"Tesla V100-SXM2-16GB", "4xv100-16g"},
      {"NVIDIA GeForce RTX 4090", "4x4090"},      {"GeForce RTX 3090", "4x3090"},
      {"NVIDIA GeForce RTX 2080 Ti", "4x2080ti"}, {"GeForce GTX 1080 Ti", "4x1080ti"},
  };
  for (const auto& [card, preset] : cases) {
    std::vector<std::string> notes;
    const Machine machine =
        nvidia_machine(some_host(), {{card, Bytes(10'000 * kMiB.value)}}, std::nullopt, notes);
    const DeviceType& type = machine.device_types[0];
    EXPECT_EQ(type.name, load_machine(preset).device_types[0].name);
    EXPECT_EQ(type.peak, load_machine(preset).device_types[0].peak);
    EXPECT_EQ(type.memory.value, 10'000 * kMiB.value);
  }
}

TEST(Nvidia, UnknownCardsAreNamed) {
  // A faster and a slower relative of a known card are not that card.
  for (const char* card : {"NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU"}) {
    std::vector<std::string> notes;
    const Machine machine =
        nvidia_machine(some_host(), {{card, Bytes(16 * kGiB.value)}}, std::nullopt, notes);
    ASSERT_FALSE(notes.empty());
    EXPECT_THAT(notes[0], HasSubstr(card));
    EXPECT_THAT(machine.device_types[0].source, HasSubstr("guess"));
  }
}

TEST(Nvidia, APairWithABridge) {
  const Machine machine = machine_of(kTwo3090, "NVIDIA GeForce RTX 3090, 24576 MiB", 2);
  // Four links of 14.0625 GB/s, nine tenths of which are reached; no copies over PCIe.
  EXPECT_FALSE(machine.nodes[0].peer_to_peer);
  EXPECT_EQ(route_between(machine, 0, 1).hops.size(), 1u);
  EXPECT_FALSE(route_between(machine, 0, 1).staged);
  EXPECT_DOUBLE_EQ(route_between(machine, 0, 1).bandwidth.value, 4 * 0.9 * 14.0625e9);
  EXPECT_DOUBLE_EQ(to_host(machine, 0).bandwidth.value, 24e9);
}

TEST(Nvidia, SwitchesAndSockets) {
  const Machine machine = machine_of(kFour1080, "GeForce GTX 1080 Ti, 11264 MiB", 4);
  EXPECT_EQ(route_between(machine, 0, 1).hops.size(), 2u);  // up to the switch and down
  EXPECT_EQ(route_between(machine, 0, 2).hops.size(),
            6u);  // switch, socket, across, and down again
  EXPECT_EQ(to_host(machine, 0).hops.size(), 3u);
  EXPECT_EQ(to_host(machine, 0).hops[1].link, to_host(machine, 1).hops[1].link);
  EXPECT_NE(to_host(machine, 0).hops[1].link, to_host(machine, 2).hops[1].link);
  EXPECT_NE(to_host(machine, 0).hops[2].link, to_host(machine, 2).hops[2].link);
  EXPECT_DOUBLE_EQ(to_host(machine, 0).bandwidth.value, 12e9);
}

TEST(Nvidia, NvswitchAndAdapters) {
  const Machine machine = machine_of(kEightA100, "NVIDIA A100-SXM4-80GB, 81920 MiB", 8);
  EXPECT_TRUE(machine.nodes[0].peer_to_peer);
  EXPECT_DOUBLE_EQ(route_between(machine, 0, 7).bandwidth.value, 270e9);  // 12 x 25 x 0.9
  EXPECT_EQ(route_between(machine, 0, 7).hops.size(), 2u);
  // 0 and 1 share a way up, 0 and 2 only the processor, 0 and 4 nothing.
  const auto shared = [&](size_t a, size_t b) {
    size_t count = 0;
    for (const Hop& hop : to_host(machine, a).hops)
      for (const Hop& other : to_host(machine, b).hops) count += hop == other ? 1 : 0;
    return count;
  };
  EXPECT_EQ(shared(0, 1), 2u);
  EXPECT_EQ(shared(0, 2), 1u);
  EXPECT_EQ(shared(0, 4), 0u);
}

TEST(Nvidia, MeshesAreNoSwitch) {
  constexpr std::string_view kMesh =
      "  GPU0  GPU1  GPU2  GPU3  CPU Affinity\n"
      "GPU0   X   NV4  NV4  NV4  0-63\n"
      "GPU1  NV4   X   NV4  NV4  0-63\n"
      "GPU2  NV4  NV4   X   NV4  0-63\n"
      "GPU3  NV4  NV4  NV4   X   0-63\n";
  std::vector<std::string> notes;
  const Machine machine = machine_of(kMesh, "NVIDIA A100-SXM4-40GB, 40960 MiB", 4, &notes);
  EXPECT_EQ(route_between(machine, 0, 3).hops.size(), 1u);  // 3 x 4 links of the 12 that a card has
  EXPECT_DOUBLE_EQ(route_between(machine, 0, 3).bandwidth.value, 90e9);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_THAT(notes[0], HasSubstr("PCIe switch"));
}

TEST(Nvidia, DamagedTablesAreRefusedOrRead) {
  const auto try_read = [](const std::string& text) {
    try {
      std::vector<std::string> notes;
      const std::vector<NvidiaCard> cards(8, {"NVIDIA A100-SXM4-80GB", Bytes(80 * kGiB.value)});
      nvidia_machine(some_host(), cards, parse_nvidia_topology(text, 8), notes);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input) << error.message();
    }
  };
  const std::string whole = tabbed(kEightA100);
  for (size_t length = 0; length < whole.size(); length += 3) try_read(whole.substr(0, length));
  for (uint64_t round = 0; round < 500; ++round) {
    std::string damaged = whole;
    for (uint64_t k = 0; k < 4; ++k) {
      const uint64_t bits = random_bits(4, round, k);
      damaged[bits % damaged.size()] = static_cast<char>(bits >> 32);
    }
    try_read(damaged);
  }
  try_read(std::string(100'000, '\x1b'));
  EXPECT_THROW(parse_nvidia_topology("", 1), Error);
  EXPECT_THROW(parse_nvidia_topology(tabbed(kTwo3090), 3), Error);
}

// A stand-in for nvidia-smi at the front of PATH for as long as this lives.
class FakeProgram {
 public:
  explicit FakeProgram(const std::string& script) : path_(std::getenv("PATH")) {
    std::string pattern = (fs::temp_directory_path() / "windlass-smi-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    const fs::path file = folder_ / "nvidia-smi";
    std::ofstream(file) << "#!/bin/sh\n" << script;
    fs::permissions(file, fs::perms::owner_all);
    setenv("PATH", (folder_.string() + ":" + path_).c_str(), 1);
  }
  ~FakeProgram() {
    setenv("PATH", path_.c_str(), 1);
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  void add(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

 private:
  std::string path_;
  fs::path folder_;
};

TEST(Nvidia, ProbeAsksTheProgram) {
  const FakeProgram program(
      "case \"$1\" in\n"
      "  --query-gpu=name,memory.total) cat \"$(dirname \"$0\")/cards\" ;;\n"
      "  topo) cat \"$(dirname \"$0\")/topo\" ;;\n"
      "esac\n");
  program.add("cards",
              "GeForce GTX 1080 Ti, 11264 MiB\nGeForce GTX 1080 Ti, 11264 MiB\n"
              "GeForce GTX 1080 Ti, 11264 MiB\nGeForce GTX 1080 Ti, 11264 MiB\n");
  program.add("topo", tabbed(kFour1080));
  const ProbeResult found = probe_host();
  EXPECT_TRUE(found.notes.empty());
  ASSERT_EQ(found.machine.devices.size(), 4u);
  EXPECT_EQ(found.machine.devices[0].name, "gpu0");
  EXPECT_EQ(route_between(found.machine, 0, 1).hops.size(), 2u);
  const Machine read = machine_from_json(machine_to_json(found.machine), "here.json");
  EXPECT_EQ(route_between(read, 0, 2).hops.size(), 6u);
  EXPECT_EQ(read.devices[3].limit, found.machine.devices[3].limit);
}

TEST(Nvidia, AProgramThatFailsIsNoCard) {
  for (const char* script : {"exit 9\n", "echo No devices were found\n", "yes\n", "kill -9 $$\n"}) {
    const FakeProgram program(script);
    const ProbeResult found = probe_host();
    ASSERT_EQ(found.machine.devices.size(), 1u) << script;
    EXPECT_EQ(found.machine.devices[0].name, "cpu0");
  }
}

TEST(Command, OutputOrNothing) {
  EXPECT_EQ(output_of({"printf", "%s", "a;$(b) c"}, Seconds(10)), "a;$(b) c");
  EXPECT_EQ(output_of({"no such program"}, Seconds(10)), std::nullopt);
  EXPECT_EQ(output_of({"false"}, Seconds(10)), std::nullopt);
  EXPECT_EQ(output_of({"sleep", "100"}, Seconds(0.05)), std::nullopt);
  EXPECT_EQ(output_of({}, Seconds(1)), std::nullopt);
}

}  // namespace
}  // namespace windlass

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/machine/nvidia.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

// What windlass knows of a kind of card beyond the preset that has its figures. Rates are what
// copies reach; those of NVLink are nine tenths of the nominal ones, as in the presets.
struct KnownCard {
  std::string_view name;    // how nvidia-smi's name ends
  std::string_view preset;  // machine with this card alone
  double pcie;              // of one direction
  double nvlink;            // of one direction of one link
  int nvlinks;              // that a card has
  bool peer_to_peer;        // over PCIe
};

constexpr double kNvlink = 0.9 * 25e9;

constexpr std::array kKnownCards = {
    KnownCard{"H100 80GB HBM3", "8xh100-80g", 50e9, kNvlink, 18, true},
    KnownCard{"A100-SXM4-80GB", "8xa100-80g", 24e9, kNvlink, 12, true},
    KnownCard{"A100-SXM4-40GB", "8xa100-40g", 24e9, kNvlink, 12, true},
    KnownCard{"V100-SXM2-16GB", "4xv100-16g", 12e9, kNvlink, 6, true},
    KnownCard{"RTX 4090", "4x4090", 24e9, 0, 0, false},
    KnownCard{"RTX 3090", "4x3090", 24e9, 0.9 * 14.0625e9, 4, false},
    KnownCard{"RTX 3060 Laptop GPU", "laptop", 12e9, 0, 0, false},
    KnownCard{"RTX 2080 Ti", "4x2080ti", 12e9, kNvlink, 2, false},
    KnownCard{"GTX 1080 Ti", "4x1080ti", 12e9, 0, 0, true},
};

// Any other card: low figures, so that what is promised is kept.
constexpr KnownCard kUnknownCard = {"", "", 12e9, kNvlink, 18, false};
constexpr FlopsPerSecond kUnknownPeak(5e12);
constexpr BytesPerSecond kUnknownBandwidth(200e9);

constexpr BytesPerSecond kBetweenSockets(20e9);
constexpr Seconds kCardLatency(3e-6), kSwitchLatency(2e-6), kHostLatency(1e-6),
    kNvlinkLatency(2e-6);

const KnownCard& known_card(std::string_view name) {
  for (const KnownCard& card : kKnownCards)
    if (name.ends_with(card.name)) return card;
  return kUnknownCard;
}

std::string type_name(std::string_view card) {
  std::string name = lower_case(card);
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  return name;
}

DeviceType type_of(const NvidiaCard& card) {
  const KnownCard& known = known_card(card.name);
  DeviceType type;
  if (known.preset.empty()) {
    type.name = type_name(card.name);
    type.reserved = Bytes(600 * kMiB.value);
    type.peak[Precision::Fp32] = kUnknownPeak;
    type.memory_bandwidth = kUnknownBandwidth;
    type.launch_overhead = Seconds(5e-6);
    type.source = "a guess on the low side: windlass does not know this card; memory by nvidia-smi";
  } else {
    type = load_machine(std::string(known.preset)).device_types[0];
    type.source += "; memory by nvidia-smi";
  }
  type.memory = card.memory;
  type.reserved = std::min(type.reserved, Bytes(card.memory.value / 4));
  return type;
}

// Sets of cards and adapters that are near each other.
class Groups {
 public:
  explicit Groups(size_t count) : parent_(count) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t find(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(size_t a, size_t b) {
    const size_t x = find(a), y = find(b);
    parent_[std::max(x, y)] = std::min(x, y);  // the first member stands for the group
  }

 private:
  std::vector<size_t> parent_;
};

class Wiring {
 public:
  Wiring(Machine& machine, const HostFigures& host, const std::vector<NvidiaCard>& cards)
      : machine_(machine), host_(host) {
    for (const NvidiaCard& card : cards) known_.push_back(known_card(card.name));
  }

  // Every card on its own connection to the processor.
  void wire_plainly() {
    const EndpointId root = add_switch("root");
    link(root, host(), host_.triad_all, kHostLatency);
    for (size_t i = 0; i < known_.size(); ++i) link(device(i), root, pcie(i), kCardLatency);
  }

  void wire(const NvidiaTopology& topology) {
    add_nvlinks(topology);
    Groups switches = near(topology, NvidiaPath::Switch);
    Groups bridges = near(topology, NvidiaPath::Switches);
    Groups sockets = near(topology, NvidiaPath::Socket);
    for (size_t i = 0; i < known_.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!topology.affinity[i].empty() && topology.affinity[i] == topology.affinity[j])
          sockets.join(i, j);
    add_sockets(sockets);
    for (size_t i = 0; i < known_.size(); ++i) {
      EndpointId up = socket_of_[i];
      if (shared(bridges, i) && members(bridges, i) != members(switches, i))
        up = below("bridge", bridges.find(i), up, i);
      if (shared(switches, i)) up = below("pcie", switches.find(i), up, i);
      link(device(i), up, pcie(i), kCardLatency);
    }
  }

 private:
  EndpointId device(size_t i) const { return machine_.devices[i].endpoint; }
  EndpointId host() const { return machine_.nodes[0].endpoint; }
  BytesPerSecond pcie(size_t i) const { return BytesPerSecond(known_[i].pcie); }

  EndpointId add_switch(const std::string& name) {
    machine_.endpoints.push_back({Endpoint::Kind::Switch, -1, name, NodeId(size_t{0})});
    return EndpointId(machine_.endpoints.size() - 1);
  }

  void link(EndpointId a, EndpointId b, BytesPerSecond bandwidth, Seconds latency) {
    machine_.links.push_back(
        {fmt::format("{}-{}", machine_[a].name, machine_[b].name), a, b, bandwidth, latency, true});
  }

  // Groups of what is at most so far apart. Both directions of the table must say so.
  static Groups near(const NvidiaTopology& topology, NvidiaPath farthest) {
    Groups groups(topology.columns);
    for (size_t i = 0; i < topology.cards; ++i)
      for (size_t k = 0; k < topology.columns; ++k) {
        if (k == i) continue;
        const NvidiaPath path = topology.at(i, k).path;
        const NvidiaPath back = k < topology.cards ? topology.at(k, i).path : path;
        const bool told = path != NvidiaPath::Nvlink && back != NvidiaPath::Nvlink;
        if (told && std::max(path, back) <= farthest) groups.join(i, k);
      }
    return groups;
  }

  std::vector<size_t> members(Groups& groups, size_t card) const {
    std::vector<size_t> result;
    for (size_t i = 0; i < known_.size(); ++i)
      if (groups.find(i) == groups.find(card)) result.push_back(i);
    return result;
  }
  bool shared(Groups& groups, size_t card) const { return members(groups, card).size() > 1; }

  void add_sockets(Groups& sockets) {
    std::set<size_t> found;
    for (size_t i = 0; i < known_.size(); ++i) found.insert(sockets.find(i));
    const EndpointId root = add_switch("root");
    socket_of_.assign(known_.size(), root);
    if (found.size() == 1) {
      link(root, host(), host_.triad_all, kHostLatency);
      return;
    }
    // Each processor has its part of the memory, and reaches the others' cards across.
    for (size_t group : found) {
      const EndpointId socket = add_switch(fmt::format("socket{}", sockets_++));
      link(socket, host(), host_.triad_all / static_cast<double>(found.size()), kHostLatency);
      link(socket, root, kBetweenSockets, kHostLatency);
      for (size_t i = 0; i < known_.size(); ++i)
        if (sockets.find(i) == group) socket_of_[i] = socket;
    }
  }

  // The switch that stands for a group, made when its first card comes.
  EndpointId below(const std::string& stem, size_t group, EndpointId up, size_t card) {
    auto& made = switches_[stem];
    const auto known = made.find(group);
    if (known != made.end()) return known->second;
    const EndpointId id = add_switch(fmt::format("{}{}", stem, made.size()));
    made.emplace(group, id);
    link(id, up, pcie(card), kSwitchLatency);
    return id;
  }

  // NVLinks between a pair; of what the two directions say, the fewer.
  static int nvlinks(const NvidiaTopology& topology, size_t i, size_t j) {
    return std::min(topology.at(i, j).nvlinks, topology.at(j, i).nvlinks);
  }

  BytesPerSecond nvlink_rate(size_t i, size_t j, int links) const {
    return BytesPerSecond(std::min(known_[i].nvlink, known_[j].nvlink) * links);
  }

  void add_nvlinks(const NvidiaTopology& topology) {
    const size_t count = known_.size();
    if (is_nvswitch(topology)) {
      const EndpointId fabric = add_switch("nvswitch");
      for (size_t i = 0; i < count; ++i)
        link(device(i), fabric, nvlink_rate(i, i, nvlinks(topology, 0, 1)), kNvlinkLatency);
      return;
    }
    for (size_t i = 0; i < count; ++i)
      for (size_t j = i + 1; j < count; ++j)
        if (const int links = nvlinks(topology, i, j); links > 0 && nvlink_rate(i, j, 1).value > 0)
          link(device(i), device(j), nvlink_rate(i, j, links), kNvlinkLatency);
  }

  bool is_nvswitch(const NvidiaTopology& topology) const {
    const size_t count = known_.size();
    if (count < 3) return false;
    const int links = nvlinks(topology, 0, 1);
    for (size_t i = 0; i < count; ++i) {
      if (known_[i].nvlink <= 0) return false;
      for (size_t j = 0; j < count; ++j)
        if (i != j && nvlinks(topology, i, j) != links) return false;
    }
    return links > 0 && links * static_cast<int>(count - 1) > known_[0].nvlinks;
  }

  Machine& machine_;
  const HostFigures& host_;
  std::vector<KnownCard> known_;
  std::vector<EndpointId> socket_of_;
  int sockets_ = 0;
  std::map<std::string, std::map<size_t, EndpointId>> switches_;
};

void note_assumptions(const std::vector<NvidiaCard>& cards,
                      const std::optional<NvidiaTopology>& topology,
                      std::vector<std::string>& notes) {
  std::set<std::string> unknown;
  for (const NvidiaCard& card : cards)
    if (known_card(card.name).preset.empty()) unknown.insert(card.name);
  for (const std::string& name : unknown)
    notes.push_back(
        fmt::format("the card \"{}\" is not known: its rates are guessed low; correct them in the "
                    "machine file",
                    name));
  if (!topology) {
    notes.push_back(
        "nvidia-smi does not tell how the cards are connected: each is taken to have a PCIe "
        "connection of its own, without copies from card to card");
    return;
  }
  const bool hidden =
      std::any_of(topology->cells.begin(), topology->cells.end(),
                  [](const NvidiaTopology::Cell& cell) { return cell.nvlinks > 0; }) &&
      topology->columns == topology->cards;
  if (hidden)
    notes.push_back(
        "cards joined by NVLink: nvidia-smi does not tell which of them share a PCIe switch; each "
        "is taken to have a connection of its own");
}

}  // namespace

Machine nvidia_machine(const HostFigures& host, const std::vector<NvidiaCard>& cards,
                       const std::optional<NvidiaTopology>& topology,
                       std::vector<std::string>& notes) {
  Machine machine;
  machine.name = "this-host";
  machine.description = fmt::format("this host: {} NVIDIA card{}, {} core{}, {}", cards.size(),
                                    cards.size() == 1 ? "" : "s", host.cores,
                                    host.cores == 1 ? "" : "s", format_bytes(host.memory));
  Node node;
  node.name = "host";
  node.memory = Bytes(host.memory.value - host.memory.value / 16);
  node.memory_bandwidth = host.triad_all;
  node.peak = host.peak_all;
  node.endpoint = EndpointId(size_t{0});
  node.peer_to_peer = topology.has_value();
  machine.endpoints.push_back({Endpoint::Kind::Host, 0, "host", NodeId(size_t{0})});
  for (size_t i = 0; i < cards.size(); ++i) {
    DeviceType type = type_of(cards[i]);
    size_t index = 0;
    while (index < machine.device_types.size() &&
           (machine.device_types[index].name != type.name ||
            machine.device_types[index].memory != type.memory)) {
      if (machine.device_types[index].name == type.name) type.name += "-other";
      ++index;
    }
    if (index == machine.device_types.size()) machine.device_types.push_back(type);
    const std::string name = fmt::format("gpu{}", i);
    machine.endpoints.push_back(
        {Endpoint::Kind::Device, static_cast<int32_t>(i), name, NodeId(size_t{0})});
    machine.devices.push_back({name, NodeId(size_t{0}), index, type.memory - type.reserved,
                               EndpointId(machine.endpoints.size() - 1)});
    node.peer_to_peer = node.peer_to_peer && known_card(cards[i].name).peer_to_peer;
  }
  machine.nodes.push_back(node);
  Wiring wiring(machine, host, cards);
  if (topology)
    wiring.wire(*topology);
  else
    wiring.wire_plainly();
  note_assumptions(cards, topology, notes);
  check_machine(machine);
  index_links(machine);
  return machine;
}

}  // namespace windlass

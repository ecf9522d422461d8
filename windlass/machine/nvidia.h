// NVIDIA cards as the program nvidia-smi describes them, and the machine they make.
//
// Its output is not trusted: it may be of any version, cut short or something else altogether.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/machine/host.h"
#include "windlass/machine/machine.h"

namespace windlass {

struct NvidiaCard {
  std::string name;  // "NVIDIA A100-SXM4-80GB"
  Bytes memory;
};

// Reads `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader`, a card a line. Throws
// Error{Input} naming the line.
std::vector<NvidiaCard> parse_nvidia_cards(std::string_view text);

// What two devices have between them, nearest first.
enum class NvidiaPath : uint8_t {
  Nvlink,      // NV#: the way over PCIe is not told
  Switch,      // PIX: one PCIe switch
  Switches,    // PXB: several, but not the processor
  HostBridge,  // PHB: the processor
  Socket,      // NODE: several host bridges of one processor
  System,      // SYS: the connection between processors
};

// A table of paths: a row for each card, a column for each card and then for each network adapter.
struct NvidiaTopology {
  struct Cell {
    NvidiaPath path = NvidiaPath::System;
    int nvlinks = 0;
  };
  size_t cards = 0;
  size_t columns = 0;                 // cards and adapters
  std::vector<Cell> cells;            // row by row; the diagonal means nothing
  std::vector<std::string> affinity;  // cores near each card, as a text to compare; may be empty

  const Cell& at(size_t card, size_t column) const { return cells[card * columns + column]; }
};

// Reads `nvidia-smi topo -m` for that many cards. Throws Error{Input} naming what is missing.
NvidiaTopology parse_nvidia_topology(std::string_view text, size_t cards);

// The machine `this-host` with these cards. Those of which windlass has a preset get its figures
// and their own memory; others get low ones. `notes` says what was assumed.
//
//  - NV#: a link of # times the rate of one NVLink, or an NVSwitch if every pair has more links
//    than a card could give each.
//  - PIX, PXB: cards behind one switch, or behind switches behind another, whose uplink they share.
//    Cards near the same network adapter count as near each other.
//  - Other cards hang on their processor; processors are told apart by SYS or by core affinity.
Machine nvidia_machine(const HostFigures& host, const std::vector<NvidiaCard>& cards,
                       const std::optional<NvidiaTopology>& topology,
                       std::vector<std::string>& notes);

}  // namespace windlass

#include "windlass/machine/probe.h"

#include <optional>

#include "windlass/base/error.h"
#include "windlass/machine/command.h"
#include "windlass/machine/local.h"
#include "windlass/machine/nvidia.h"

namespace windlass {
namespace {

constexpr Seconds kPatience(10);

std::vector<NvidiaCard> find_cards(std::vector<std::string>& notes) {
  const auto text = output_of(
      {"nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"}, kPatience);
  if (!text) return {};
  try {
    return parse_nvidia_cards(*text);
  } catch (const Error& error) {
    notes.push_back(fmt::format("NVIDIA cards are left out: {}", error.message()));
    return {};
  }
}

std::optional<NvidiaTopology> find_topology(size_t cards, std::vector<std::string>& notes) {
  const auto text = output_of({"nvidia-smi", "topo", "-m"}, kPatience);
  if (!text) return std::nullopt;
  try {
    return parse_nvidia_topology(*text, cards);
  } catch (const Error& error) {
    notes.push_back(error.message());
    return std::nullopt;
  }
}

}  // namespace

ProbeResult probe_host() {
  ProbeResult result;
  const HostFigures host = measure_host();
  const std::vector<NvidiaCard> cards = find_cards(result.notes);
  if (cards.empty())
    result.machine = local_machine({.host = host});
  else
    result.machine =
        nvidia_machine(host, cards, find_topology(cards.size(), result.notes), result.notes);
  return result;
}

}  // namespace windlass

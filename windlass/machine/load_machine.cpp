// Machines by their names.

#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/machine/first_devices.h"
#include "windlass/machine/local.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxFileBytes = int64_t{16} << 20;

std::string read_text(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::error_code failed;
  const auto size = fs::file_size(path, failed);
  if (!stream || failed) fail_input("{}: cannot read the file", path);
  if (static_cast<int64_t>(size) > kMaxFileBytes)
    fail_input("{}: too large for a machine file", path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// "4x3090" is 4 of "3090"; 0 if the name is not one of so many cards.
std::pair<int64_t, std::string_view> cards_of(std::string_view name) {
  int64_t count = 0;
  const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), count);
  if (failed != std::errc() || count < 1 || end == name.data() + name.size() || *end != 'x')
    return {0, {}};
  return {count, name.substr(static_cast<size_t>(end - name.data()) + 1)};
}

// The smallest preset with at least as many of the same card; else the largest one.
std::optional<MachinePreset> preset_with(int64_t count, std::string_view card) {
  std::optional<MachinePreset> best;
  for (const MachinePreset& known : machine_presets()) {
    const auto [cards, of] = cards_of(known.name);
    if (cards == 0 || of != card) continue;
    const int64_t now = best ? cards_of(best->name).first : 0;
    if (now < count ? cards > now : cards >= count && cards < now) best = known;
  }
  return best;
}

// "3x3090": the first three devices of "4x3090". None if there is no such card.
std::optional<Machine> part_of_preset(std::string_view name, const std::string& where,
                                      const MachineOptions& options) {
  const auto [count, card] = cards_of(name);
  if (count == 0) return std::nullopt;
  const auto preset = preset_with(count, card);
  if (!preset) return std::nullopt;
  const int64_t most = cards_of(preset->name).first;
  if (count > most)
    fail_input("{}: presets have at most {} of these on one node{}", where, most,
               count % most == 0 && most > 1
                   ? fmt::format("; on several nodes: {}*{}", preset->name, count / most)
                   : "; for other machines write a file (docs/machine_format.md)");
  if (options.nodes)
    fail_input("{}: only whole presets can be had several times, such as {}*{}", where,
               preset->name, *options.nodes);
  Machine machine =
      first_devices(machine_from_json(preset->text, where, options), static_cast<size_t>(count));
  machine.name = name;
  machine.description =
      fmt::format("{} of the devices of {}: {}", count, preset->name, machine.description);
  return machine;
}

}  // namespace

Machine load_machine(const std::string& name, const MachineOptions& options) {
  std::error_code ignored;
  if (name == "local")
    return local_machine({.devices = options.devices.value_or(1),
                          .hosts = options.hosts.value_or(1),
                          .memory = options.memory,
                          .link_bandwidth = options.link_bandwidth,
                          .threads = options.threads,
                          .processes = options.processes});
  if (options.devices || options.hosts || options.link_bandwidth)
    fail_input(
        "{}: a number of devices or hosts and a bandwidth of links are for the machine \"local\"",
        name);
  if (fs::is_regular_file(name, ignored)) {
    return machine_from_json(read_text(name), name, options);
  }
  MachineOptions chosen = options;
  std::string preset = lower_case(name);
  if (const size_t star = preset.rfind('*'); star != std::string::npos) {
    int64_t nodes = 0;
    const std::string_view digits = std::string_view(preset).substr(star + 1);
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), nodes);
    if (failed != std::errc() || end != digits.data() + digits.size() || nodes < 1 ||
        nodes > kMaxNodes)
      fail_input("{}: \"{}\" is not a number of nodes", name, digits);
    chosen.nodes = nodes;
    preset.resize(star);
  }
  std::vector<std::string> names;
  for (const MachinePreset& known : machine_presets()) {
    if (known.name == preset) return machine_from_json(known.text, name, chosen);
    names.emplace_back(known.name);
  }
  if (auto part = part_of_preset(preset, name, chosen)) return std::move(*part);
  names.emplace_back("local");
  fail_input("{}: no such machine file or preset{}; presets: {}", name, did_you_mean(preset, names),
             join(names, ", "));
}

}  // namespace windlass

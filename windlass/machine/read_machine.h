// Machines from JSON text, presets and names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/machine/machine.h"

namespace windlass {

// Of a machine.
inline constexpr int64_t kMaxNodes = 16'384;

struct MachineOptions {
  std::optional<Bytes> memory = std::nullopt;  // limit of each device, instead of what it has
  std::optional<int64_t> nodes =
      std::nullopt;  // how many of the file's nodes, instead of its count
  // For `local` alone, see LocalOptions.
  std::optional<int64_t> devices = std::nullopt;
  std::optional<int64_t> hosts = std::nullopt;
  std::optional<BytesPerSecond> link_bandwidth = std::nullopt;
  int64_t threads = 1;
  int64_t processes = 1;
};

// Reads the format of docs/machine_format.md. `where` begins messages. Unknown keys are refused
// with the nearest known one.
Machine machine_from_json(std::string_view text, const std::string& where,
                          const MachineOptions& options = {});

// A preset of the program: machines/<name>.json, built in.
struct MachinePreset {
  std::string_view name;
  std::string_view text;
};
std::vector<MachinePreset> machine_presets();

// Reads MACHINE as the command line takes it: a preset ("4x3090"), fewer of its devices ("3x3090"),
// a preset times a number of nodes ("8xa100-80g*4"), `local` (local.h, measured on the spot), or a
// JSON file. Throws Error{Input} with the nearest preset.
Machine load_machine(const std::string& name, const MachineOptions& options = {});

}  // namespace windlass

// Flags that every verb with a MACHINE shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "windlass/machine/read_machine.h"

namespace CLI {
class App;
}

namespace windlass {

// Raw values of the flags, to be turned into options after parsing.
struct MachineFlags {
  std::string machine;
  std::string memory;
  std::string link_bandwidth;
  std::optional<int64_t> devices, hosts;
  // Percent of each host's memory that is kept back for the system and whatever else runs there. Of
  // "local" what is free was measured, and a share of that is kept back already.
  double host_reserve = 15;
  // Of "local", set by the verb: that the kernels of each device use, and that share the devices.
  int threads = 1;
  int64_t processes = 1;

  void add_to(CLI::App& verb);
  // With --on, and what it may name.
  void add_to(CLI::App& verb, const std::string& machines);

  // That share the cores of this host: of "local" on all its hosts, of a machine file as
  // devices_here() says, without flags that are for "local".
  size_t local_devices() const;

  // Throw Error{Input} naming the flag or the machine.
  MachineOptions machine_options() const;
  Machine load() const;
};

}  // namespace windlass

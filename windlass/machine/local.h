// This host as CPU devices.
#pragma once

#include <cstdint>
#include <optional>

#include "windlass/machine/host.h"
#include "windlass/machine/machine.h"

namespace windlass {

struct LocalOptions {
  int64_t devices = 1;
  // Limit of each device. Else a fair share: what the host can spare, divided evenly among the
  // devices and the host memory they stream from.
  std::optional<Bytes> memory = std::nullopt;
  // Of each device's link to host memory. Else what one thread copies.
  std::optional<BytesPerSecond> link_bandwidth = std::nullopt;
  // Instead of measuring.
  std::optional<HostFigures> host = std::nullopt;
};

// A machine called `local` with the devices cpu0, cpu1, ... Each device computes with one thread,
// and has its share of the host's rate and bandwidth if all do. Copies between a device and the
// host, or between two devices, are copies in memory: each passes the device's link, and all share
// what the host can copy in all. Throws Error{Input} if the limits do not fit the host's memory.
Machine local_machine(const LocalOptions& options = {});

}  // namespace windlass

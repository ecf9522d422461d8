// This host as CPU devices.
#pragma once

#include <cstdint>
#include <optional>

#include "windlass/machine/host.h"
#include "windlass/machine/loopback.h"
#include "windlass/machine/machine.h"

namespace windlass {

// What the machine is called that is this host.
inline constexpr const char* kLocalName = "local";

struct LocalOptions {
  int64_t devices = 1;  // of each host
  // Processes of this host that count as hosts of their own, joined by its loopback network.
  int64_t hosts = 1;
  // Limit of each device. Else a fair share: what the host can spare, divided evenly among the
  // devices and the host memory they stream from.
  std::optional<Bytes> memory = std::nullopt;
  // Of each device's link to host memory. Else what is copied without kernels beside it.
  std::optional<BytesPerSecond> link_bandwidth = std::nullopt;
  int64_t threads = 1;  // that the kernels of each device use
  // That share out the devices. What is another one's comes in messages, which are waited for more
  // than worked on.
  int64_t processes = 1;
  // Instead of measuring.
  std::optional<HostFigures> host = std::nullopt;
  std::optional<LoopbackFigures> loopback = std::nullopt;
};

// A machine called `local` with the devices cpu0, cpu1, ... Figures of a device are those of its
// threads, or its share of the host's rate and bandwidth if all are at work. Copies between a
// device and the host, or between two devices, are copies in memory: each passes the device's link,
// and all share what the host can copy in all. A thread beside the kernels copies; but devices
// whose kernels use every core copy themselves, with all their threads: beside the kernels, copies
// would slow them by as much or more, unless they are messages to other processes. A given link
// bandwidth is that of an imitated link, which needs no cores, and more devices than cores imitate
// devices that have them. Several hosts have each their share of the memory, and as many devices.
// Throws Error{Input} if the limits do not fit the host's memory.
Machine local_machine(const LocalOptions& options = {});

}  // namespace windlass

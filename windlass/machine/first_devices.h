// A part of a machine.
#pragma once

#include <cstddef>

#include "windlass/machine/machine.h"

namespace windlass {

// The same machine with only its first `count` devices, the hosts that have any of them, and the
// links that are left then.
Machine first_devices(const Machine& machine, size_t count);

}  // namespace windlass

// Several devices in a few words.
#pragma once

#include <span>
#include <string>

#include "windlass/machine/machine.h"

namespace windlass {

// "gpu0..gpu7", or run by run where they do not follow each other; many runs in short.
std::string device_names(const Machine& machine, std::span<const DeviceId> devices);

// "23.4 GiB", or from the least to the most.
std::string limit_text(const Machine& machine);

}  // namespace windlass

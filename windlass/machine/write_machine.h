// Machines as JSON files.
#pragma once

#include <string>

#include "windlass/machine/machine.h"

namespace windlass {

// The text of a machine file (docs/machine_format.md) that reads as the same machine. The machine
// has one node, and its device types are all in use: ensured, not checked for input.
std::string machine_to_json(const Machine& machine);

}  // namespace windlass

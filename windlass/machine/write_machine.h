// Machines as JSON files.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/machine/machine.h"

namespace windlass {

// A machine file (docs/machine_format.md) that reads as the same machine, if some file does: one
// network between the nodes, names as reading gives them. Equal nodes in a row stand once, with
// their count.
nlohmann::ordered_json machine_json(const Machine& machine);
std::string machine_to_json(const Machine& machine);

}  // namespace windlass

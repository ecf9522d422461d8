// A machine of any number of nodes as the JSON of a machine file.
#pragma once

#include <nlohmann/json.hpp>

#include "windlass/machine/machine.h"

namespace windlass {

// Reads as the same machine (equal fingerprints). Equal nodes in a row stand once, with their
// count. Throws Error{Unsupported} for a machine that no machine file describes.
nlohmann::ordered_json machine_json(const Machine& machine);

}  // namespace windlass

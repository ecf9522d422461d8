// Asking other programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "windlass/base/units.h"

namespace windlass {

// What a program, looked for on PATH, prints to its standard output, of which no more than 1 MiB is
// taken; nothing if there is no such program, it fails, prints more, or takes longer, upon which it
// is ended. No shell is involved; its input and its error output lead nowhere.
std::optional<std::string> output_of(const std::vector<std::string>& command, Seconds patience);

}  // namespace windlass

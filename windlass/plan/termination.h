// How a search ended, and what other limits would give.
#pragma once

#include <cstdint>
#include <string_view>

#include "windlass/base/units.h"

namespace windlass {

enum class Termination : uint8_t {
  Optimal,     // proven: nothing is faster
  Feasible,    // the best that was found
  Infeasible,  // nothing that was tried fits
  Limit,       // out of time; the best so far
};
std::string_view termination_name(Termination termination);

// A limit of each device's memory, and what a step takes inside of it.
struct FrontierPoint {
  Bytes limit;
  Seconds step_time;
  bool operator==(const FrontierPoint&) const = default;
};

}  // namespace windlass

// The best plan that was found for a number of devices, each with a limit.
#pragma once

#include <cstddef>
#include <optional>

#include "windlass/plan/degrees.h"

namespace windlass {

struct FrontierCell {
  size_t devices = 0;
  Bytes limit = {};  // of each device
  bool fits = false;
  // The least limit at which anything that was tried runs, if nothing fits.
  std::optional<Bytes> least_limit = {};
  // Of the plan, if one fits.
  Seconds step_time = {};
  Bytes peak = {};
  Degrees degrees = {};
  // What the plan was found for: it needs no more, and more does not make it slower.
  size_t found_for_devices = 0;
  Bytes found_for_limit = {};
};

}  // namespace windlass

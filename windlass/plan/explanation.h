// What other choices would come to: of a plan that fits, and where nothing does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "windlass/base/units.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// What a step comes to under a strategy.
struct Outcome {
  bool fits = false;
  std::string obstacle = {};  // the memory that is too small; empty if it fits
  Seconds step_time = {};     // if it does not fit: as if memory were no matter; so are the peaks
  Bytes peak = {};            // of the fullest device
  Bytes host_peak = {};       // of the fullest host
};

// Another choice for one decision.
struct Alternative {
  std::string decision = {};        // what it is about: "saved tensors"
  std::string choice = {};          // "everything kept"
  std::string impossible = {};      // why it cannot be; empty if it can
  bool same_result = true;          // false: changes the mathematics
  std::optional<Outcome> one = {};  // unless impossible
  // The same choice for all ops or tensors that are like this one, if there are others.
  std::optional<Outcome> all = {};
};

// A change, and what was found with it.
struct Advice {
  std::string change;       // "a batch of 4 instead of 16"
  std::string flags = {};   // how the command line says it: "--batch 4"
  bool same_result = true;  // false: changes the mathematics
  bool fits = false;        // what was found fits the limits
  int64_t samples = 0;      // of the batch
  Seconds step_time = {};   // if it fits
  Bytes least_limit = {};   // of each device: that would do with the change; if it does not fit
};

// "kept", "moved to the host", ...: an action as something that was done.
std::string_view action_phrase(MemoryAction action);

}  // namespace windlass

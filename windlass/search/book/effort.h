// What a search uses up, counted in units that are the same on every machine, so that what it finds
// does not hang on how fast the machine happens to be. A unit is about what it takes to lower,
// price and simulate one task.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace windlass {

// A part of a search with an effort of its own.
struct StageEffort {
  std::string name;
  int64_t simulated = 0;  // strategies
  int64_t units = 0;
  // Whether it came to its own end. If not, its effort or the time limit was used up before.
  bool complete = true;
  bool time_limit = false;    // which of the two it was: the time limit, or Ctrl-C
  std::string left_out = {};  // what was not looked at, if that can be said
};

// Those that the time limit, or Ctrl-C, has cut, and what they left out, for people; empty if none.
std::string time_cuts(const std::vector<StageEffort>& stages);

// Shared by a book and its branches.
struct EffortBook {
  std::vector<StageEffort> stages;  // the last one is under way
  double budget = 0;                // units of that one
  double before = 0;                // units spent, and
  int64_t simulated_before = 0;     // strategies simulated when it began
  double charged = 0;               // units beside those of evaluators
  int64_t simulated = 0;            // beside evaluators
};

// What stages may use at the usual effort, in units.
inline constexpr double kStructureUnits = 2.5e6, kExactUnits = 1e6, kOneDeviceUnits = 2e7,
                        kChainUnits = 2e7;

}  // namespace windlass

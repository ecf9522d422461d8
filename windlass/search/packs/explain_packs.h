// Why a plan of packs is as it is: where its time and memory go, and what other choices would take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/search/packs/stream_pricer.h"

namespace windlass {

// What the first device of a place in the pipelines does in a step, in seconds.
struct PackTimes {
  std::string device;
  double forward = 0, recompute = 0, backward = 0, update = 0, idle = 0;
};

// A time without computing before a task, and what that waited for at last.
struct PackWait {
  std::string device;
  double seconds = 0;
  std::string before, waits_for;
};

struct PackBytes {
  std::string what;
  int64_t bytes = 0;
};

// One decision changed, everything else as it is, and the window for weights made smaller where
// memory is short and that helps.
struct PackChoice {
  std::string decision;  // "inputs of packs", or "layers 5-9"
  std::string choice;    // "all on the host"
  StreamCost cost;       // without limits if it does not fit
};

struct PackExplanation {
  StreamCost cost;
  int64_t limit = 0;
  std::vector<PackTimes> times;
  std::vector<PackWait> waits;   // the longest
  std::string fullest;           // device
  std::vector<PackBytes> bytes;  // there at its peak, the most first
  std::vector<PackChoice> choices;
  // Of single packs, the fastest ones.
  std::vector<PackChoice> of_packs;
};

// Choices that make no difference or cannot be are left out; lists have at most `top` entries.
// The strategy must be one for the chain, the machine and the minibatch (check_pack_strategy).
// Throws Error{Input} if its window for weights cannot hold a pack.
PackExplanation explain_packs(ChainTables& chain, const Machine& machine, int64_t minibatch,
                              const PackStrategy& strategy, size_t top);

}  // namespace windlass

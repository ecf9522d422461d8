// A step of packs of layers at the grain of ops, simulated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/strategy/packs.h"

namespace windlass {

struct OpGrainStep {
  std::string obstacle;               // why it cannot be carried out; empty if it can
  bool fits = false;                  // into the memories of the machine
  int64_t missing = 0;                // bytes that a memory lacks, if it does not
  bool host_lacks = false;            // that of the host
  double seconds = 0;                 // of a step alone: others do not overlap with it
  std::vector<int64_t> device_peaks;  // bytes, by device that is used
  int64_t host_peak = 0;              // bytes
};

// `training` is of the whole batch. A network or a strategy that lower_packs() refuses is an
// obstacle, not an error.
OpGrainStep simulate_op_grain(const TrainingGraph& training, const PackStrategy& strategy,
                              const Machine& machine, const CostModel& cost);

}  // namespace windlass

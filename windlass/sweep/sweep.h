// Steps of small models, predicted from a profile of the plain step at two batches, and then
// carried out on this host.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "windlass/machine/machine.h"
#include "windlass/report/measured_sweep.h"

namespace windlass {

struct SweepOptions {
  Machine machine;        // this host as one device
  bool full = false;      // the five models, else two that take little time
  std::string only = {};  // models whose name begins so
  int threads = 1;        // that kernels use
  int64_t steps = 5;      // that are timed for each point in a round
  int64_t rounds = 3;     // over all kernels, and over all points of a model
  std::function<bool()> stop = {};
  std::function<void(const std::string& what, double done)> progress = {};
};

// Throws Error{Input} if no model is called so, and what fails while it runs.
MeasuredSweep run_sweep(const SweepOptions& options);

}  // namespace windlass

// Tensors that rest between steps, as wholes: put together from the slots that have parts of them,
// and cut up again.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/run/training.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

// Where they lie, and who reads them.
struct RestingPlaces {
  Slots& slots;
  const Ownership& own;
  Ranks* ranks = nullptr;  // if there are several processes
  int32_t reader = kReadByAll;
};

// Everything that is there at the start of a step and at its end, each tensor once; as
// Executor::persistent() has it.
std::vector<PersistentTensor> resting_tensors(const TrainingGraph& training, const TaskGraph& tasks,
                                              const Program& program, const RestingPlaces& places);

// Puts the part of a whole tensor that a slot has there.
void scatter(const Slots& slots, const Placed& placed, DType dtype,
             std::span<const std::byte> whole);

}  // namespace windlass

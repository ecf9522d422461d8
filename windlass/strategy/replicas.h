// Replicas on unlike devices: faster ones get more samples.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

// Whole numbers that sum up to `samples`, in proportion to the speeds by the largest remainder, at
// least one each. There are no more speeds than samples, and all are above zero.
std::vector<int32_t> samples_by_speed(int64_t samples, const std::vector<double>& speeds);

// How fast the replicas of a group are relative to each other: replica r is the r-th run of equally
// many members, and as slow as the slowest of them. A device takes for each forward op the longer
// of its arithmetic at the peak rate and of reading and writing its operands.
std::vector<double> replica_speeds(const TrainingGraph& training, const Machine& machine,
                                   const std::vector<DeviceId>& group, int64_t replicas);

// Gives the parts of each split over the samples into so many replicas, outermost, sizes in
// proportion to the samples of each, which are listed by group. Other splits stay as they are.
void size_replicas(const TrainingGraph& training, const BatchAxes& batch,
                   const std::vector<std::vector<int32_t>>& samples, Strategy& strategy);

}  // namespace windlass

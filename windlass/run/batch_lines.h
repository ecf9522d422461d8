// Prices of kernels of any batch from those of two: each op's time and workspace as a line through
// what was measured of the same op of the same network at a small and at a large batch. So a plain
// profile at two batches prices every batch, and every way to save memory, without running them.
#pragma once

#include <cstdint>

#include "windlass/graph/differentiate.h"
#include "windlass/run/profile.h"

namespace windlass {

class BatchLines {
 public:
  // Training graphs of one network, whole batches. Kernels of both are measured when a line asks
  // for them. All three must outlive it. Throws Error{Input} if the graphs do not have the same
  // ops, or are of the same size.
  BatchLines(KernelProfile& profile, const TrainingGraph& small, const TrainingGraph& large);

  // Gives the profile prices of all kernels of tasks of the same network at another batch that it
  // does not know, and then the tasks the profile's prices. Tasks must run whole ops: one device,
  // one micro-batch. Throws Error{Input} if the network is another one.
  void reprice(const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times);

  // Where a graph lies between both: 0 the small one, 1 the large one, as its tensors have it, all
  // of which grow with the batch or not at all.
  double place(const TrainingGraph& training) const;

 private:
  KernelPrice at(double place, size_t op, uint64_t adds);

  KernelProfile& profile_;
  const TrainingGraph& small_;
  const TrainingGraph& large_;
  const double small_elements_, large_elements_;
};

}  // namespace windlass

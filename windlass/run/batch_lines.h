// Prices of kernels of any batch from those of two: each op's time and workspace as a line through
// what was measured of the same op of the same network at a small and at a large batch. So a plain
// profile at two batches prices every batch, and every way to save memory, without running them.
//
// Workspace is often the larger one of two things, of which only one grows with the batch, and no
// line. Where what the cost model says is what was measured at both batches, it is taken at others.
#pragma once

#include <cstdint>
#include <vector>

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
  // one micro-batch; `times` has the prices of the cost model. Throws Error{Input} if the network
  // is another one.
  void reprice(const TrainingGraph& training, const TaskGraph& tasks, TaskTimes& times);

  // Where a graph lies between both: 0 the small one, 1 the large one, as its tensors have it, all
  // of which grow with the batch or not at all.
  double place(const TrainingGraph& training) const;

 private:
  // `workspace` is the cost model's.
  KernelPrice at(double place, size_t op, uint64_t adds, int64_t workspace);

  KernelProfile& profile_;
  const TrainingGraph& small_;
  const TrainingGraph& large_;
  const double small_elements_, large_elements_;
  // By op: workspace as the cost model has it at both batches; -1: not known.
  std::vector<int64_t> small_workspace_, large_workspace_;
};

}  // namespace windlass

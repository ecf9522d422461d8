// A step that was carried out as a profile of its kernels: what each takes in its place, after the
// others and with what they have left in the caches, instead of by itself.
#pragma once

#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/plan/plan.h"
#include "windlass/run/profile.h"
#include "windlass/sim/step_record.h"
#include "windlass/task/task_graph.h"

namespace windlass {

class StepProfile {
 public:
  // Of a step of one device that keeps everything, whose tasks run one after the other; `times` are
  // what they were predicted to take. All must outlive it.
  StepProfile(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times)
      : training_(training), tasks_(tasks), times_(times) {}

  void add(const StepRecord& record) { records_.push_back(record); }

  // By kernel, in the faster half of the steps, since whatever else runs on the host only ever
  // adds: the mean over its tasks of what each takes from the end of the one before to its own.
  // Workspace is what `profile` says.
  std::vector<MeasuredKernel> kernels(KernelProfile& profile) const;
  // What updates took, as a part of what they were predicted to take; 1 if there are none.
  double updates() const;

 private:
  // By task, in the faster half.
  std::vector<double> spans() const;

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  const TaskTimes& times_;
  std::vector<StepRecord> records_;
};

}  // namespace windlass

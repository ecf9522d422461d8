// What the kernels of steps were measured to take, as a calibration of the devices they run on: a
// search over strategies whose kernels nobody has measured then goes by kernels like them, instead
// of by the figures of the host alone.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/run/calibrate.h"
#include "windlass/task/task_graph.h"
#include "windlass/task/task_times.h"

namespace windlass {

class StepCalibration {
 public:
  // The machine as its figures have it, without calibration. Both must outlive it.
  StepCalibration(const Machine& machine, const CostModel& cost) : machine_(machine), cost_(cost) {}

  // Times of the kernels of devices, each kind and size once, and what they hold beside operands in
  // proportion to these. That of convolutions stays as the model has it: it is not in proportion.
  void add(const TaskGraph& tasks, const TaskTimes& measured);

  // The same devices, calibrated by all that was added.
  Machine apply(Machine machine) const;

 private:
  using Timings = std::map<std::pair<std::string, double>, KernelTiming>;  // by family and price
  const Machine& machine_;
  const CostModel& cost_;
  std::map<size_t, Timings> seen_;                             // by type of device
  std::map<size_t, std::map<std::string, double>> workspace_;  // largest share, by type and family
};

}  // namespace windlass

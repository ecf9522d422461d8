// What the kernels of a step take at least, each cut as suits it best, on any set of devices.
#pragma once

#include <vector>

#include "windlass/search/search.h"

namespace windlass {

class WorkBound {
 public:
  // `training` is the step of the whole batch; it need not outlive this, the problem's machine
  // must.
  WorkBound(const Problem& problem, const TrainingGraph& training);

  // No step on these devices is shorter, without what it takes on the host beside.
  Seconds operator()(const std::vector<DeviceId>& devices) const;
  // The work of everything on one device.
  Seconds alone(DeviceId device) const { return Seconds(sums_[machine_[device].type]); }

 private:
  const Machine& machine_;
  std::vector<std::vector<double>> times_;  // by type that is there, and op
  std::vector<double> sums_;                // by type: of all ops
};

}  // namespace windlass

// What the kernels of a step take at least, each cut as suits it best, on any set of devices: those
// of both passes, and the updates, which a device or its host makes.
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
  // The same without updates.
  Seconds passes(const std::vector<DeviceId>& devices) const;
  // The work of everything on one device.
  Seconds alone(DeviceId device) const { return Seconds(sums_[machine_[device].type]); }

  // Of all updates on one device of a type, and on the fastest host, if one queue had them all.
  Seconds updates(size_t type) const { return Seconds(updates_[type]); }
  Seconds host_updates() const { return Seconds(host_updates_); }

 private:
  double least(const std::vector<DeviceId>& devices, bool updates) const;

  const Machine& machine_;
  std::vector<std::vector<double>> times_;  // by type that is there, and op
  std::vector<double> sums_;                // by type: of all ops
  std::vector<double> updates_;             // by type: of all weights
  double host_updates_ = 0;                 // the same on the fastest host
};

}  // namespace windlass

// Devices that share cores: where there are more of them than cores, each has the same share of
// one, whether the others compute or not, so that it is as fast at any time of a step. A part of
// the cores is left to what is not a device's: if none were, devices would be slower than their
// share whenever something is copied.
//
// What a kernel takes is the time its thread worked, divided by the share. A device has a clock
// that goes on by that with each kernel; its thread waits until real time has come there. If the
// thread was kept from its core, real time is ahead, and the next kernels need not wait: what
// follows a kernel could start when it ended by the clock of its device.
#pragma once

#include <chrono>

#include "windlass/sim/simulate.h"

namespace windlass {

// How many times longer a kernel of one thread takes on so many devices of this host than on one
// that has a core for itself.
double core_sharing(int devices, int threads);

class ComputePacer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ComputePacer(double sharing) : sharing_(sharing) {}
  bool paces() const { return sharing_ > 1; }

  // Around a kernel of the calling thread, which could have started at `ready`. Returns when it
  // ended by the clock of the device.
  void begin();
  Clock::time_point end(Clock::time_point ready);

 private:
  double sharing_;
  Nanoseconds worked_ = 0;
  Clock::time_point free_at_ = {};
};

}  // namespace windlass

// Measures what kernels take on this host beside what the analytic model says of them, so that a
// machine file can carry it (machine/machine.h, Calibration).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/differentiate.h"
#include "windlass/run/runtime.h"

namespace windlass {

struct CalibrationRequest {
  // Networks whose kernels are measured, forward and backward, each kind and shape once.
  std::vector<const TrainingGraph*> networks = {};
  const DeviceType& device;  // as the analytic model has it, without calibration
  int threads = 1, devices = 1;
  int repeats = 3;            // of everything, in rounds over all of it
  double most_seconds = 100;  // no round begins after that; the first is never cut short
  // What a copy of so many bytes between host memory and a device takes; none: as the machine says.
  std::function<Seconds(Bytes)> copy = {};
  std::function<bool()> stop = {};
  std::function<void(double part)> progress = {};
};

// Of one kernel: what the model says, and what was measured in each round.
struct KernelTiming {
  std::string family;
  Seconds analytic;
  std::vector<Seconds> measured;
};

struct CalibrationResult {
  Calibration calibration;
  std::vector<KernelTiming> kernels;
  // From one op to the next when they are tiny: the least of all rounds. Analytic times above are
  // those of a device whose launch_overhead is half of it, as an op of one kernel counts two.
  Seconds op_time;
  int rounds = 0;
  Seconds spent;
};

CalibrationResult calibrate(Runtime& runtime, const CalibrationRequest& request);

// The device type as it was measured.
DeviceType calibrated_type(DeviceType device, const CalibrationResult& result);

// Times copies in memory that no cache holds, by the thread that calls; of at most 64 MiB.
class CopyTimer {
 public:
  CopyTimer();
  Seconds time(Bytes bytes);

 private:
  std::vector<char> from_, to_;
  size_t at_ = 0;
};

// The line through times of copies, by relative errors.
struct CopyLine {
  Seconds latency;
  BytesPerSecond bandwidth;
};
CopyLine line_of(const std::vector<CopyTime>& copies);

// Ratios by family and size. Kernels of a family are put together while their analytic times are
// within a factor of four: the median of their ratios counts, the first and the last tenth are cut
// off the range, and where larger kernels would take less they are put together too.
Calibration summarise(const std::vector<KernelTiming>& kernels);

}  // namespace windlass

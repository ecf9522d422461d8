#include "windlass/plan/packs/op_grain.h"

#include "windlass/base/error.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {

OpGrainStep simulate_op_grain(const TrainingGraph& training, const PackStrategy& strategy,
                              const Machine& machine, const CostModel& cost) {
  OpGrainStep step;
  TaskGraph tasks;
  try {
    tasks = lower_packs(training, strategy, machine);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Unsupported && error.kind() != ErrorKind::Input) throw;
    step.obstacle = error.message();
    return step;
  }
  const SimResult result = simulate(tasks, machine, cost);
  step.fits = result.status == SimStatus::Done;
  step.missing = result.missing_bytes;
  step.host_lacks = result.failed_memory.valid() && !tasks[result.failed_memory].team.valid();
  step.seconds = static_cast<double>(result.makespan) * 1e-9;
  for (int32_t d = 0; d < strategy.devices(); ++d)
    step.device_peaks.push_back(result.peaks[static_cast<size_t>(d % strategy.depth)].bytes);
  step.host_peak = result.peaks.back().bytes;
  return step;
}

}  // namespace windlass

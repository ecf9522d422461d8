#include "windlass/run/step_calibration.h"

#include <algorithm>

#include "windlass/cost/calibrated.h"

namespace windlass {

void StepCalibration::add(const TaskGraph& tasks, const TaskTimes& measured) {
  std::map<std::pair<size_t, size_t>, Price> prices;  // by work and type
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks.tasks[i];
    if (moves(task.kind)) continue;
    const Lane& lane = tasks[tasks.task_lanes[tasks.lane_begin[i]]];
    if (lane.kind == LaneKind::Host) continue;
    const size_t type = tasks[lane.team].type;
    const auto index = static_cast<size_t>(task.price);
    const Work& work = tasks.works[index];
    const auto [known, first] = prices.try_emplace({index, type});
    if (first) known->second = cost_.price(work, machine_.device_types[type]);
    const Seconds analytic = known->second.time;
    const std::string family = calibrated_family(work);
    if (family.empty() || analytic.value <= 0) continue;
    KernelTiming& timing = seen_[type][{family, analytic.value}];
    if (!first) continue;
    const auto operands = static_cast<double>(largest_operands(work).value);
    if (operands > 0 && family != family_name(OpFamily::Convolution)) {
      double& share = workspace_[type][family];
      share = std::max(share, static_cast<double>(measured.workspace[i]) / operands);
    }
    timing.family = family;
    timing.analytic = analytic;
    timing.measured.push_back(Seconds(static_cast<double>(measured.duration[i]) * 1e-9));
  }
}

Machine StepCalibration::apply(Machine machine) const {
  for (const auto& [type, timings] : seen_) {
    std::vector<KernelTiming> kernels;
    for (const auto& [key, timing] : timings) kernels.push_back(timing);
    Calibration& calibration = machine.device_types[type].calibration;
    calibration = summarise(kernels);
    if (const auto shares = workspace_.find(type); shares != workspace_.end())
      calibration.workspace = shares->second;
  }
  return machine;
}

}  // namespace windlass

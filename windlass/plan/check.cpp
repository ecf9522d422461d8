#include "windlass/plan/check.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/plan/checker.h"
#include "windlass/plan/packs/pack_op_checker.h"
#include "windlass/sim/timeline_check.h"

namespace windlass {

std::vector<std::string> check_tasks(const TrainingGraph& training, const Machine& machine,
                                     const Strategy& strategy, const TaskGraph& tasks) {
  try {
    if (strategy.packs) return PackOpChecker(training, machine, *strategy.packs, tasks).run();
    check_strategy(training, machine, strategy);
  } catch (const Error& error) {
    return {error.message()};
  }
  return Checker(training, machine, strategy, tasks).run();
}

std::vector<std::string> check_run(const TaskGraph& tasks, const TaskTimes& times,
                                   const SimResult& result) {
  if (result.status != SimStatus::Done) return {"the simulation did not come to its end"};
  std::vector<std::string> findings = check_timeline(tasks, times, result);
  for (size_t m = 0; m < std::min(result.peaks.size(), tasks.memories.size()); ++m)
    if (result.peaks[m].bytes > tasks.memories[m].limit.value)
      findings.push_back(fmt::format("{}: its peak of {} bytes exceeds its limit of {}",
                                     tasks.memories[m].name, result.peaks[m].bytes,
                                     tasks.memories[m].limit.value));
  return findings;
}

Prediction predict(const Machine& machine, const TaskGraph& tasks, const SimResult& result,
                   std::string termination, Seconds overhead) {
  Prediction prediction;
  prediction.termination = std::move(termination);
  prediction.step_time = Seconds(static_cast<double>(result.makespan) * 1e-9) + overhead;
  prediction.device_peaks.assign(machine.devices.size(), 0);
  prediction.host_peaks.assign(machine.nodes.size(), 0);
  for (size_t m = 0; m < tasks.memories.size(); ++m) {
    const Memory& memory = tasks.memories[m];
    for (NodeId node : memory.hosts) prediction.host_peaks[node.index()] = result.peaks[m].bytes;
    if (!memory.team.valid()) continue;
    for (DeviceId device : tasks[memory.team].devices)
      prediction.device_peaks[device.index()] = result.peaks[m].bytes;
  }
  return prediction;
}

std::vector<std::string> check_prediction(const Prediction& prediction, const Machine& machine,
                                          const TaskGraph& tasks, const SimResult& result,
                                          Seconds overhead) {
  std::vector<std::string> findings;
  const Prediction found = predict(machine, tasks, result, prediction.termination, overhead);
  if (prediction.step_time != found.step_time)
    findings.push_back(fmt::format("the plan promises a step of {} s, it takes {} s",
                                   prediction.step_time.value, found.step_time.value));
  const auto compare = [&](const std::vector<int64_t>& promised, const std::vector<int64_t>& peaks,
                           const auto& names) {
    if (promised.size() != peaks.size()) {
      findings.push_back(
          fmt::format("the plan promises {} peaks for {}", promised.size(), peaks.size()));
      return;
    }
    for (size_t i = 0; i < peaks.size(); ++i)
      if (promised[i] != peaks[i])
        findings.push_back(fmt::format("{}: the plan promises a peak of {} bytes, it is {}",
                                       names[i].name, promised[i], peaks[i]));
  };
  compare(prediction.device_peaks, found.device_peaks, machine.devices);
  compare(prediction.host_peaks, found.host_peaks, machine.nodes);
  return findings;
}

}  // namespace windlass

#include "windlass/report/simulation.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "windlass/report/labels.h"
#include "windlass/report/lives.h"

namespace windlass {
namespace {

// Buffers under the names of their tensors, those of equal layers together; the largest first.
class AliveTensors {
 public:
  void add(const TaskGraph& graph, BufferId id) {
    const Buffer& buffer = graph[id];
    Entry& entry = entries_[{buffer.tensor, buffer.kind, buffer.tensor.valid() ? BufferId() : id}];
    if (!entry.first.valid()) entry.first = id;
    ++entry.buffers;
    entry.bytes += buffer.bytes.value;
  }

  std::vector<AliveTensor> largest(const TaskGraph& graph, const Graph* training,
                                   size_t count) const {
    std::map<std::pair<std::string, BufferKind>, Entry> folded;
    for (const auto& [key, entry] : entries_) {
      const std::string name = numbers_folded(buffer_label(graph, training, entry.first));
      Entry& all = folded[{name, graph[entry.first].kind}];
      if (!all.first.valid()) all.first = entry.first;
      ++all.tensors;
      all.buffers += entry.buffers;
      all.bytes += entry.bytes;
    }
    std::vector<AliveTensor> tensors;
    for (const auto& [key, entry] : folded)
      tensors.push_back(
          {entry.tensors == 1 ? buffer_label(graph, training, entry.first) : key.first, key.second,
           entry.buffers, Bytes(entry.bytes)});
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const AliveTensor& a, const AliveTensor& b) { return a.bytes > b.bytes; });
    if (tensors.size() > count) tensors.resize(count);
    return tensors;
  }

 private:
  struct Entry {
    BufferId first;
    int64_t tensors = 0;
    int64_t buffers = 0;
    int64_t bytes = 0;
  };
  std::map<std::tuple<TensorId, BufferKind, BufferId>, Entry> entries_;
};

std::vector<MemoryReport> report_memories(const SimulatedStep& step, const Graph* training,
                                          const Machine& machine, size_t largest) {
  const TaskGraph& graph = step.tasks;
  const SimResult& result = step.whole();
  const std::vector<Life> lives = buffer_lives(graph, result);
  const std::vector<MemoryUse> uses = memory_uses(graph, result, kept_between_passes(graph));
  std::vector<MemoryReport> reports(graph.memories.size());
  std::vector<AliveTensors> alive(graph.memories.size());
  for (size_t m = 0; m < reports.size(); ++m) {
    const Memory& memory = graph.memories[m];
    const MemoryPeak& peak = result.peaks[m];
    MemoryReport& report = reports[m];
    report.name = memory.name;
    report.hosts = memory.hosts;
    report.limit = memory.limit;
    if (memory.team.valid()) {
      report.devices = graph[memory.team].devices;
      // The machine's, whatever the strategy has as a cap.
      report.limit = machine[report.devices.front()].limit;
      for (DeviceId device : report.devices)
        report.limit = std::min(report.limit, machine[device].limit);
    }
    report.peak = Bytes(peak.bytes);
    report.peak_time = seconds(peak.time);
    if (peak.task.valid()) report.peak_task = task_label(graph, training, peak.task);
    for (size_t k = 0; k < kBufferKinds; ++k) report.most[k] = Bytes(uses[m].most[k]);
    report.kept = Bytes(uses[m].kept);
  }
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    const size_t m = buffer.memory.index();
    if (!lives[i].at(result.peaks[m].time)) continue;
    reports[m].at_peak[static_cast<size_t>(buffer.kind)] += buffer.bytes;
    alive[m].add(graph, BufferId(i));
  }
  for (size_t i = 0; i < graph.size(); ++i) {
    if (step.times.workspace[i] <= 0) continue;
    const TeamId team = graph[graph.lanes_of(TaskId(i)).front()].team;
    if (!team.valid()) continue;
    const size_t m = graph[team].memory.index();
    const Nanoseconds time = result.peaks[m].time;
    if (result.start[i] >= 0 && result.start[i] <= time && time < result.end[i])
      reports[m].workspace += Bytes(step.times.workspace[i]);
  }
  for (size_t m = 0; m < reports.size(); ++m)
    reports[m].largest = alive[m].largest(graph, training, largest);
  return reports;
}

// For each shared link, how long at least one task that loads it is under way.
std::vector<Nanoseconds> busy_times(const TaskGraph& graph, const SimResult& result) {
  std::vector<TaskId> by_start;
  for (size_t i = 0; i < graph.size(); ++i)
    if (moves(graph.tasks[i].kind) && result.end[i] >= 0) by_start.emplace_back(i);
  std::stable_sort(by_start.begin(), by_start.end(), [&](TaskId a, TaskId b) {
    return result.start[a.index()] < result.start[b.index()];
  });
  std::vector<Nanoseconds> busy(graph.links.size(), 0), reached(graph.links.size(), 0);
  for (TaskId task : by_start) {
    const Nanoseconds end = result.end[task.index()];
    for (const SharedLoad& load : graph.loads[static_cast<size_t>(graph[task].price)]) {
      const auto link = static_cast<size_t>(load.link);
      const Nanoseconds from = std::max(reached[link], result.start[task.index()]);
      if (end <= from) continue;
      busy[link] += end - from;
      reached[link] = end;
    }
  }
  return busy;
}

std::vector<LinkReport> report_links(const TaskGraph& graph, const SimResult& result,
                                     const Machine& machine) {
  std::map<LinkDirection, Bytes> bytes;
  for (const LinkLoad& load : link_bytes(graph, result)) bytes[load.direction] = load.bytes;
  const std::vector<Nanoseconds> busy = busy_times(graph, result);
  const double makespan = static_cast<double>(std::max<Nanoseconds>(1, result.makespan));
  std::vector<LinkReport> reports;
  for (size_t i = 0; i < graph.links.size(); ++i) {
    const SharedLink& link = graph.links[i];
    if (link.directions.empty()) continue;
    LinkReport report{
        direction_label(machine, link.directions.front()), link.directions, {}, link.bandwidth};
    Bytes most;
    for (const LinkDirection& direction : link.directions) {
      report.bytes.push_back(bytes[direction]);
      most = std::max(most, bytes[direction]);
    }
    if (most.value == 0) continue;
    report.busy = static_cast<double>(busy[i]) / makespan;
    report.utilisation = (most / link.bandwidth).value / (makespan * 1e-9);
    reports.push_back(std::move(report));
  }
  std::stable_sort(reports.begin(), reports.end(), [](const LinkReport& a, const LinkReport& b) {
    return a.utilisation > b.utilisation;
  });
  return reports;
}

MemoryFailure report_failure(const SimulatedStep& step, const Graph* training, size_t largest) {
  const TaskGraph& graph = step.tasks;
  const SimResult& result = step.result;
  MemoryFailure failure;
  failure.memory = graph[result.failed_memory].name;
  failure.limit = graph[result.failed_memory].limit;
  failure.missing = Bytes(result.missing_bytes);
  failure.time = seconds(result.makespan);
  if (result.failed_task.valid()) failure.task = task_label(graph, training, result.failed_task);
  AliveTensors alive;
  for (BufferId id : alive_at(graph, result, result.failed_memory, result.makespan))
    alive.add(graph, id);
  failure.alive = alive.largest(graph, training, largest);
  failure.minimum_limit = step.least_limit;
  return failure;
}

Breakdown mean_of(const std::vector<TeamReport>& teams) {
  using Part = Nanoseconds Breakdown::*;
  Breakdown mean;
  for (Part part : {&Breakdown::compute, &Breakdown::recompute, &Breakdown::update,
                    &Breakdown::communication, &Breakdown::swap, &Breakdown::bubble}) {
    double sum = 0, devices = 0;
    for (const TeamReport& team : teams) {
      sum += static_cast<double>(team.time.*part) * static_cast<double>(team.devices);
      devices += static_cast<double>(team.devices);
    }
    mean.*part = static_cast<Nanoseconds>(devices > 0 ? sum / devices : 0);
  }
  return mean;
}

}  // namespace

double SimulationReport::samples_per_second() const {
  return step_time.value > 0 ? static_cast<double>(facts.samples) / step_time.value : 0;
}

double SimulationReport::bytes_per_parameter() const {
  int64_t most = 0;
  for (const MemoryReport& memory : memories)
    if (!memory.devices.empty()) most = std::max(most, memory.peak.value);
  return facts.parameters > 0 ? static_cast<double>(most) / static_cast<double>(facts.parameters)
                              : 0;
}

SimulationReport report_simulation(const SimulatedStep& step, const Graph* training,
                                   const Machine& machine, StepFacts facts, size_t largest) {
  const TaskGraph& graph = step.tasks;
  const SimResult& result = step.whole();
  SimulationReport report;
  report.facts = std::move(facts);
  if (step.unlimited) report.failure = report_failure(step, training, largest);
  report.step_time = step.step_time();
  report.overhead = step.overhead;
  report.tasks = graph.size();
  report.use = utilisation_of(step, machine, report.facts.model_flops);
  const std::vector<Breakdown> parts = break_down(graph, result);
  for (size_t t = 0; t < graph.teams.size(); ++t) {
    report.teams.push_back({team_label(graph, TeamId(t)), graph.teams[t].devices.size(), parts[t]});
    report.devices += graph.teams[t].devices.size();
  }
  report.all_devices = machine.devices.size();
  report.mean = mean_of(report.teams);
  std::stable_sort(
      report.teams.begin(), report.teams.end(),
      [](const TeamReport& a, const TeamReport& b) { return a.time.compute < b.time.compute; });
  report.memories = report_memories(step, training, machine, largest);
  for (MemoryReport& memory : report.memories)
    if (!memory.devices.empty())
      memory.footprint =
          footprint(report.facts.runner, machine, memory.devices.front(), memory.peak);
  report.links = report_links(graph, result, machine);
  return report;
}

std::vector<int32_t> memory_of_devices(const SimulationReport& report, const Machine& machine) {
  std::vector<int32_t> memory(machine.devices.size(), -1);
  for (size_t m = 0; m < report.memories.size(); ++m)
    for (DeviceId device : report.memories[m].devices)
      memory[device.index()] = static_cast<int32_t>(m);
  return memory;
}

std::string failure_reason(const MemoryFailure& failure) {
  const std::string what =
      failure.task.empty() ? "what must be there before the step begins" : failure.task;
  return fmt::format("{}: {} are missing for {} at a limit of {}", failure.memory,
                     format_bytes(failure.missing), what, format_bytes(failure.limit));
}

}  // namespace windlass

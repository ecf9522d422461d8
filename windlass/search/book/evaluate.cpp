#include "windlass/search/book/evaluate.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {

namespace {

Seconds overhead_of(const Problem& problem, const std::vector<DeviceId>& devices) {
  Seconds overhead;
  for (DeviceId device : devices)
    overhead = std::max(overhead, problem.cost.step_overhead(problem.machine.type_of(device)));
  return overhead;
}

}  // namespace

Seconds step_time(const Problem& problem, Nanoseconds makespan) {
  return Seconds(static_cast<double>(makespan) * 1e-9) +
         overhead_of(problem, all_devices(problem.machine));
}

Nanoseconds spared_on_host(const Problem& problem, const Strategy& strategy) {
  const Seconds spared = overhead_of(problem, all_devices(problem.machine)) -
                         overhead_of(problem, used_devices(strategy));
  return std::llround(spared.value * 1e9);
}

Evaluator::Evaluator(const Problem& problem, const TrainingGraph& training)
    : problem_(problem),
      training_(training),
      lowering_(training, problem.machine),
      pricer_(problem.machine, problem.cost),
      bound_(problem, training) {}

const TaskTimes& Evaluator::prepare(const Strategy& strategy) {
  ++evaluations_;
  tasks_ = &lowering_.lower(strategy);
  units_ += static_cast<int64_t>(tasks_->size());
  // Prices are kept by the index of a work, which those of packs do not keep.
  times_ = strategy.packs ? price_tasks(*tasks_, problem_.machine, problem_.cost)
                          : pricer_.price(*tasks_);
  if (problem_.reprice) problem_.reprice(training_, *tasks_, times_);
  return times_;
}

Evaluation Evaluator::evaluate(const Strategy& strategy) { return simulate(strategy, true); }
std::optional<Evaluation> Evaluator::evaluate_below(const Strategy& strategy, Nanoseconds most) {
  const Nanoseconds least = least_ = bound_(strategy, most);
  if (least > most) return std::nullopt;
  least_ = 0;
  if (bound_.exact()) {
    ++walked_;
    return Evaluation{.fits = true, .time = least};
  }
  if (bound_.too_large(strategy)) return std::nullopt;
  return simulate(strategy, true);
}
Evaluation Evaluator::evaluate_unlimited(const Strategy& strategy) {
  return simulate(strategy, false);
}

Evaluation Evaluator::simulate(const Strategy& strategy, bool limits) {
  const TaskTimes& times = prepare(strategy);
  const SimResult& result = simulator_.run(*tasks_, times, {.enforce_limits = limits});
  ensure(result.status != SimStatus::Deadlock, "tasks of the step wait for each other");
  Evaluation found = {.fits = result.status == SimStatus::Done,
                      .time = result.makespan,
                      .missing = result.missing_bytes};
  found.host_lacks = result.failed_memory.valid() && !(*tasks_)[result.failed_memory].team.valid();
  found.hosts_fit = true;
  for (size_t m = 0; m < tasks_->memories.size(); ++m) {
    const Memory& memory = tasks_->memories[m];
    if (memory.team.valid())
      found.peak = std::max(found.peak, result.peaks[m].bytes);
    else
      found.hosts_fit = found.hosts_fit && result.peaks[m].bytes <= memory.limit.value;
  }
  return found;
}

Evaluator::Run Evaluator::run_unlimited(const Strategy& strategy) {
  const TaskTimes& times = prepare(strategy);
  const SimResult& result = simulator_.run(*tasks_, times, {.enforce_limits = false});
  ensure(result.status == SimStatus::Done, "tasks of the step wait for each other");
  return {*tasks_, times, result};
}

namespace {

// By memory.
std::vector<int64_t> bytes_at_start(const TaskGraph& tasks) {
  std::vector<int64_t> bytes(tasks.memories.size(), 0);
  for (const Buffer& buffer : tasks.buffers)
    if (buffer.at_start) bytes[buffer.memory.index()] += buffer.bytes.value;
  return bytes;
}

}  // namespace

int64_t Evaluator::standing(const Strategy& strategy) {
  prepare(strategy);
  const std::vector<int64_t> bytes = bytes_at_start(*tasks_);
  int64_t most = 0;
  for (size_t m = 0; m < bytes.size(); ++m)
    if (tasks_->memories[m].team.valid()) most = std::max(most, bytes[m]);
  return most;
}

BytesAtStart Evaluator::at_start() const {
  const std::vector<int64_t> bytes = bytes_at_start(*tasks_);
  BytesAtStart result;
  for (size_t m = 0; m < bytes.size(); ++m) {
    const Memory& memory = tasks_->memories[m];
    BytesAtStart::Place& place = result.places.emplace_back();
    place.bytes = bytes[m];
    if (memory.team.valid())
      place.devices = (*tasks_)[memory.team].devices;
    else
      place.host_limit = memory.limit.value;
  }
  return result;
}

bool BytesAtStart::fit(const Machine& machine, const Strategy& strategy) const {
  return std::ranges::all_of(places, [&](const Place& place) {
    if (place.devices.empty()) return place.bytes <= place.host_limit;
    return std::ranges::all_of(place.devices, [&](DeviceId device) {
      return place.bytes <= usable_memory(machine[device], strategy).value;
    });
  });
}

std::optional<int64_t> Evaluator::least_limit(const Strategy& strategy) {
  const TaskTimes& times = prepare(strategy);
  TaskGraph copy = *tasks_;
  const auto runs = [&](int64_t limit) {
    for (Memory& memory : copy.memories)
      if (memory.team.valid()) memory.limit = Bytes(limit);
    return simulator_.run(copy, times).status == SimStatus::Done;
  };
  const SimResult& free = simulator_.run(copy, times, {.enforce_limits = false});
  const std::vector<int64_t> bytes = bytes_at_start(copy);
  int64_t enough = 0, too_little = 0;
  for (size_t m = 0; m < copy.memories.size(); ++m) {
    if (!copy.memories[m].team.valid()) continue;
    enough = std::max(enough, free.peaks[m].bytes);
    too_little = std::max(too_little, bytes[m]);
  }
  --too_little;
  if (!runs(enough)) return std::nullopt;
  while (enough - too_little > 1) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    (runs(middle) ? enough : too_little) = middle;
  }
  return enough;
}

const std::vector<Nanoseconds>& Evaluator::forward_times(const Strategy& plain) {
  if (!forward_times_.empty()) return forward_times_;
  const TaskTimes& times = prepare(plain);
  forward_times_.assign(training_.forward_ops, 0);
  Nanoseconds begun = 0;  // by the task before
  for (size_t i = 0; i < tasks_->size(); ++i) {
    const Task& task = tasks_->tasks[i];
    if (task.kind != TaskKind::Forward) continue;
    if (!task.begins) forward_times_[task.op.index()] = begun + times.duration[i];
    begun = task.begins ? times.duration[i] : 0;
  }
  return forward_times_;
}

}  // namespace windlass

// How a step begins, and what is said of it when it is over: by this process, and by all of them.
#include <algorithm>
#include <cstring>
#include <map>

#include "windlass/base/error.h"
#include "windlass/runtime/executor_state.h"

namespace windlass {

void Executor::State::begin() {
  const auto& jobs = graph_of_jobs.jobs;
  start.assign(jobs.size(), -1);
  end.assign(jobs.size(), -1);
  watchdog.begin_step();
  for (const auto& gate : graph_of_jobs.gates) gate->begin_step();
  for (size_t j = 0; j < jobs.size(); ++j) {
    before[j] = jobs[j].before;
    asking[j] = static_cast<int32_t>(jobs[j].asks.size());
  }
  left = static_cast<int64_t>(jobs.size());
  // As one that is active, so that the step is not over before all have been told.
  ++active;
  for (size_t j = 0; j < jobs.size(); ++j)
    if (jobs[j].before == 0) come_ready(static_cast<int32_t>(j));
  --active;
}

StepOutcome Executor::run(const StepRequest& request) {
  State& state = *state_;
  if (state.failed) fail(ErrorKind::Runtime, "the run has failed already");
  for (const auto& arena : state.arenas) arena->reset_peak();
  state.began = State::Clock::now();
  const double shared_now = state.own.alone() ? 0 : state.options.ranks->now();
  try {
    state.runner->begin_step(request);
    state.load_inputs(request);
  } catch (...) {
    state.set_error(std::current_exception(), "");
    throw;
  }
  state.begin();
  state.wait_for_end();
  for (const Program::Carry& carry : state.program.carries) state.slots->pass(carry.from, carry.to);
  StepOutcome outcome;
  outcome.time = state.now();
  outcome.peaks.assign(state.tasks.memories.size(), 0);
  outcome.device_peaks.assign(state.machine_devices, 0);
  outcome.links = state.runner->links().bytes();
  for (size_t j = 0; j < state.graph_of_jobs.jobs.size(); ++j) {
    const Job& job = state.graph_of_jobs.jobs[j];
    outcome.parts.push_back({job.task, state.device_of(job), state.start[j], state.end[j]});
  }
  for (size_t m = 0; m < state.arenas.size(); ++m) {
    const DeviceId device = state.program.memories[m].device;
    if (device.valid()) outcome.device_peaks[device.index()] = state.arenas[m]->statistics().peak;
    int64_t& peak = outcome.peaks[state.program.memories[m].memory.index()];
    peak = std::max(peak, state.arenas[m]->statistics().peak);
  }
  if (!state.own.alone()) try {
      state.tell_outcome(outcome, shared_now);
    } catch (...) {
      state.set_error(std::current_exception(), "");
      std::rethrow_exception(state.error);
    }
  outcome.loss = state.runner->loss();
  outcome.gradient_norm = state.runner->gradient_norm();
  outcome.start.assign(state.tasks.size(), -1);
  outcome.end.assign(state.tasks.size(), -1);
  for (const PartTime& part : outcome.parts) {
    const size_t task = part.task.index();
    if (outcome.end[task] >= part.end) continue;
    outcome.start[task] = part.start;
    outcome.end[task] = part.end;
  }
  return outcome;
}

namespace {

// What one rank tells the others of a step.
class StepNote {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  template <class T>
  T take() {
    T value;
    if (text.size() - at_ < sizeof(T)) fail(ErrorKind::Runtime, "a note of a step is cut off");
    std::memcpy(&value, text.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string text;

 private:
  size_t at_ = 0;
};

}  // namespace

// Losses are each made by one process, peaks are those of its own memories.
void Executor::State::tell_outcome(StepOutcome& outcome, double shared_now) {
  auto& losses = runner->seen_losses();
  StepNote mine;
  mine.put(shared_now);
  for (const auto& list : losses)
    for (double loss : list) mine.put(loss);
  mine.put(runner->gradient_norm());
  for (int64_t peak : outcome.peaks) mine.put(peak);
  for (int64_t peak : outcome.device_peaks) mine.put(peak);
  mine.put(outcome.links.size());
  for (const LinkLoad& load : outcome.links) mine.put(load);
  mine.put(outcome.parts.size());
  for (const PartTime& part : outcome.parts) mine.put(part);
  std::vector<std::string> told;
  try {
    told = options.ranks->tell_all(mine.text);
  } catch (const Error& lost) {
    throw lost.within("end of the step");
  }

  for (auto& list : losses) std::ranges::fill(list, 0);
  outcome.parts.clear();
  double norm = 0, earliest = shared_now;
  std::map<LinkDirection, int64_t> links;
  std::vector<std::pair<double, std::vector<PartTime>>> parts;
  for (const std::string& text : told) {
    StepNote note;
    note.text = text;
    const auto began_at = note.take<double>();
    earliest = std::min(earliest, began_at);
    for (auto& list : losses)
      for (double& loss : list) loss += note.take<double>();
    norm = std::max(norm, note.take<double>());
    for (int64_t& peak : outcome.peaks) peak = std::max(peak, note.take<int64_t>());
    for (int64_t& peak : outcome.device_peaks) peak = std::max(peak, note.take<int64_t>());
    for (auto count = note.take<size_t>(); count > 0; --count) {
      const auto load = note.take<LinkLoad>();
      links[load.direction] += load.bytes.value;
    }
    auto& list = parts.emplace_back(began_at, std::vector<PartTime>{}).second;
    for (auto count = note.take<size_t>(); count > 0; --count) {
      list.push_back(note.take<PartTime>());
      if (list.back().task.index() >= tasks.size())
        fail(ErrorKind::Runtime, "a note of a step names a task that there is not");
    }
  }
  runner->set_gradient_norm(norm);
  outcome.links.clear();
  for (const auto& [direction, bytes] : links) outcome.links.push_back({direction, Bytes(bytes)});
  // Times are from the earliest beginning on. What several processes do together is one.
  std::map<std::pair<TaskId, DeviceId>, PartTime> all;
  for (auto& [began_at, list] : parts)
    for (PartTime& part : list) {
      const auto shift = static_cast<Nanoseconds>((began_at - earliest) * 1e9);
      part.start += shift;
      part.end += shift;
      outcome.time = std::max(outcome.time, part.end);
      PartTime& known = all.try_emplace({part.task, part.device}, part).first->second;
      known.start = std::min(known.start, part.start);
      known.end = std::max(known.end, part.end);
    }
  for (const auto& [which, part] : all) outcome.parts.push_back(part);
}

}  // namespace windlass

// How a row of steps begins, and what is said of each when it is over: by this process, and by all
// of them.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "windlass/base/error.h"
#include "windlass/runtime/executor_state.h"

namespace windlass {

void Executor::State::begin() {
  const auto& jobs = graph_of_jobs.jobs;
  start.assign(jobs.size(), -1);
  end.assign(jobs.size(), -1);
  watchdog.begin_step();
  for (const auto& gate : graph_of_jobs.gates)
    if (gate) gate->begin_step();
  for (size_t j = 0; j < jobs.size(); ++j) {
    before[j] = jobs[j].before;
    asking[j] = static_cast<int32_t>(jobs[j].asks.size());
    due[j] = 0;
  }
  left = static_cast<int64_t>(jobs.size());
  for (auto& count : left_of) count = 0;
  for (const Job& job : jobs) ++left_of[program.step_of(job.task)];
  // As one that is active, so that the step is not over before all have been told.
  ++active;
  for (size_t j = 0; j < jobs.size(); ++j)
    if (jobs[j].before == 0) come_ready(static_cast<int32_t>(j));
  --active;
}

StepOutcome Executor::run(const StepRequest& request) {
  begin({request});
  return wait();
}

void Executor::begin(std::vector<StepRequest> requests) {
  State& state = *state_;
  if (state.failed) fail(ErrorKind::Runtime, "the run has failed already");
  for (const auto& device : state.devices) device->reset_peak();
  state.began = State::Clock::now();
  state.shared_began = state.own.alone() ? 0 : state.options.ranks->now();
  state.waited = 0;
  state.ended_at = 0;
  try {
    state.runner->begin(std::move(requests));
    state.inputs->begin(state.runner->request(0));
  } catch (...) {
    state.set_error(std::current_exception());
    throw;
  }
  state.begin();
}

StepOutcome Executor::wait() {
  State& state = *state_;
  ensure(state.waited < state.left_of.size(), "no step of the row is left");
  state.wait_for_end();
  StepOutcome outcome = state.outcome_of(state.waited);
  if (!state.own.alone()) try {
      state.tell_outcome(outcome);
    } catch (...) {
      state.set_error(std::current_exception());
      std::rethrow_exception(state.error);
    }
  outcome.loss = state.runner->loss(state.waited);
  outcome.gradient_norm = state.runner->gradient_norm(state.waited);
  outcome.start.assign(state.program.tasks_each(), -1);
  outcome.end.assign(state.program.tasks_each(), -1);
  for (const PartTime& part : outcome.parts) {
    const size_t task = part.task.index();
    if (outcome.end[task] >= part.end) continue;
    outcome.start[task] = part.start;
    outcome.end[task] = part.end;
  }
  ++state.waited;
  return outcome;
}

void Executor::cancel() {
  State& state = *state_;
  state.set_error(std::make_exception_ptr(Error(ErrorKind::Runtime, "the run was ended")));
  std::unique_lock lock(state.mutex);
  state.step_over.wait(lock, [&] { return state.active == 0 || state.abandoned; });
}

// As this process has seen it.
StepOutcome Executor::State::outcome_of(size_t step) {
  StepOutcome outcome;
  Nanoseconds began_at = step == 0 ? 0 : std::numeric_limits<Nanoseconds>::max(), over = 0;
  for (size_t j = 0; j < graph_of_jobs.jobs.size(); ++j) {
    const Job& job = graph_of_jobs.jobs[j];
    if (program.step_of(job.task) != step) continue;
    for (DeviceId device : told_at(job))
      outcome.parts.push_back({program.in_step(job.task), device, start[j], end[j]});
    began_at = std::min(began_at, start[j]);
    over = std::max(over, end[j]);
  }
  for (PartTime& part : outcome.parts) {
    part.start -= began_at;
    part.end -= began_at;
  }
  if (!program.order.empty()) std::ranges::stable_sort(outcome.parts, {}, &PartTime::task);
  if (step + 1 == left_of.size()) {
    for (const Program::Carry& carry : program.carries) slots->pass(carry.from, carry.to);
    over = now();
  }
  outcome.time = over - ended_at;
  ended_at = over;
  outcome.peaks.assign(tasks.memories.size(), 0);
  outcome.device_peaks.assign(machine_devices, 0);
  outcome.links = runner->links().bytes(step);
  for (size_t m = 0; m < devices.size(); ++m) {
    const DeviceId device = program.memories[m].device;
    const int64_t most = devices[m]->statistics().peak;
    if (device.valid()) outcome.device_peaks[device.index()] = most;
    int64_t& peak = outcome.peaks[program.memories[m].memory.index()];
    peak = std::max(peak, most);
  }
  return outcome;
}

std::vector<DeviceId> Executor::State::told_at(const Job& job) const {
  std::vector<DeviceId> found;
  if (job.part < 0 && !own.alone())
    for (DeviceId device : devices_of(tasks, job.task))
      for (size_t m = 0; m < program.memories.size(); ++m)
        if (program.memories[m].device == device && own.has_memory(static_cast<int32_t>(m)))
          found.push_back(device);
  if (found.empty()) found.push_back(device_of(job));
  return found;
}

namespace {

// Clocks are set anew after so many seconds, or so many times what that took.
constexpr double kAlignSeconds = 2, kAlignShare = 100;

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
void Executor::State::tell_outcome(StepOutcome& outcome) {
  auto& losses = runner->seen_losses(waited);
  StepNote mine;
  mine.put(options.ranks->now() >= next_alignment);
  mine.put(options.ranks->clock_error());
  mine.put(shared_began);
  for (const auto& list : losses)
    for (double loss : list) mine.put(loss);
  mine.put(runner->gradient_norm(waited));
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
  double norm = 0, earliest = shared_began, clock_error = 0;
  bool align = false;
  std::map<LinkDirection, int64_t> links;
  std::vector<std::pair<double, std::vector<PartTime>>> parts;
  for (const std::string& text : told) {
    StepNote note;
    note.text = text;
    const bool old = note.take<bool>();
    if (&text == told.data()) align = old;
    clock_error = std::max(clock_error, note.take<double>());
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
  runner->set_gradient_norm(waited, norm);
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
  // Two ranks are each off from rank 0.
  outcome.clock_error = static_cast<Nanoseconds>(2 * clock_error * 1e9);
  if (!align) return;
  const double begun = options.ranks->now();
  options.ranks->align_clock();
  const double took = options.ranks->now() - begun;
  next_alignment = options.ranks->now() + std::max(kAlignSeconds, kAlignShare * took);
}

}  // namespace windlass

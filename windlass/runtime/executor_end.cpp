// How a step ends: when all tasks have, by an error, or because nothing goes on.
#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/runtime/executor_state.h"

namespace windlass {

// The first one counts.
void Executor::State::set_error(std::exception_ptr thrown, int32_t job) {
  const std::lock_guard lock(mutex);
  if (error) return;
  error = std::move(thrown);
  if (job < 0) {
    failed_step = waited;
  } else {
    const Job& at = graph_of_jobs.jobs[static_cast<size_t>(job)];
    failed_at = runner->label(at.task, at.part);
    failed_step = program.step_of(at.task);
  }
  failed = true;
  runner->stop();
  if (options.ranks == nullptr) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& given) {
    options.ranks->fail(given.what());
  } catch (...) {
    options.ranks->fail("an error without a name");
  }
}

// `running`: those that are under way.
StepState Executor::State::look_at(std::vector<int32_t>& running) const {
  StepState state = {graph_of_jobs, program, watchdog, {}, [this](int32_t id) {
                       const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
                       return runner->label(job.task, job.part);
                     }};
  for (size_t j = 0; j < graph_of_jobs.jobs.size(); ++j) {
    const int32_t count = before[j];
    JobState found = count > 0 ? JobState::Waits : JobState::Ready;
    if (count == 0 && asking[j] > 0) found = JobState::Asks;
    if (count == kUnderWay) found = JobState::UnderWay;
    if (count == kEnded) found = JobState::Ended;
    state.jobs.push_back(found);
    if (found == JobState::UnderWay) running.push_back(static_cast<int32_t>(j));
  }
  return state;
}

bool Executor::State::step_ended() const {
  return active == 0 || (waited + 1 < left_of.size() && left_of[waited] == 0);
}

// Returns when all tasks of the step that is waited for have ended, and of the last one of a row
// all threads are done; throws what ended the row otherwise, when no thread is at a task any more.
// While a job is ready or runs `active` is not 0: if it is 0 before all have ended, none ever will.
void Executor::State::wait_for_end() {
  const auto pause = std::chrono::nanoseconds(watchdog.interval());
  auto looked = Clock::now();
  while (true) {
    {
      std::unique_lock lock(mutex);
      if (step_over.wait_for(lock, pause, [&] { return step_ended(); })) break;
    }
    std::vector<int32_t> running;
    const StepState state = look_at(running);
    const auto when = Clock::now();
    const Nanoseconds elapsed = std::chrono::nanoseconds(when - looked).count();
    looked = when;
    const Watchdog::Findings found = watchdog.look(elapsed, running, left);
    if (options.watch.late)
      for (const Watchdog::Late& late : found.late) options.watch.late(describe_late(state, late));
    if (!found.stalled) continue;
    if (!abandoned) {
      abandoned = true;  // unless they do come back
      const Seconds quiet(static_cast<double>(found.unchanged) * 1e-9);
      set_error(std::make_exception_ptr(Error(
          ErrorKind::Runtime, fmt::format("nothing has gone on for {}; {}", format_seconds(quiet),
                                          describe_standstill(state)))));
      watchdog.expect_end();
      continue;
    }
    if (options.watch.stuck) try {
        std::rethrow_exception(error);
      } catch (const Error& given) {
        options.watch.stuck(given);
      }
    std::rethrow_exception(error);
  }
  if (left_of[waited] == 0 && waited + 1 < left_of.size()) return;
  abandoned = false;
  if (!failed && left > 0) {
    std::vector<int32_t> none;
    set_error(std::make_exception_ptr(
        Error(ErrorKind::Runtime, "no task can go on; " + describe_standstill(look_at(none)))));
  }
  if (error) std::rethrow_exception(error);
}

// What lies in a memory, for messages. Other threads go on meanwhile: it is as good as a look.
std::string Executor::State::list_alive(size_t memory) const {
  std::vector<std::pair<int64_t, BufferId>> alive;
  for (size_t s = 0; s < program.slots.size(); ++s)
    if (program.slots[s].memory == static_cast<int32_t>(memory) &&
        slots->seen_alive(static_cast<int32_t>(s)))
      alive.emplace_back(program.slots[s].bytes, program.slots[s].buffer);
  std::ranges::stable_sort(alive, std::greater<>{}, &std::pair<int64_t, BufferId>::first);
  std::string text = "alive there:";
  constexpr size_t kListed = 12;
  for (size_t i = 0; i < std::min(alive.size(), kListed); ++i) {
    const Buffer& buffer = tasks[alive[i].second];
    text += fmt::format("\n  {:>12}  {} ({})", format_bytes(Bytes(alive[i].first)),
                        buffer.tensor.valid() ? training.graph[buffer.tensor].name : "",
                        buffer_kind_name(buffer.kind));
  }
  if (alive.size() > kListed) text += fmt::format("\n  and {} more", alive.size() - kListed);
  return text;
}

}  // namespace windlass

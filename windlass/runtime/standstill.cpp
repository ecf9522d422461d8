#include "windlass/runtime/standstill.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/units.h"

namespace windlass {
namespace {

// Most that are named of one sort.
constexpr size_t kNamed = 4;

std::string duration_text(Nanoseconds time) {
  return format_seconds(Seconds(static_cast<double>(time) * 1e-9));
}

// "a; b and 3 more".
std::string list_of(const std::vector<std::string>& all) {
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kNamed); ++i) text += (i > 0 ? "; " : "") + all[i];
  if (all.size() > kNamed) text += fmt::format(" and {} more", all.size() - kNamed);
  return text;
}

// What a job that is not under way waits for.
std::string waits_for(const StepState& state, int32_t id) {
  const Job& job = state.graph.jobs[static_cast<size_t>(id)];
  switch (state.jobs[static_cast<size_t>(id)]) {
    case JobState::Asks: {
      std::vector<std::string> memories;
      for (const Job::Ask& ask : job.asks) {
        const MemoryGate::Entry& entry = state.graph.gates[static_cast<size_t>(ask.gate)]
                                             ->book->entries[static_cast<size_t>(ask.rank)];
        memories.push_back(fmt::format("{} in {}",
                                       format_bytes(Bytes(entry.bytes + entry.workspace)),
                                       state.program.memories[static_cast<size_t>(ask.gate)].name));
      }
      return list_of(memories);
    }
    case JobState::Ready: return "its thread";
    default: break;
  }
  for (size_t j = 0; j < state.graph.jobs.size(); ++j)
    if (state.jobs[j] != JobState::Ended &&
        std::ranges::find(state.graph.jobs[j].next, id) != state.graph.jobs[j].next.end())
      return state.label(static_cast<int32_t>(j));
  return "nothing";
}

}  // namespace

std::string describe_late(const StepState& state, const Watchdog::Late& late) {
  std::vector<std::string> waiting;
  for (int32_t next : state.graph.jobs[static_cast<size_t>(late.job)].next)
    waiting.push_back(state.label(next));
  return fmt::format("{}: late: under way for {}, predicted {}{}{}", state.label(late.job),
                     duration_text(late.lasts), duration_text(late.predicted),
                     waiting.empty() ? "" : "; waiting for it: ", list_of(waiting));
}

std::string describe_standstill(const StepState& state) {
  std::vector<std::string> running, waiting;
  for (size_t j = 0; j < state.jobs.size(); ++j) {
    const auto id = static_cast<int32_t>(j);
    if (state.jobs[j] == JobState::UnderWay)
      running.push_back(fmt::format("{} (for {}, predicted {})", state.label(id),
                                    duration_text(state.watchdog.lasts(id)),
                                    duration_text(state.watchdog.predicted(id))));
    else if (state.jobs[j] != JobState::Ended)
      waiting.push_back(waiting.size() < kNamed
                            ? fmt::format("{} for {}", state.label(id), waits_for(state, id))
                            : std::string());
  }
  return fmt::format("under way: {}{}{}", running.empty() ? "nothing" : list_of(running),
                     waiting.empty() ? "" : "; waiting: ", list_of(waiting));
}

}  // namespace windlass

#include "windlass/plan/packs/long_run.h"

#include <algorithm>
#include <tuple>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// The last steps of a timeline that do not count.
constexpr size_t kAtTheEnd = 3;

// Bytes that come (or go, if negative) at a moment. What goes does so first.
struct Change {
  Nanoseconds time = 0;
  int64_t bytes = 0;
};

std::vector<std::vector<Change>> changes(const PackSteps& steps, const SimResult& result) {
  const TaskGraph& graph = *steps.graph;
  std::vector<std::vector<Change>> list(graph.memories.size());
  std::vector<Nanoseconds> first(graph.buffers.size(), -1), last(graph.buffers.size(), 0);
  for (size_t i = 0; i < graph.size(); ++i) {
    for (const Use& use : graph.uses_of(TaskId(i))) {
      Nanoseconds& begin = first[use.buffer.index()];
      begin = begin < 0 ? result.start[i] : std::min(begin, result.start[i]);
      last[use.buffer.index()] = std::max(last[use.buffer.index()], result.end[i]);
    }
    const int64_t workspace = steps.times->workspace[i];
    if (workspace == 0) continue;
    const TeamId team = graph[graph.lanes_of(TaskId(i)).front()].team;
    list[graph[team].memory.index()].push_back({result.start[i], workspace});
    list[graph[team].memory.index()].push_back({result.end[i], -workspace});
  }
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (first[b] < 0 && !buffer.at_start) continue;
    std::vector<Change>& memory = list[buffer.memory.index()];
    memory.push_back({buffer.at_start ? 0 : first[b], buffer.bytes.value});
    if (!buffer.at_end) memory.push_back({last[b], -buffer.bytes.value});
  }
  return list;
}

}  // namespace

LongRun read_long_run(const PackSteps& steps, const SimResult& result) {
  LongRun run;
  const size_t count = steps.begin.size() - 1, tasks = steps.begin[1];
  Nanoseconds until = INT64_MAX;
  if (count == 1) {
    run.seconds = static_cast<double>(result.makespan) * 1e-9;
    run.periodic = true;
  } else {
    ensure(count > 2 * kAtTheEnd, "too few steps for a long run");
    const size_t at = (count - kAtTheEnd - 1) * tasks;
    const auto period = [&](size_t i) { return result.end[i] - result.end[i - tasks]; };
    const Nanoseconds late = period(at + steps.repetition.marks.back().index());
    run.seconds = static_cast<double>(late) * 1e-9;
    run.periodic = true;
    for (size_t i = at; i < at + tasks; ++i) {
      run.periodic = run.periodic && period(i) == late;
      until = std::min(until, result.start[i]);
    }
  }
  for (std::vector<Change>& memory : changes(steps, result)) {
    std::ranges::sort(memory, [](const Change& a, const Change& b) {
      return std::tie(a.time, a.bytes) < std::tie(b.time, b.bytes);
    });
    int64_t live = 0, peak = 0;
    for (const Change& change : memory) {
      if (change.time >= until) break;
      live += change.bytes;
      peak = std::max(peak, live);
    }
    run.peaks.push_back(peak);
  }
  return run;
}

}  // namespace windlass

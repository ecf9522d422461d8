#include "windlass/sim/phase_peaks.h"

#include <algorithm>

namespace windlass {
namespace {

struct MemoryEvent {
  Nanoseconds time = 0;
  int64_t bytes = 0;  // releases are negative and come first
};

bool updates(TaskKind kind) { return kind == TaskKind::Update || kind == TaskKind::HostUpdate; }

std::vector<MemoryEvent> events_of(const TaskGraph& graph, const TaskTimes& times,
                                   const SimResult& result, MemoryId memory) {
  struct Life {
    Nanoseconds from = -1, to = -1;
  };
  std::vector<Life> lives(graph.buffers.size());
  std::vector<MemoryEvent> events;
  for (size_t i = 0; i < graph.size(); ++i) {
    const TaskId id(i);
    for (const Use& use : graph.uses_of(id)) {
      Life& life = lives[use.buffer.index()];
      life.from = life.from < 0 ? result.start[i] : std::min(life.from, result.start[i]);
      life.to = std::max(life.to, result.end[i]);
    }
    const Lane& lane = graph[graph.lanes_of(id).front()];
    if (times.workspace[i] == 0 || graph[lane.team].memory != memory) continue;
    events.push_back({result.start[i], times.workspace[i]});
    events.push_back({result.end[i], -times.workspace[i]});
  }
  for (size_t b = 0; b < graph.buffers.size(); ++b) {
    const Buffer& buffer = graph.buffers[b];
    if (buffer.memory != memory || (lives[b].from < 0 && !buffer.at_start)) continue;
    events.push_back({buffer.at_start ? -1 : lives[b].from, buffer.bytes.value});
    if (!buffer.at_end && lives[b].to >= 0) events.push_back({lives[b].to, -buffer.bytes.value});
  }
  std::ranges::sort(events, [](const MemoryEvent& a, const MemoryEvent& b) {
    return std::pair(a.time, a.bytes) < std::pair(b.time, b.bytes);
  });
  return events;
}

}  // namespace

PhaseBytes phase_peaks(const TaskGraph& graph, const TaskTimes& times, const SimResult& result,
                       MemoryId memory) {
  Nanoseconds forward_end = 0, last_backward = 0;
  for (size_t i = 0; i < graph.size(); ++i) {
    const TaskKind kind = graph.tasks[i].kind;
    if (kind == TaskKind::Forward) forward_end = std::max(forward_end, result.end[i]);
    if (kind == TaskKind::Backward) last_backward = std::max(last_backward, result.end[i]);
  }
  Nanoseconds first_update = result.makespan;
  for (size_t i = 0; i < graph.size(); ++i)
    if (updates(graph.tasks[i].kind) && result.start[i] >= last_backward)
      first_update = std::min(first_update, result.start[i]);
  PhaseBytes peaks;
  int64_t live = 0;
  for (const MemoryEvent& event : events_of(graph, times, result, memory)) {
    live += event.bytes;
    int64_t& peak = event.time < forward_end    ? peaks.forward
                    : event.time < first_update ? peaks.backward
                                                : peaks.optimizer;
    peak = std::max(peak, live);
  }
  return peaks;
}

}  // namespace windlass

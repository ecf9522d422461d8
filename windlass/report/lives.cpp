#include "windlass/report/lives.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace windlass {
namespace {

constexpr Nanoseconds kForever = std::numeric_limits<Nanoseconds>::max();

struct Event {
  Nanoseconds time = 0;
  int64_t bytes = 0;  // negative: released
  uint8_t kind = 0;
  bool kept = false;
};

void sort_by_time(std::vector<Event>& events) {
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.time < b.time; });
}

// By memory, in no order.
std::vector<std::vector<Event>> buffer_events(const TaskGraph& graph, const SimResult& result,
                                              const std::vector<bool>& kept) {
  const std::vector<Life> lives = buffer_lives(graph, result);
  std::vector<std::vector<Event>> events(graph.memories.size());
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    if (lives[i].begin < 0) continue;
    const auto kind = static_cast<uint8_t>(buffer.kind);
    const bool is_kept = !kept.empty() && kept[i];
    auto& list = events[buffer.memory.index()];
    list.push_back({lives[i].begin, buffer.bytes.value, kind, is_kept});
    if (lives[i].end <= result.makespan)
      list.push_back({lives[i].end, -buffer.bytes.value, kind, is_kept});
  }
  return events;
}

}  // namespace

std::vector<Life> buffer_lives(const TaskGraph& graph, const SimResult& result) {
  std::vector<Life> lives(graph.buffers.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    const Nanoseconds start = result.start[i];
    const Nanoseconds end = result.end[i] < 0 ? kForever : result.end[i];
    for (const Use& use : graph.uses_of(TaskId(i))) {
      Life& life = lives[use.buffer.index()];
      if (start >= 0 && (life.begin < 0 || start < life.begin)) life.begin = start;
      life.end = std::max(life.end, end);
    }
  }
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    if (buffer.at_start) lives[i].begin = 0;
    if (buffer.at_end || lives[i].end < 0) lives[i].end = kForever;
  }
  return lives;
}

std::vector<bool> kept_between_passes(const TaskGraph& graph) {
  // Ids follow the order of the lanes, so all forward work of a micro-batch on a team comes before
  // the first of its backward work there.
  std::map<std::pair<MemoryId, int32_t>, size_t> first_backward;
  std::vector<bool> in_forward(graph.buffers.size());
  std::vector<size_t> last_use(graph.buffers.size(), 0);
  for (size_t i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks[i];
    const TeamId team = graph[graph.lanes_of(TaskId(i)).front()].team;
    const bool backward = task.kind == TaskKind::Backward || task.kind == TaskKind::Recompute;
    if (backward && team.valid())
      first_backward.try_emplace({graph[team].memory, task.micro_batch}, i);
    for (const Use& use : graph.uses_of(TaskId(i))) {
      if (task.kind == TaskKind::Forward) in_forward[use.buffer.index()] = true;
      last_use[use.buffer.index()] = i;
    }
  }
  std::vector<bool> kept(graph.buffers.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    switch (buffer.kind) {
      case BufferKind::Stash: kept[i] = true; break;
      case BufferKind::Activation:
      case BufferKind::Transient:
      case BufferKind::Communication: {
        if (!in_forward[i] || buffer.micro_batch < 0) break;
        const auto backward = first_backward.find({buffer.memory, buffer.micro_batch});
        kept[i] = backward != first_backward.end() && last_use[i] >= backward->second;
        break;
      }
      case BufferKind::Weight:
      case BufferKind::WeightGradient:
      case BufferKind::OptimizerState:
      case BufferKind::Input: break;
    }
  }
  return kept;
}

std::vector<MemoryUse> memory_uses(const TaskGraph& graph, const SimResult& result,
                                   const std::vector<bool>& kept) {
  auto events = buffer_events(graph, result, kept);
  std::vector<MemoryUse> uses(graph.memories.size());
  for (size_t m = 0; m < events.size(); ++m) {
    sort_by_time(events[m]);
    MemoryUse live;
    for (size_t i = 0; i < events[m].size(); ++i) {
      const Event& event = events[m][i];
      live.most[event.kind] += event.bytes;
      if (event.kept) live.kept += event.bytes;
      if (i + 1 < events[m].size() && events[m][i + 1].time == event.time) continue;
      for (size_t k = 0; k < kBufferKinds; ++k)
        uses[m].most[k] = std::max(uses[m].most[k], live.most[k]);
      uses[m].kept = std::max(uses[m].kept, live.kept);
    }
  }
  return uses;
}

namespace {

constexpr uint8_t kWorkspace = kBufferKinds;  // beside the kinds of buffers

// Those of buffers and of what tasks take while they run, by memory, in the order of time.
std::vector<std::vector<Event>> all_events(const TaskGraph& graph, const TaskTimes& times,
                                           const SimResult& result) {
  auto events = buffer_events(graph, result, {});
  for (size_t i = 0; i < graph.size(); ++i) {
    if (times.workspace[i] <= 0 || result.start[i] < 0) continue;
    const TeamId team = graph[graph.lanes_of(TaskId(i)).front()].team;
    if (!team.valid()) continue;
    auto& list = events[graph[team].memory.index()];
    list.push_back({result.start[i], times.workspace[i], kWorkspace});
    if (result.end[i] >= 0) list.push_back({result.end[i], -times.workspace[i], kWorkspace});
  }
  for (auto& list : events) sort_by_time(list);
  return events;
}

}  // namespace

int64_t MemorySample::total() const {
  return std::accumulate(by_kind.begin(), by_kind.end(), workspace);
}

std::vector<std::vector<MemorySample>> memory_samples(const TaskGraph& graph,
                                                      const TaskTimes& times,
                                                      const SimResult& result, int64_t spans) {
  const auto events = all_events(graph, times, result);
  const Nanoseconds width = std::max<Nanoseconds>(1, result.makespan / std::max<int64_t>(1, spans));
  std::vector<std::vector<MemorySample>> samples(events.size());
  for (size_t m = 0; m < events.size(); ++m) {
    MemorySample live;
    for (size_t i = 0; i < events[m].size(); ++i) {
      const Event& event = events[m][i];
      (event.kind == kWorkspace ? live.workspace : live.by_kind[event.kind]) += event.bytes;
      if (i + 1 < events[m].size() && events[m][i + 1].time == event.time) continue;
      live.time = event.time;
      auto& list = samples[m];
      if (list.empty() || list.back().time / width != live.time / width)
        list.push_back(live);
      else if (live.total() > list.back().total())
        list.back() = live;
    }
  }
  return samples;
}

std::vector<std::vector<MemoryChange>> memory_changes(const TaskGraph& graph,
                                                      const TaskTimes& times,
                                                      const SimResult& result) {
  const auto events = all_events(graph, times, result);
  std::vector<std::vector<MemoryChange>> changes(events.size());
  for (size_t m = 0; m < events.size(); ++m) {
    int64_t live = 0;
    for (size_t i = 0; i < events[m].size(); ++i) {
      live += events[m][i].bytes;
      if (i + 1 < events[m].size() && events[m][i + 1].time == events[m][i].time) continue;
      if (changes[m].empty() || changes[m].back().bytes != live)
        changes[m].push_back({events[m][i].time, live});
    }
  }
  return changes;
}

}  // namespace windlass

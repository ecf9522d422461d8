#include "windlass/sim/summary.h"

#include <algorithm>
#include <map>

namespace windlass {
namespace {

using Part = Nanoseconds Breakdown::*;

Part part_of_work(TaskKind kind) {
  switch (kind) {
    case TaskKind::Forward:
    case TaskKind::Backward: return &Breakdown::compute;
    case TaskKind::Recompute:
    case TaskKind::Compress:
    case TaskKind::Decompress:
    case TaskKind::Join: return &Breakdown::recompute;
    case TaskKind::Norm:
    case TaskKind::Update:
    case TaskKind::HostUpdate: return &Breakdown::update;
    case TaskKind::Collective:
    case TaskKind::Reduce:
    case TaskKind::Gather:
    case TaskKind::Send: return &Breakdown::communication;
    case TaskKind::SwapOut:
    case TaskKind::SwapIn: return &Breakdown::swap;
  }
  return &Breakdown::bubble;
}

// Of idle time that a task of this kind caused.
Part part_of_wait(TaskKind kind) {
  const bool blamed = moves(kind) || kind == TaskKind::HostUpdate;
  return blamed ? part_of_work(kind) : &Breakdown::bubble;
}

class Sorter {
 public:
  Sorter(const TaskGraph& graph, const SimResult& result) : graph_(graph), result_(result) {
    last_use_.assign(graph.buffers.size(), -1);
    for (size_t i = 0; i < graph.size(); ++i) {
      for (const Use& use : graph.uses_of(TaskId(i))) {
        Nanoseconds& last = last_use_[use.buffer.index()];
        last = std::max(last, result.end[i]);
      }
      if (graph.tasks[i].kind == TaskKind::SwapOut) swap_outs_.emplace(result.end[i], TaskId(i));
    }
  }

  std::vector<Breakdown> run() {
    const size_t teams = graph_.teams.size();
    std::vector<LaneId> compute_lane(teams);
    for (size_t i = graph_.lanes.size(); i-- > 0;) {
      const Lane& lane = graph_.lanes[i];
      if (lane.kind == LaneKind::Compute && lane.team.valid())
        compute_lane[lane.team.index()] = LaneId(i);
    }
    std::vector<Breakdown> parts(teams);
    std::vector<Nanoseconds> reached(teams, 0);
    std::vector<TaskId> last_of_team(teams);
    find_neighbours();
    for (size_t i = 0; i < graph_.size(); ++i) {
      const TaskId task(i);
      if (result_.start[i] < 0) continue;
      for (LaneId lane : graph_.lanes_of(task)) {
        const TeamId team = graph_[lane].team;
        if (!team.valid()) continue;
        TaskId& last = last_of_team[team.index()];
        if (!last.valid() || result_.end[i] > result_.end[last.index()]) last = task;
        if (lane != compute_lane[team.index()]) continue;
        Breakdown& of_team = parts[team.index()];
        Nanoseconds& now = reached[team.index()];
        if (result_.start[i] > now) sort_wait(task, team, now, of_team);
        of_team.*part_of_work(graph_[task].kind) +=
            result_.end[i] - std::max(now, result_.start[i]);
        now = result_.end[i];
      }
    }
    for (size_t team = 0; team < teams; ++team) {
      const TaskId last = last_of_team[team];
      if (compute_lane[team].valid() && last.valid() && result_.end[last.index()] > reached[team]) {
        parts[team].*part_of_wait(graph_[last].kind) += result_.end[last.index()] - reached[team];
        reached[team] = result_.end[last.index()];
      }
      parts[team].bubble += result_.makespan - reached[team];
    }
    return parts;
  }

 private:
  // Sorts the time from `since`, when the compute lane of the team fell idle, to the start of the
  // task: back along what was waited for, as long as that is transfers or the host.
  void sort_wait(TaskId task, TeamId team, Nanoseconds since, Breakdown& of_team) const {
    Nanoseconds until = result_.start[task.index()];
    while (until > since) {
      const TaskId latest = waited_for(task);
      if (!latest.valid()) {
        const bool swap = swap_freed(until, graph_[team].memory);
        of_team.*(swap ? &Breakdown::swap : &Breakdown::bubble) += until - since;
        return;
      }
      const Part part = part_of_wait(graph_[latest].kind);
      const Nanoseconds from =
          part == &Breakdown::bubble ? since : std::max(since, result_.start[latest.index()]);
      of_team.*part += until - from;
      until = from;
      task = latest;
    }
  }

  // What ended when the task started, of its predecessors and those before it on its lanes.
  TaskId waited_for(TaskId task) const {
    const Nanoseconds start = result_.start[task.index()];
    for (TaskId before : graph_.predecessors_of(task))
      if (result_.end[before.index()] == start) return before;
    const auto lanes = graph_.lanes_of(task);
    for (size_t k = 0; k < lanes.size(); ++k) {
      const TaskId before = before_[graph_.lane_begin[task.index()] + k];
      if (before.valid() && result_.end[before.index()] == start) return before;
    }
    return {};
  }

  void find_neighbours() {
    std::vector<TaskId> last(graph_.lanes.size());
    before_.assign(graph_.task_lanes.size(), {});
    for (size_t i = 0; i < graph_.size(); ++i) {
      for (size_t k = graph_.lane_begin[i]; k < graph_.lane_begin[i + 1]; ++k) {
        before_[k] = last[graph_.task_lanes[k].index()];
        last[graph_.task_lanes[k].index()] = TaskId(i);
      }
    }
  }

  bool swap_freed(Nanoseconds time, MemoryId memory) const {
    const auto [begin, end] = swap_outs_.equal_range(time);
    for (auto it = begin; it != end; ++it) {
      for (const Use& use : graph_.uses_of(it->second)) {
        if (graph_[use.buffer].memory == memory && last_use_[use.buffer.index()] == time)
          return true;
      }
    }
    return false;
  }

  const TaskGraph& graph_;
  const SimResult& result_;
  std::vector<Nanoseconds> last_use_;             // by buffer
  std::multimap<Nanoseconds, TaskId> swap_outs_;  // by end
  std::vector<TaskId> before_;  // parallel to task_lanes: the task before on that lane
};

}  // namespace

std::vector<Breakdown> break_down(const TaskGraph& graph, const SimResult& result) {
  return Sorter(graph, result).run();
}

std::vector<LinkLoad> link_bytes(const TaskGraph& graph, const SimResult& result) {
  std::vector<int64_t> times_used(graph.traffics.size(), 0);
  for (size_t i = 0; i < graph.size(); ++i) {
    if (moves(graph.tasks[i].kind) && result.end[i] >= 0)
      ++times_used[static_cast<size_t>(graph.tasks[i].price)];
  }
  std::map<LinkDirection, int64_t> bytes;
  for (size_t i = 0; i < graph.traffics.size(); ++i) {
    if (times_used[i] == 0) continue;
    for (const LinkLoad& load : graph.traffics[i].loads)
      if (load.bytes.value > 0) bytes[load.direction] += load.bytes.value * times_used[i];
  }
  std::vector<LinkLoad> loads;
  for (const auto& [direction, total] : bytes) loads.push_back({direction, Bytes(total)});
  return loads;
}

PeakComposition compose_peak(const TaskGraph& graph, const TaskTimes& times,
                             const SimResult& result, MemoryId memory, size_t largest) {
  const Nanoseconds time = result.peaks[memory.index()].time;
  PeakComposition composition;
  composition.largest = alive_at(graph, result, memory, time);
  for (BufferId id : composition.largest)
    composition.by_kind[static_cast<size_t>(graph[id].kind)] += graph[id].bytes.value;
  if (composition.largest.size() > largest) composition.largest.resize(largest);
  for (size_t i = 0; i < graph.size(); ++i) {
    if (times.workspace[i] <= 0 || result.start[i] < 0) continue;
    if (result.start[i] > time || result.end[i] <= time) continue;
    const TeamId team = graph[graph.lanes_of(TaskId(i)).front()].team;
    if (team.valid() && graph[team].memory == memory) composition.workspace += times.workspace[i];
  }
  return composition;
}

}  // namespace windlass

#include "windlass/search/chain/measure_step.h"

#include <algorithm>

namespace windlass {
namespace {

// The group of each memory that belongs to a team; -1 for hosts.
std::vector<int32_t> groups_of_memories(const Strategy& strategy, const TaskGraph& tasks) {
  std::vector<int32_t> groups(tasks.memories.size(), -1);
  for (size_t m = 0; m < groups.size(); ++m) {
    if (!tasks.memories[m].team.valid()) continue;
    const DeviceId device = tasks[tasks.memories[m].team].devices.front();
    for (size_t g = 0; g < strategy.groups.size(); ++g)
      if (std::ranges::find(strategy.groups[g], device) != strategy.groups[g].end())
        groups[m] = static_cast<int32_t>(g);
  }
  return groups;
}

MemoryId memory_of(const TaskGraph& tasks, TaskId task) {
  const TeamId team = tasks[tasks.lanes_of(task).front()].team;
  return team.valid() ? tasks[team].memory : MemoryId();
}

class StepMeasuring {
 public:
  StepMeasuring(const TrainingFacts& facts, const Strategy& strategy,
                const std::vector<bool>& decides, const Evaluator::Run& run)
      : facts_(facts),
        decides_(decides),
        tasks_(run.tasks),
        times_(run.times),
        result_(run.result),
        groups_(groups_of_memories(strategy, run.tasks)) {
    measure_.floor.assign(strategy.groups.size(), 0);
  }

  StepMeasure run() {
    measure_.makespan = result_.makespan;
    measure_.time.assign(facts_.dropped.size(), 0);
    measure_.beside.assign(facts_.dropped.size(), 0);
    measure_.saved_bytes.assign(decides_.size(), 0);
    measure_.gathered_bytes.assign(decides_.size(), 0);
    find_lives();
    sum_saved();
    find_times();
    for (size_t m = 0; m < groups_.size(); ++m)
      if (groups_[m] >= 0) sweep(MemoryId(m));
    return std::move(measure_);
  }

 private:
  struct Life {
    Nanoseconds birth = INT64_MAX, death = 0;
    bool forward = false, backward = false;
  };
  struct Event {
    Nanoseconds time = 0;
    int64_t bytes = 0;
  };

  void find_lives() {
    lives_.resize(tasks_.buffers.size());
    // What moves for an op comes before it: it belongs to the pass of the next op on its device.
    std::vector<TaskKind> next(tasks_.memories.size(), TaskKind::Backward);
    for (size_t t = tasks_.size(); t-- > 0;) {
      TaskKind kind = tasks_.tasks[t].kind;
      if (const MemoryId memory = memory_of(tasks_, TaskId(t)); memory.valid()) {
        if (kind == TaskKind::Forward || kind == TaskKind::Backward)
          next[memory.index()] = kind;
        else if (kind == TaskKind::Collective)
          kind = next[memory.index()];
      }
      for (const Use& use : tasks_.uses_of(TaskId(t))) {
        Life& life = lives_[use.buffer.index()];
        life.birth = std::min(life.birth, result_.start[t]);
        life.death = std::max(life.death, result_.end[t]);
        life.forward |= kind == TaskKind::Forward;
        life.backward |= kind == TaskKind::Backward;
      }
    }
    for (size_t b = 0; b < lives_.size(); ++b) {
      if (tasks_.buffers[b].at_start) lives_[b].birth = 0;
      if (tasks_.buffers[b].at_end) lives_[b].death = INT64_MAX;
    }
  }

  // The saved tensor that a buffer holds from the forward to the backward pass; -1: none that is
  // decided about.
  int32_t saved_in(size_t b) const {
    const Buffer& buffer = tasks_.buffers[b];
    if (!buffer.tensor.valid() || !lives_[b].forward || !lives_[b].backward) return -1;
    const int32_t saved = facts_.saved_index[buffer.tensor.index()];
    return saved >= 0 && decides_[static_cast<size_t>(saved)] ? saved : -1;
  }

  void sum_saved() {
    // Teams of a group hold pieces of different size: the largest counts.
    struct Sum {
      int64_t saved = 0, gathered = 0;
    };
    std::vector<std::vector<Sum>> sums(tasks_.memories.size());
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      const Buffer& buffer = tasks_.buffers[b];
      if (buffer.micro_batch != 0 || !buffer.tensor.valid() || !lives_[b].backward) continue;
      const int32_t saved = facts_.saved_index[buffer.tensor.index()];
      if (saved < 0 || !decides_[static_cast<size_t>(saved)]) continue;
      auto& list = sums[buffer.memory.index()];
      if (list.empty()) list.resize(decides_.size());
      Sum& sum = list[static_cast<size_t>(saved)];
      (lives_[b].forward ? sum.saved : sum.gathered) += buffer.bytes.value;
    }
    for (const auto& list : sums)
      for (size_t s = 0; s < list.size(); ++s) {
        measure_.saved_bytes[s] = std::max(measure_.saved_bytes[s], list[s].saved);
        measure_.gathered_bytes[s] = std::max(measure_.gathered_bytes[s], list[s].gathered);
      }
  }

  // A redistribution belongs to the op that is emitted next: it asked for it. So does what its
  // pieces exchange, and make for it.
  void find_times() {
    std::vector<Nanoseconds> pending(tasks_.memories.size(), 0);
    for (size_t t = 0; t < tasks_.size(); ++t) {
      const Task& task = tasks_.tasks[t];
      if (task.micro_batch != 0) continue;
      const MemoryId memory = memory_of(tasks_, TaskId(t));
      if (!memory.valid()) continue;
      const Nanoseconds taken = result_.end[t] - result_.start[t];
      if (task.kind == TaskKind::Collective || task.begins) {
        pending[memory.index()] += task.begins ? times_.duration[t] : taken;
      } else if (task.kind == TaskKind::Forward || task.kind == TaskKind::Backward) {
        if (!task.op.valid()) continue;
        Nanoseconds& time = measure_.time[task.op.index()];
        // The slowest of the teams of a group.
        time = std::max(time, times_.duration[t] + pending[memory.index()]);
        pending[memory.index()] = 0;
      }
    }
  }

  // Live bytes of a memory over time, and the highest while each op runs.
  void sweep(MemoryId memory) {
    std::vector<Event> events;
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      const Buffer& buffer = tasks_.buffers[b];
      if (buffer.memory != memory || saved_in(b) >= 0 || lives_[b].birth > lives_[b].death)
        continue;
      events.push_back({lives_[b].birth, buffer.bytes.value});
      if (lives_[b].death < INT64_MAX) events.push_back({lives_[b].death, -buffer.bytes.value});
    }
    std::vector<size_t> running;  // tasks of ops
    for (size_t t = 0; t < tasks_.size(); ++t) {
      if (moves(tasks_.tasks[t].kind) || memory_of(tasks_, TaskId(t)) != memory) continue;
      if (times_.workspace[t] > 0) {
        events.push_back({result_.start[t], times_.workspace[t]});
        events.push_back({result_.end[t], -times_.workspace[t]});
      }
      const TaskKind kind = tasks_.tasks[t].kind;
      if ((kind == TaskKind::Forward || kind == TaskKind::Backward) && tasks_.tasks[t].op.valid())
        running.push_back(t);
    }
    // What ends at a moment is released first.
    std::ranges::sort(events, [](const Event& a, const Event& b) {
      return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
    });
    std::ranges::sort(running, {}, [&](size_t t) { return result_.start[t]; });
    int64_t live = 0, highest = 0;
    size_t next = 0;
    const auto advance = [&](Nanoseconds until) {
      for (; next < events.size() && events[next].time <= until; ++next) {
        live += events[next].bytes;
        highest = std::max(highest, live);
      }
    };
    for (size_t t : running) {
      advance(result_.start[t]);
      const int64_t before = highest;
      highest = live;
      advance(result_.end[t] - 1);
      int64_t& beside = measure_.beside[tasks_.tasks[t].op.index()];
      beside = std::max(beside, highest);
      highest = std::max(highest, before);
    }
    advance(INT64_MAX);
    int64_t& floor = measure_.floor[static_cast<size_t>(groups_[memory.index()])];
    floor = std::max(floor, highest);
  }

  const TrainingFacts& facts_;
  const std::vector<bool>& decides_;
  const TaskGraph& tasks_;
  const TaskTimes& times_;
  const SimResult& result_;
  const std::vector<int32_t> groups_;  // by memory
  std::vector<Life> lives_;            // by buffer
  StepMeasure measure_;
};

}  // namespace

StepMeasure measure_step(const TrainingFacts& facts, const Strategy& strategy,
                         const std::vector<bool>& decides, const Evaluator::Run& run) {
  return StepMeasuring(facts, strategy, decides, run).run();
}

std::vector<double> byte_times(const Strategy& strategy, const Evaluator::Run& run, TaskKind kind) {
  const std::vector<int32_t> groups = groups_of_memories(strategy, run.tasks);
  std::vector<double> times(strategy.groups.size(), 0), bytes(strategy.groups.size(), 0);
  for (size_t t = 0; t < run.tasks.size(); ++t) {
    if (run.tasks.tasks[t].kind != kind) continue;
    for (const Use& use : run.tasks.uses_of(TaskId(t))) {
      const Buffer& buffer = run.tasks[use.buffer];
      const int32_t group = groups[buffer.memory.index()];
      if (group < 0 || use.write != (kind == TaskKind::Decompress)) continue;
      bytes[static_cast<size_t>(group)] += static_cast<double>(buffer.bytes.value);
      times[static_cast<size_t>(group)] +=
          static_cast<double>(run.result.end[t] - run.result.start[t]);
    }
  }
  for (size_t g = 0; g < times.size(); ++g) times[g] = bytes[g] > 0 ? times[g] / bytes[g] : 0;
  return times;
}

bool runs_beside(const Evaluator::Run& run, TaskKind kind) {
  for (size_t t = 0; t < run.tasks.size(); ++t)
    if (run.tasks.tasks[t].kind == kind)
      return run.tasks[run.tasks.lanes_of(TaskId(t)).front()].kind != LaneKind::Compute;
  return true;
}

}  // namespace windlass

#include "windlass/runtime/jobs.h"

#include <algorithm>
#include <map>
#include <set>

#include "windlass/base/error.h"

namespace windlass {
namespace {

class JobMaker {
 public:
  JobMaker(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
           const Ownership& own)
      : tasks_(tasks), program_(program), order_(order), own_(own) {}

  JobGraph make() {
    make_gates();
    make_lives();
    jobs_of_.resize(tasks_.size());
    inherited_.resize(tasks_.size());
    last_on_.resize(tasks_.lanes.size());
    for (size_t i = 0; i < tasks_.size(); ++i) {
      make_jobs_of(TaskId(i));
      if (jobs_of_[i].empty())
        inherit(TaskId(i));
      else
        for (int32_t job : jobs_of_[i]) connect(job);
      for (LaneId lane : tasks_.lanes_of(TaskId(i))) last_on_[lane.index()] = TaskId(i);
      enter_gates(TaskId(i));
    }
    return std::move(graph_);
  }

 private:
  Job& job(int32_t id) { return graph_.jobs[static_cast<size_t>(id)]; }
  const ProgramTask& program_of(TaskId id) const { return program_.tasks[id.index()]; }
  MemoryGate& gate(int32_t id) { return *graph_.gates[static_cast<size_t>(id)]; }
  // The real memories of one of the graph that are here.
  std::vector<int32_t> memories(MemoryId id) const {
    std::vector<int32_t> list;
    for (auto m = program_.first_memory[id.index()];
         static_cast<size_t>(m) < program_.memories.size() &&
         program_.memories[static_cast<size_t>(m)].memory == id;
         ++m)
      if (own_.has_memory(m)) list.push_back(m);
    return list;
  }

  void make_gates() {
    for (const RealMemory& memory : program_.memories) {
      auto made = std::make_unique<MemoryGate>();
      const size_t m = memory.memory.index();
      made->cap = order_.cap[m];
      made->at_start = order_.at_start[m];
      made->has_peak = order_.peak_task[m].valid();
      graph_.gates.push_back(std::move(made));
    }
  }

  void make_lives() {
    lives_.resize(tasks_.buffers.size());
    for (size_t b = 0; b < tasks_.buffers.size(); ++b) {
      const Buffer& buffer = tasks_.buffers[b];
      if (buffer.at_end) continue;
      MemoryGate::Life life = {.bytes = buffer.bytes.value,
                               .rank = order_.release_rank[b],
                               .held = order_.held_by[b].valid()};
      const auto add = [&](int32_t memory) {
        if (!own_.has_memory(memory)) return;
        lives_[b].emplace_back(memory, static_cast<int32_t>(gate(memory).lives.size()));
        gate(memory).lives.push_back(life);
      };
      if (!tasks_[buffer.memory].team.valid()) {
        std::map<int32_t, std::set<int32_t>> by_host;
        for (int32_t slot : program_.slots_of[b])
          by_host[program_.slots[static_cast<size_t>(slot)].memory].insert(slot);
        for (const auto& [host, slots] : by_host) {
          life.slots.assign(slots.begin(), slots.end());
          add(host);
        }
        continue;
      }
      for (int32_t slot : program_.slots_of[b]) {
        life.slots = {slot};
        add(program_.slots[static_cast<size_t>(slot)].memory);
      }
    }
  }

  int32_t worker(LaneId lane, int32_t memory) {
    // A process has no thread for devices that are not its own: it helps them on the lane's.
    const bool computes =
        tasks_[lane].kind == LaneKind::Compute && memory >= 0 && own_.has_memory(memory);
    const LaneKind kind =
        tasks_[lane].kind == LaneKind::Compute && !computes ? LaneKind::Send : tasks_[lane].kind;
    const auto [entry, fresh] =
        workers_.try_emplace(computes ? std::pair{-1, memory} : std::pair{lane.value, -1},
                             static_cast<int32_t>(graph_.workers.size()));
    const int32_t first = program_.first_memory[tasks_[tasks_[lane].team].memory.index()];
    if (fresh) graph_.workers.push_back({kind, computes ? memory : first});
    return entry->second;
  }

  void make_jobs_of(TaskId id) {
    const ProgramTask& task = program_of(id);
    const LaneId lane = tasks_.lanes_of(id)[0];
    const auto add = [&](int32_t part, int32_t memory) {
      jobs_of_[id.index()].push_back(static_cast<int32_t>(graph_.jobs.size()));
      graph_.jobs.push_back({.task = id, .part = part, .worker = worker(lane, memory)});
    };
    // One for all, on a thread of the first device if the lane is the devices' own.
    if (!task.apart) {
      if (!touches_own(id)) return;
      int32_t memory = task.parts.empty() ? -1 : task.parts[0].memory;
      for (const Part& part : task.parts)
        if (own_.has_memory(part.memory)) {
          memory = part.memory;
          break;
        }
      return add(-1, memory);
    }
    for (size_t p = 0; p < task.parts.size(); ++p)
      if (touches_own(task.parts[p])) add(static_cast<int32_t>(p), task.parts[p].memory);
  }

  // A part without operands belongs to its device.
  bool touches_own(const Part& part) const {
    bool any = false, own = false;
    for_slots(part, [&](int32_t slot) {
      any = true;
      own |= own_.mine(slot);
    });
    return any ? own : own_.has_memory(part.memory);
  }
  // Also whoever has a buffer of it without taking part in what is moved: it gives bytes back.
  bool touches_own(TaskId id) const {
    if (own_.alone()) return true;
    for (const Use& use : tasks_.uses_of(id))
      for (int32_t slot : program_.slots_of[use.buffer.index()])
        if (own_.mine(slot)) return true;
    return false;
  }

  int32_t memory_of(int32_t id) {
    const Job& made = job(id);
    return made.part < 0 ? -1 : program_of(made.task).parts[static_cast<size_t>(made.part)].memory;
  }

  // Devices that compute wait for what they have computed themselves; for what was moved, all wait
  // for all of it.
  void connect(int32_t id) {
    const TaskId task = job(id).task;
    std::vector<int32_t> before;
    const auto wait_for = [&](TaskId other, bool all) {
      const std::vector<int32_t>& list = ended_with(other);
      const auto own = std::ranges::find_if(
          list, [&](int32_t j) { return memory_of(j) == memory_of(id) && memory_of(j) >= 0; });
      if (!all && own != list.end() && !jobs_of_[other.index()].empty())
        before.push_back(*own);
      else
        before.insert(before.end(), list.begin(), list.end());
    };
    for (TaskId other : tasks_.predecessors_of(task))
      wait_for(other, moves(program_of(task).kind) || moves(program_of(other).kind));
    for (LaneId lane : tasks_.lanes_of(task))
      if (last_on_[lane.index()].valid()) wait_for(last_on_[lane.index()], false);
    std::ranges::sort(before);
    before.erase(std::unique(before.begin(), before.end()), before.end());
    for (int32_t other : before) job(other).next.push_back(id);
    job(id).before = static_cast<int32_t>(before.size());
  }

  // Jobs of this process that have ended when a task has.
  const std::vector<int32_t>& ended_with(TaskId id) const {
    return jobs_of_[id.index()].empty() ? inherited_[id.index()] : jobs_of_[id.index()];
  }

  // A task of others passes on what it waits for; of each thread the last job is enough, since
  // those of a lane end in turn.
  void inherit(TaskId id) {
    std::map<int32_t, int32_t> last;  // by worker
    const auto add = [&](TaskId other) {
      for (int32_t j : ended_with(other)) {
        int32_t& known = last.try_emplace(job(j).worker, j).first->second;
        known = std::max(known, j);
      }
    };
    for (TaskId other : tasks_.predecessors_of(id)) add(other);
    for (LaneId lane : tasks_.lanes_of(id))
      if (last_on_[lane.index()].valid()) add(last_on_[lane.index()]);
    for (const auto& [worker, j] : last) inherited_[id.index()].push_back(j);
  }

  Job::Leave& leave(int32_t id, int32_t gate) {
    std::vector<Job::Leave>& list = job(id).leaves;
    const auto found = std::ranges::find(list, gate, &Job::Leave::gate);
    return found != list.end() ? *found : list.emplace_back(Job::Leave{.gate = gate});
  }

  // Calls visit(job, memory) for those that have to do with a memory of the graph on behalf of the
  // task.
  template <class Visit>
  void for_jobs_at(TaskId task, MemoryId id, Visit&& visit) {
    for (int32_t memory : memories(id))
      for (int32_t j : jobs_of_[task.index()]) {
        const auto node = [&](int32_t m) { return program_.memories[static_cast<size_t>(m)].node; };
        const bool elsewhere =
            memory_of(j) >= 0 &&
            (tasks_[id].team.valid() ? memory_of(j) != memory : node(memory_of(j)) != node(memory));
        if (!elsewhere) visit(j, memory);
      }
  }

  void enter_gates(TaskId task) {
    for (const MemoryGrant& grant : order_.grants[task.index()])
      for_jobs_at(task, grant.memory, [&](int32_t j, int32_t memory) {
        auto& entries = gate(memory).entries;
        const auto rank = static_cast<size_t>(grant.rank);
        if (entries.size() <= rank) entries.resize(rank + 1);
        entries[rank].bytes = grant.bytes;
        entries[rank].workspace = grant.workspace;
        entries[rank].jobs.push_back(j);
        job(j).asks.push_back({memory, grant.rank});
        leave(j, memory).workspace += grant.workspace;
      });
    for (BufferId buffer : order_.releases[task.index()])
      for (const auto& [memory, life] : lives_[buffer.index()])
        for_jobs_at(task, tasks_[buffer].memory,
                    [&, where = memory, which = life](int32_t j, int32_t at) {
                      if (at != where) return;
                      leave(j, where).lives.push_back(which);
                      ++gate(where).lives[static_cast<size_t>(which)].uses;
                    });
    for (size_t m = 0; m < order_.peak_task.size(); ++m)
      if (order_.peak_task[m] == task)
        for_jobs_at(task, MemoryId(m),
                    [&](int32_t j, int32_t memory) { leave(j, memory).peak_over = true; });
  }

  const TaskGraph& tasks_;
  const Program& program_;
  const MemoryOrder& order_;
  const Ownership& own_;
  JobGraph graph_;
  std::vector<std::vector<int32_t>> jobs_of_;                    // by task
  std::vector<std::vector<int32_t>> inherited_;                  // by task, of others' tasks
  std::vector<TaskId> last_on_;                                  // by lane
  std::map<std::pair<int32_t, int32_t>, int32_t> workers_;       // by lane, or by memory
  std::vector<std::vector<std::pair<int32_t, int32_t>>> lives_;  // by buffer: memory and life
};

}  // namespace

JobGraph make_jobs(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
                   const Ownership& own) {
  return JobMaker(tasks, program, order, own).make();
}

}  // namespace windlass

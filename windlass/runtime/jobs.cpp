#include "windlass/runtime/jobs.h"

#include <algorithm>
#include <map>

#include "windlass/base/error.h"

namespace windlass {
namespace {

class JobMaker {
 public:
  JobMaker(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
           const Ownership& own, std::span<const JobSite> sites, std::span<const int32_t> slots)
      : tasks_(tasks), program_(program), order_(order), own_(own), sites_(sites), slots_(slots) {}

  JobGraph make() {
    make_books();
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
    ensure(graph_.jobs.size() == sites_.size(), "sites are not in the order of tasks");
    for (const auto& book : books_)
      graph_.gates.push_back(book == nullptr ? nullptr : std::make_unique<MemoryGate>(book));
    return std::move(graph_);
  }

 private:
  Job& job(int32_t id) { return graph_.jobs[static_cast<size_t>(id)]; }
  TaskKind kind_of(TaskId id) const { return tasks_[id].kind; }
  MemoryGate::Book& gate(int32_t id) { return *books_[static_cast<size_t>(id)]; }
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

  void make_books() {
    for (size_t i = 0; i < program_.memories.size(); ++i) {
      auto& made = books_.emplace_back();
      if (!own_.has_memory(static_cast<int32_t>(i))) continue;
      const size_t m = program_.memories[i].memory.index();
      made = std::make_shared<MemoryGate::Book>();
      made->cap = order_.cap[m];
      made->at_start = order_.at_start[m];
      made->has_peak = order_.peak_task[m].valid();
    }
  }

  // What dies in a memory: of a buffer, all that lies there.
  void make_lives() {
    lives_.resize(tasks_.buffers.size());
    for (size_t i = 0; i < slots_.size();) {
      const size_t b = slot(i).buffer.index();
      std::map<int32_t, std::vector<int32_t>> by_memory;
      for (; i < slots_.size() && slot(i).buffer.index() == b; ++i)
        by_memory[slot(i).memory].push_back(slots_[i]);
      if (tasks_.buffers[b].at_end) continue;
      for (auto& [memory, list] : by_memory) {
        lives_[b].emplace_back(memory, static_cast<int32_t>(gate(memory).lives.size()));
        gate(memory).lives.push_back({.slots = std::move(list),
                                      .bytes = tasks_.buffers[b].bytes.value,
                                      .rank = order_.release_rank[b],
                                      .held = order_.held_by[b].valid()});
      }
    }
  }
  const Slot& slot(size_t i) const { return program_.slots[static_cast<size_t>(slots_[i])]; }

  // `apart`: of a part, in the memory where it is done.
  int32_t worker(LaneId lane, int32_t memory, bool apart) {
    // A process has no thread for devices that are not its own: it helps them on the lane's.
    const bool computes =
        tasks_[lane].kind == LaneKind::Compute && memory >= 0 && own_.has_memory(memory);
    const LaneKind kind =
        tasks_[lane].kind == LaneKind::Compute && !computes ? LaneKind::Send : tasks_[lane].kind;
    const bool copies = apart && kind == tasks_[lane].kind && !computes;
    const auto [entry, fresh] = workers_.try_emplace(
        std::pair{computes ? -1 : lane.value, computes || copies ? memory : -1},
        static_cast<int32_t>(graph_.workers.size()));
    const int32_t first = program_.first_memory[tasks_[tasks_[lane].team].memory.index()];
    if (fresh) graph_.workers.push_back({kind, computes || copies ? memory : first});
    return entry->second;
  }

  void make_jobs_of(TaskId id) {
    const LaneId lane = tasks_.lanes_of(id)[0];
    for (size_t j = graph_.jobs.size(); j < sites_.size() && sites_[j].task == id; ++j) {
      jobs_of_[id.index()].push_back(static_cast<int32_t>(j));
      graph_.jobs.push_back({.task = id,
                             .part = sites_[j].part,
                             .worker = worker(lane, sites_[j].memory, sites_[j].part >= 0)});
    }
  }

  int32_t memory_of(int32_t id) const {
    const JobSite& site = sites_[static_cast<size_t>(id)];
    return site.part < 0 ? -1 : site.memory;
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
      wait_for(other, moves(kind_of(task)) || moves(kind_of(other)));
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
    std::vector<int32_t>& last = inherited_[id.index()];
    const auto add = [&](TaskId other) {
      for (int32_t j : ended_with(other)) {
        const auto known =
            std::ranges::find(last, job(j).worker, [&](int32_t k) { return job(k).worker; });
        if (known == last.end())
          last.push_back(j);
        else
          *known = std::max(*known, j);
      }
    };
    for (TaskId other : tasks_.predecessors_of(id)) add(other);
    for (LaneId lane : tasks_.lanes_of(id))
      if (last_on_[lane.index()].valid()) add(last_on_[lane.index()]);
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
  const std::span<const JobSite> sites_;
  const std::span<const int32_t> slots_;
  JobGraph graph_;
  std::vector<std::shared_ptr<MemoryGate::Book>> books_;         // by memory of the program
  std::vector<std::vector<int32_t>> jobs_of_;                    // by task
  std::vector<std::vector<int32_t>> inherited_;                  // by task, of others' tasks
  std::vector<TaskId> last_on_;                                  // by lane
  std::map<std::pair<int32_t, int32_t>, int32_t> workers_;       // by lane and memory, -1: any
  std::vector<std::vector<std::pair<int32_t, int32_t>>> lives_;  // by buffer: memory and life
};

}  // namespace

SiteFinder::SiteFinder(const TaskGraph& tasks, const Program& program, const Ownership& own)
    : tasks_(tasks),
      program_(program),
      own_(own),
      touched_at_(static_cast<size_t>(own.ranks), 0),
      memory_of_(static_cast<size_t>(own.ranks), -1) {}

void SiteFinder::begin() {
  ++now_;
  touched_.clear();
}

void SiteFinder::touch(int32_t slot) {
  const int32_t rank = own_.of_slot[static_cast<size_t>(slot)];
  int64_t& at = touched_at_[static_cast<size_t>(rank)];
  if (at == now_) return;
  at = now_;
  touched_.push_back(rank);
}

const std::vector<SiteFinder::Found>& SiteFinder::find(TaskId id, const ProgramTask& task) {
  found_.clear();
  if (task.apart) {
    for (size_t p = 0; p < task.parts.size(); ++p) {
      const Part& part = task.parts[p];
      begin();
      for_slots(part, [&](int32_t slot) { touch(slot); });
      // A part without operands belongs to its device.
      if (touched_.empty()) touched_.push_back(own_.of_memory[static_cast<size_t>(part.memory)]);
      for (int32_t rank : touched_)
        found_.push_back({rank, {id, static_cast<int32_t>(p), part.memory}});
    }
    return found_;
  }
  // One for all, on a thread of the first device if the lane is the devices' own. Also whoever has
  // a buffer of it without taking part in what is moved: it gives bytes back.
  begin();
  if (own_.alone())
    touched_.push_back(0);
  else
    for (const Use& use : tasks_.uses_of(id))
      for (int32_t slot : program_.slots_of[use.buffer.index()]) touch(slot);
  const int32_t first = task.parts.empty() ? -1 : task.parts[0].memory;
  for (size_t p = task.parts.size(); p-- > 0;) {
    const auto memory = static_cast<size_t>(task.parts[p].memory);
    memory_of_[static_cast<size_t>(own_.of_memory[memory])] = task.parts[p].memory;
  }
  for (int32_t rank : touched_) {
    const int32_t own = memory_of_[static_cast<size_t>(rank)];
    found_.push_back({rank, {id, -1, own < 0 ? first : own}});
  }
  for (const Part& part : task.parts)
    memory_of_[static_cast<size_t>(own_.of_memory[static_cast<size_t>(part.memory)])] = -1;
  return found_;
}

JobGraph make_jobs(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
                   const Ownership& own) {
  SiteFinder finder(tasks, program, own);
  std::vector<JobSite> sites;
  for (size_t t = 0; t < tasks.size(); ++t)
    for (const SiteFinder::Found& found : finder.find(TaskId(t), program.tasks[t]))
      if (found.rank == own.rank) sites.push_back(found.site);
  std::vector<int32_t> slots;
  for (size_t s = 0; s < program.slots.size(); ++s)
    if (own.mine(static_cast<int32_t>(s))) slots.push_back(static_cast<int32_t>(s));
  return make_jobs(tasks, program, order, own, sites, slots);
}

JobGraph make_jobs(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
                   const Ownership& own, std::span<const JobSite> sites,
                   std::span<const int32_t> slots) {
  return JobMaker(tasks, program, order, own, sites, slots).make();
}

}  // namespace windlass

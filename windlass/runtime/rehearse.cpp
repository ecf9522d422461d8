#include "windlass/runtime/rehearse.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/runtime/jobs.h"
#include "windlass/runtime/memory_order.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program_maker.h"
#include "windlass/runtime/rank_meetings.h"

namespace windlass {
namespace {

constexpr size_t kFaultsTold = 8;

// A number for what was said so far, in this order: two processes with the same have the same jobs.
class Digest {
 public:
  void add(int64_t word) {
    for (size_t i = 0; i < state_.size(); ++i) {
      uint64_t& state = state_[i];
      state ^= static_cast<uint64_t>(word) + kSeeds[i];
      state *= 0xff51afd7ed558ccd;
      state ^= state >> 32;
    }
  }
  auto operator<=>(const Digest&) const = default;

 private:
  static constexpr std::array<uint64_t, 2> kSeeds = {0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f};
  std::array<uint64_t, 2> state_ = {1, 2};
};

// What a process has to do with, before its jobs are made. Memories have numbers of its own: those
// that are its own first.
struct RankSketch {
  Digest digest;
  std::vector<int32_t> memories;  // by number
  std::vector<NodeId> nodes;      // by number
  std::vector<JobSite> sites;
  std::vector<int32_t> slots;
};

// Processes whose jobs are alike: those of one of them.
struct RankKind {
  JobGraph graph;
  std::vector<int32_t> job_of;   // by task: the last one; -1: none
  std::vector<int32_t> gate_of;  // by memory of the program: place among its own
  std::vector<std::shared_ptr<const MemoryGate::Book>> books;
};

// One process.
struct RehearsedRank {
  const RankKind* kind = nullptr;
  std::vector<std::unique_ptr<MemoryGate>> gates;  // to its own memories
  std::vector<int32_t> before, asking;             // by job
  std::vector<int32_t> missing;                    // by job: peers that have not begun
  std::vector<std::deque<int32_t>> waiting;        // by worker: the first one runs
  std::vector<bool> begun, ended;                  // by job
  int64_t left = 0;

  const Job& job(int32_t j) const { return kind->graph.jobs[static_cast<size_t>(j)]; }
};

// Walks over the tasks, and says what each process has to do with them.
class Sketcher {
 public:
  Sketcher(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
           const std::vector<int32_t>& sample_axes, int32_t ranks)
      : tasks_(tasks), maker_(training, machine, tasks, sample_axes, kOneStep) {
    maker_.begin();
    own = share_out(maker_.program(), machine, 0, ranks);
    sketches.resize(static_cast<size_t>(ranks));
    for (size_t m = 0; m < own.of_memory.size(); ++m)
      number(sketch(own.of_memory[m]), static_cast<int32_t>(m));
    for (RankSketch& one : sketches) one.digest.add(static_cast<int64_t>(one.memories.size()));
    const auto& slots = maker_.program().slots;
    for (size_t s = 0; s < slots.size(); ++s) {
      RankSketch& one = sketch(own.of_slot[s]);
      one.slots.push_back(static_cast<int32_t>(s));
      one.digest.add(slots[s].buffer.value);
      one.digest.add(number(one, slots[s].memory));
    }
  }

  void walk() {
    SiteFinder finder(tasks_, maker_.program(), own);
    MeetingFinder meetings_of(own.ranks);
    std::map<std::vector<int64_t>, Alike> known;
    for (size_t t = 0; t < tasks_.size(); ++t) {
      const TaskId id(t);
      const std::vector<int64_t> likeness = maker_.likeness(id);
      const auto found = likeness.empty() ? known.end() : known.find(likeness);
      if (found != known.end()) {
        maker_.pass_over(id);
        for (const SiteFinder::Found& site : found->second.sites) add_site(id, site);
        meeting_of.push_back(found->second.meeting);
        continue;
      }
      const ProgramTask task = maker_.take(id);
      const std::vector<SiteFinder::Found>& sites = finder.find(id, task);
      for (const SiteFinder::Found& site : sites) add_site(id, site);
      int32_t meeting = -1;
      if (moves(task.kind)) {
        ensure(!task.apart || task.parts.size() == 1, "parts of a move are done apart");
        const TaskCrossings crossings(task, -1, own);
        RankMeeting made = meetings_of.find(crossings);
        if (made.any()) {
          meeting = static_cast<int32_t>(meetings.size());
          meetings.push_back(std::move(made));
        }
      }
      meeting_of.push_back(meeting);
      if (!likeness.empty()) known[likeness] = {sites, meeting};
    }
  }

  const Program& program() const { return maker_.program(); }

  Ownership own;
  std::vector<RankSketch> sketches;  // by rank
  std::vector<RankMeeting> meetings;
  std::vector<int32_t> meeting_of;  // by task: -1: none

 private:
  // Of tasks that are alike.
  struct Alike {
    std::vector<SiteFinder::Found> sites;
    int32_t meeting = -1;
  };

  RankSketch& sketch(int32_t rank) { return sketches[static_cast<size_t>(rank)]; }

  // Number of a memory for a process: what can be told of it is said when it is met first.
  int64_t number(RankSketch& one, int32_t memory) {
    if (memory < 0) return -1;
    const auto known = std::ranges::find(one.memories, memory);
    const int64_t found = known - one.memories.begin();
    if (known != one.memories.end()) return found;
    const RealMemory& real = maker_.program().memories[static_cast<size_t>(memory)];
    one.memories.push_back(memory);
    one.nodes.push_back(real.node);
    one.digest.add(real.memory.value);
    one.digest.add(std::ranges::find(one.nodes, real.node) - one.nodes.begin());
    return found;
  }

  void add_site(TaskId id, const SiteFinder::Found& found) {
    RankSketch& one = sketch(found.rank);
    one.sites.push_back({id, found.site.part, found.site.memory});
    one.digest.add(id.value);
    one.digest.add(found.site.part < 0 ? 0 : 1);
    one.digest.add(number(one, found.site.memory));
  }

  static const RowShape kOneStep;
  const TaskGraph& tasks_;
  ProgramMaker maker_;
};
const RowShape Sketcher::kOneStep = {};

class Rehearser {
 public:
  Rehearser(const TaskGraph& tasks, Sketcher& sketcher, const MemoryOrder& order)
      : tasks_(tasks), meetings_(sketcher.meetings), meeting_of_(sketcher.meeting_of) {
    std::map<Digest, const RankKind*> known;
    for (size_t r = 0; r < sketcher.sketches.size(); ++r) {
      RankSketch sketch = std::exchange(sketcher.sketches[r], {});
      const RankKind*& kind = known[sketch.digest];
      if (kind == nullptr) {
        sketcher.own.rank = static_cast<int32_t>(r);
        kinds_.push_back(make_kind(
            make_jobs(tasks, sketcher.program(), order, sketcher.own, sketch.sites, sketch.slots)));
        kind = &kinds_.back();
      }
      add_rank(*kind);
    }
    begun_in_.resize(tasks.size());
  }

  void run() {
    tell_messages();
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (size_t j = 0; j < ranks_[r].kind->graph.jobs.size(); ++j)
        if (ranks_[r].kind->graph.jobs[j].before == 0)
          come_ready(static_cast<int32_t>(r), static_cast<int32_t>(j));
    while (!ready_.empty()) {
      const auto [r, worker] = ready_.front();
      ready_.pop_front();
      begin_next(r, worker);
    }
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].left > 0) tell_standstill(static_cast<int32_t>(r));
  }

  RehearsalReport found;

 private:
  RankKind make_kind(JobGraph graph) const {
    RankKind made;
    made.job_of.assign(tasks_.size(), -1);
    for (size_t j = 0; j < graph.jobs.size(); ++j)
      made.job_of[graph.jobs[j].task.index()] = static_cast<int32_t>(j);
    for (const auto& gate : graph.gates) {
      made.gate_of.push_back(static_cast<int32_t>(made.books.size()));
      if (gate) made.books.push_back(gate->book);
    }
    made.graph = std::move(graph);
    return made;
  }

  void add_rank(const RankKind& kind) {
    RehearsedRank& rank = ranks_.emplace_back();
    rank.kind = &kind;
    const size_t jobs = kind.graph.jobs.size();
    for (const Job& job : kind.graph.jobs) {
      rank.before.push_back(job.before);
      rank.asking.push_back(static_cast<int32_t>(job.asks.size()));
      const RankMeeting* meeting = meeting_at(job.task);
      const auto r = ranks_.size() - 1;
      rank.missing.push_back(
          meeting == nullptr || meeting->peers_begin.empty()
              ? 0
              : static_cast<int32_t>(meeting->peers_begin[r + 1] - meeting->peers_begin[r]));
    }
    rank.begun.assign(jobs, false);
    rank.ended.assign(jobs, false);
    rank.waiting.resize(kind.graph.workers.size());
    rank.left = static_cast<int64_t>(jobs);
    for (const auto& book : kind.books) {
      rank.gates.push_back(std::make_unique<MemoryGate>(book));
      rank.gates.back()->release = [](const MemoryGate::Life&) {};
      rank.gates.back()->begin_step();
    }
    found.jobs += rank.left;
  }

  RehearsedRank& rank(int32_t id) { return ranks_[static_cast<size_t>(id)]; }
  MemoryGate& gate(RehearsedRank& one, int32_t id) {
    return *one.gates[static_cast<size_t>(one.kind->gate_of[static_cast<size_t>(id)])];
  }
  const RankMeeting* meeting_at(TaskId task) const {
    const int32_t at = meeting_of_[task.index()];
    return at < 0 ? nullptr : &meetings_[static_cast<size_t>(at)];
  }
  std::string name(TaskId task, int32_t part = -1) const {
    return fmt::format("task {} ({}{})", task.value, task_kind_name(tasks_[task].kind),
                       part < 0 ? "" : fmt::format(", part {}", part));
  }
  void fault(std::string text) {
    if (found.faults.size() < kFaultsTold) found.faults.push_back(std::move(text));
  }

  void tell_messages() {
    for (size_t t = 0; t < tasks_.size(); ++t)
      if (const RankMeeting* meeting = meeting_at(TaskId(t))) {
        found.messages += meeting->messages;
        found.bytes += meeting->bytes;
        for (const std::string& text : meeting->faults)
          fault(fmt::format("{}: {}", name(TaskId(t)), text));
      }
  }

  void come_ready(int32_t r, int32_t j) {
    RehearsedRank& here = rank(r);
    if (here.job(j).asks.empty()) return dispatch(r, j);
    for (const Job::Ask& ask : here.job(j).asks) {
      std::vector<int32_t> admitted;
      gate(here, ask.gate).ask(ask.rank, admitted);
      admit(r, admitted);
    }
  }
  void admit(int32_t r, const std::vector<int32_t>& admitted) {
    for (int32_t j : admitted)
      if (--rank(r).asking[static_cast<size_t>(j)] == 0) dispatch(r, j);
  }
  void dispatch(int32_t r, int32_t j) {
    const int32_t worker = rank(r).job(j).worker;
    auto& queue = rank(r).waiting[static_cast<size_t>(worker)];
    queue.push_back(j);
    if (queue.size() == 1) ready_.emplace_back(r, worker);
  }

  // The first one of a thread's queue.
  void begin_next(int32_t r, int32_t worker) {
    RehearsedRank& here = rank(r);
    const auto& queue = here.waiting[static_cast<size_t>(worker)];
    if (queue.empty()) return;
    const int32_t j = queue.front();
    if (here.begun[static_cast<size_t>(j)]) return;
    here.begun[static_cast<size_t>(j)] = true;
    const TaskId task = here.job(j).task;
    const RankMeeting* meeting = meeting_at(task);
    if (meeting == nullptr) return end(r, j);
    if (!meeting->circle_of.empty()) return meet_circle(r, j, *meeting);
    for (uint32_t i = meeting->peers_begin[static_cast<size_t>(r)];
         i < meeting->peers_begin[static_cast<size_t>(r) + 1]; ++i) {
      const int32_t peer = meeting->peers[i], there = job_there(r, peer, task);
      if (there < 0) continue;
      RehearsedRank& other = rank(peer);
      const auto k = static_cast<size_t>(there);
      if (--other.missing[k] == 0 && other.begun[k] && !other.ended[k]) end(peer, there);
    }
    if (here.missing[static_cast<size_t>(j)] == 0 && !here.ended[static_cast<size_t>(j)]) end(r, j);
  }

  // The last one of a circle ends it for all.
  void meet_circle(int32_t r, int32_t j, const RankMeeting& meeting) {
    const int32_t circle = meeting.circle_of[static_cast<size_t>(r)];
    if (circle < 0) return end(r, j);
    const TaskId task = rank(r).job(j).task;
    const std::vector<int32_t>& members = meeting.circles[static_cast<size_t>(circle)];
    std::vector<size_t>& begun = begun_in_[task.index()];
    if (begun.empty()) begun.assign(meeting.circles.size(), 0);
    if (++begun[static_cast<size_t>(circle)] == members.size())
      for (int32_t member : members)
        if (const int32_t there = job_there(r, member, task); there >= 0) end(member, there);
  }

  int32_t job_there(int32_t r, int32_t peer, TaskId task) {
    const int32_t there = rank(peer).kind->job_of[task.index()];
    if (there < 0)
      fault(fmt::format("{}: rank {} has no part in it, but rank {} waits for it", name(task), peer,
                        r));
    return there;
  }

  void end(int32_t r, int32_t j) {
    RehearsedRank& here = rank(r);
    here.ended[static_cast<size_t>(j)] = true;
    --here.left;
    const Job& one = here.job(j);
    auto& queue = here.waiting[static_cast<size_t>(one.worker)];
    queue.pop_front();
    if (!queue.empty()) ready_.emplace_back(r, one.worker);
    std::vector<int32_t> admitted;
    for (const Job::Leave& leave : one.leaves)
      gate(here, leave.gate).leave(leave.workspace, leave.lives, leave.peak_over, admitted);
    for (int32_t next : one.next)
      if (--here.before[static_cast<size_t>(next)] == 0) come_ready(r, next);
    admit(r, admitted);
  }

  void tell_standstill(int32_t r) {
    const RehearsedRank& here = rank(r);
    for (size_t j = 0; j < here.ended.size(); ++j) {
      if (here.ended[j]) continue;
      const Job& one = here.job(static_cast<int32_t>(j));
      return fault(
          fmt::format("rank {} waits for ever: {} of its jobs are left, the first is {}, which {}",
                      r, here.left, name(one.task, one.part),
                      here.begun[j]        ? "waits for other ranks"
                      : here.before[j] > 0 ? "waits for jobs before it"
                      : here.asking[j] > 0 ? "waits for memory"
                                           : "waits for its thread"));
    }
  }

  const TaskGraph& tasks_;
  const std::vector<RankMeeting>& meetings_;
  const std::vector<int32_t>& meeting_of_;  // by task
  std::deque<RankKind> kinds_;
  std::deque<RehearsedRank> ranks_;
  std::vector<std::vector<size_t>> begun_in_;      // by task and circle: members that have begun
  std::deque<std::pair<int32_t, int32_t>> ready_;  // rank and worker
};

}  // namespace

RehearsalReport rehearse(const TrainingGraph& training, const SimulatedStep& step,
                         const Machine& machine, const std::vector<int32_t>& sample_axes,
                         int32_t ranks) {
  Sketcher sketcher(training, machine, step.tasks, sample_axes, ranks);
  sketcher.walk();
  Rehearser rehearser(step.tasks, sketcher, memory_order(step.tasks, step.times, step.result));
  rehearser.run();
  rehearser.found.ranks = ranks;
  rehearser.found.tasks = static_cast<int64_t>(step.tasks.size());
  return std::move(rehearser.found);
}

}  // namespace windlass

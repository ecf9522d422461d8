#include "windlass/runtime/rehearse.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/runtime/jobs.h"
#include "windlass/runtime/memory_order.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/parcels.h"
#include "windlass/runtime/program.h"

namespace windlass {
namespace {

constexpr size_t kFaultsTold = 8;

// One process.
struct RehearsedRank {
  Ownership own;
  JobGraph graph;
  std::vector<int32_t> before, asking;       // by job
  std::vector<std::deque<int32_t>> waiting;  // by worker: the first one runs
  std::vector<std::vector<int32_t>> peers;   // by job: whom it exchanges messages with
  std::vector<int32_t> missing;              // by job: of those, who have not begun
  std::vector<bool> begun, ended;            // by job
  int64_t left = 0;
};

class Rehearser {
 public:
  Rehearser(const TaskGraph& tasks, const Program& program) : tasks_(tasks), program_(program) {}

  void add(Ownership own, const MemoryOrder& order) {
    RehearsedRank& rank = ranks_.emplace_back();
    rank.own = std::move(own);
    rank.graph = make_jobs(tasks_, program_, order, rank.own);
    const auto id = static_cast<int32_t>(ranks_.size() - 1);
    for (size_t j = 0; j < rank.graph.jobs.size(); ++j) {
      const Job& job = rank.graph.jobs[j];
      rank.before.push_back(job.before);
      rank.asking.push_back(static_cast<int32_t>(job.asks.size()));
      rank.peers.emplace_back();
      rank.missing.push_back(0);
      where_[{id, job.task.value, job.part}] = static_cast<int32_t>(j);
      if (moves(program_.tasks[job.task.index()].kind)) note_messages(id, static_cast<int32_t>(j));
    }
    rank.begun.assign(rank.graph.jobs.size(), false);
    rank.ended.assign(rank.graph.jobs.size(), false);
    rank.waiting.resize(rank.graph.workers.size());
    rank.left = static_cast<int64_t>(rank.graph.jobs.size());
    for (const auto& gate : rank.graph.gates) {
      gate->release = [](const MemoryGate::Life&) {};
      gate->begin_step();
    }
    found.jobs += rank.left;
  }

  void run() {
    match_messages();
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (size_t j = 0; j < ranks_[r].graph.jobs.size(); ++j)
        if (ranks_[r].graph.jobs[j].before == 0)
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
  using MessageKey = std::tuple<int32_t, int32_t, int32_t, int32_t, uint32_t>;
  struct MessageSize {
    int64_t bytes = 0;
    size_t parcels = 0;
    bool operator==(const MessageSize&) const = default;
  };

  RehearsedRank& rank(int32_t id) { return ranks_[static_cast<size_t>(id)]; }
  const Job& job(int32_t r, int32_t j) { return rank(r).graph.jobs[static_cast<size_t>(j)]; }
  std::string name(int32_t r, int32_t j) {
    const Job& one = job(r, j);
    return fmt::format("task {} ({}{})", one.task.value,
                       task_kind_name(program_.tasks[one.task.index()].kind),
                       one.part < 0 ? "" : fmt::format(", part {}", one.part));
  }
  void fault(std::string text) {
    if (found.faults.size() < kFaultsTold) found.faults.push_back(std::move(text));
  }

  void note_messages(int32_t r, int32_t j) {
    const Job& one = job(r, j);
    const TaskParcels parcels = make_parcels(program_, rank(r).own, one.task, one.part);
    std::vector<int32_t>& peers = rank(r).peers.back();
    for (uint32_t round = 0; round < TaskParcels::kRounds; ++round) {
      for (const RankMessage& message : parcels.sends[round]) {
        sent_[{one.task.value, one.part, r, message.peer, round}] = {message.bytes,
                                                                     message.parcels.size()};
        peers.push_back(message.peer);
        ++found.messages;
        found.bytes += message.bytes;
      }
      for (const RankMessage& message : parcels.receives[round]) {
        expected_[{one.task.value, one.part, message.peer, r, round}] = {message.bytes,
                                                                         message.parcels.size()};
        peers.push_back(message.peer);
      }
    }
    std::ranges::sort(peers);
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    rank(r).missing.back() = static_cast<int32_t>(peers.size());
  }

  void match_messages() {
    const auto tell = [&](const MessageKey& key, const char* what) {
      fault(fmt::format("task {}: what rank {} sends to rank {} {}", std::get<0>(key),
                        std::get<2>(key), std::get<3>(key), what));
    };
    for (const auto& [key, size] : sent_) {
      const auto other = expected_.find(key);
      if (other == expected_.end())
        tell(key, "is received by nobody");
      else if (other->second != size)
        tell(key, "has another size than is expected there");
    }
    for (const auto& [key, size] : expected_)
      if (!sent_.contains(key)) tell(key, "is expected there, but not sent");
  }

  void come_ready(int32_t r, int32_t j) {
    if (job(r, j).asks.empty()) return dispatch(r, j);
    for (const Job::Ask& ask : job(r, j).asks) {
      std::vector<int32_t> admitted;
      rank(r).graph.gates[static_cast<size_t>(ask.gate)]->ask(ask.rank, admitted);
      admit(r, admitted);
    }
  }
  void admit(int32_t r, const std::vector<int32_t>& admitted) {
    for (int32_t j : admitted)
      if (--rank(r).asking[static_cast<size_t>(j)] == 0) dispatch(r, j);
  }
  void dispatch(int32_t r, int32_t j) {
    const int32_t worker = job(r, j).worker;
    auto& queue = rank(r).waiting[static_cast<size_t>(worker)];
    queue.push_back(j);
    if (queue.size() == 1) ready_.emplace_back(r, worker);
  }

  // The first one of a thread's queue.
  void begin_next(int32_t r, int32_t worker) {
    const auto& queue = rank(r).waiting[static_cast<size_t>(worker)];
    if (queue.empty()) return;
    const int32_t j = queue.front();
    if (rank(r).begun[static_cast<size_t>(j)]) return;
    rank(r).begun[static_cast<size_t>(j)] = true;
    for (int32_t peer : rank(r).peers[static_cast<size_t>(j)]) {
      const auto there = where_.find({peer, job(r, j).task.value, job(r, j).part});
      if (there == where_.end()) {
        fault(fmt::format("{}: rank {} has no part in it, but rank {} waits for it", name(r, j),
                          peer, r));
        continue;
      }
      RehearsedRank& other = rank(peer);
      const auto k = static_cast<size_t>(there->second);
      if (--other.missing[k] == 0 && other.begun[k] && !other.ended[k]) end(peer, there->second);
    }
    if (rank(r).missing[static_cast<size_t>(j)] == 0 && !rank(r).ended[static_cast<size_t>(j)])
      end(r, j);
  }

  void end(int32_t r, int32_t j) {
    RehearsedRank& here = rank(r);
    here.ended[static_cast<size_t>(j)] = true;
    --here.left;
    const Job& one = job(r, j);
    auto& queue = here.waiting[static_cast<size_t>(one.worker)];
    queue.pop_front();
    if (!queue.empty()) ready_.emplace_back(r, one.worker);
    std::vector<int32_t> admitted;
    for (const Job::Leave& leave : one.leaves)
      here.graph.gates[static_cast<size_t>(leave.gate)]->leave(leave.workspace, leave.lives,
                                                               leave.peak_over, admitted);
    for (int32_t next : one.next)
      if (--here.before[static_cast<size_t>(next)] == 0) come_ready(r, next);
    admit(r, admitted);
  }

  void tell_standstill(int32_t r) {
    RehearsedRank& here = rank(r);
    for (size_t j = 0; j < here.graph.jobs.size(); ++j) {
      if (here.ended[j]) continue;
      const auto id = static_cast<int32_t>(j);
      return fault(
          fmt::format("rank {} waits for ever: {} of its jobs are left, the first is {}, which {}",
                      r, here.left, name(r, id),
                      here.begun[j]        ? "waits for other ranks"
                      : here.before[j] > 0 ? "waits for jobs before it"
                      : here.asking[j] > 0 ? "waits for memory"
                                           : "waits for its thread"));
    }
  }

  const TaskGraph& tasks_;
  const Program& program_;
  std::deque<RehearsedRank> ranks_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> where_;  // rank, task, part: job
  std::map<MessageKey, MessageSize> sent_, expected_;
  std::deque<std::pair<int32_t, int32_t>> ready_;  // rank and worker
};

}  // namespace

RehearsalReport rehearse(const TrainingGraph& training, const SimulatedStep& step,
                         const Machine& machine, const std::vector<int32_t>& sample_axes,
                         int32_t ranks) {
  const Program program = make_program(training, machine, step.tasks, sample_axes);
  const MemoryOrder order = memory_order(step.tasks, step.times, step.result);
  Rehearser rehearser(step.tasks, program);
  for (int32_t rank = 0; rank < ranks; ++rank)
    rehearser.add(share_out(program, machine, rank, ranks), order);
  rehearser.run();
  rehearser.found.ranks = ranks;
  rehearser.found.tasks = static_cast<int64_t>(step.tasks.size());
  return std::move(rehearser.found);
}

}  // namespace windlass

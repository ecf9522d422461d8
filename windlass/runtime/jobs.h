// Jobs: what a thread does at one time. A task that every device of a team does by itself is a job
// for each of them; one that moves data between devices is one job for all. A job says what comes
// after it, which gates let it in, and what it leaves behind.
//
// Of several processes each has the jobs that touch its own memories; one that touches those of
// several is a job in each of them. What comes before a job by way of others' jobs still does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "windlass/runtime/memory_gate.h"
#include "windlass/runtime/memory_order.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program.h"
#include "windlass/task/task_graph.h"

namespace windlass {

struct Job {
  TaskId task;
  int32_t part = -1;  // of the task's parts; -1: all of them
  int32_t worker = 0;
  int32_t before = 0;              // jobs that come first
  std::vector<int32_t> next = {};  // jobs that wait for it
  struct Ask {
    int32_t gate = 0, rank = 0;
  };
  std::vector<Ask> asks = {};
  struct Leave {
    int32_t gate = 0;
    int64_t workspace = 0;
    std::vector<int32_t> lives = {};
    bool peak_over = false;
  };
  std::vector<Leave> leaves = {};
};

// A thread: of a device, whose kernels it runs, or of a lane that moves data or updates on a host.
struct Worker {
  LaneKind kind = LaneKind::Compute;
  // Of Program::memories: whose it is; of a lane that several devices share, the first.
  int32_t memory = 0;
};

struct JobGraph {
  std::vector<Job> jobs;  // in the order of tasks
  std::vector<Worker> workers;
  std::vector<std::unique_ptr<MemoryGate>> gates;  // by Program::memories; of others' there is none
};

// Where a process has to do with a task: it has a job there.
struct JobSite {
  TaskId task;
  int32_t part = -1;    // as of the job
  int32_t memory = -1;  // of Program::memories: where it computes; not always the process's own
};

// Finds the sites of all processes, task by task. Refers to its arguments; the rank of `own` does
// not matter.
class SiteFinder {
 public:
  SiteFinder(const TaskGraph& tasks, const Program& program, const Ownership& own);
  struct Found {
    int32_t rank = 0;
    JobSite site;
  };
  // In the order of parts. Valid until the next call.
  const std::vector<Found>& find(TaskId id, const ProgramTask& task);

 private:
  void begin();
  void touch(int32_t slot);

  const TaskGraph& tasks_;
  const Program& program_;
  const Ownership& own_;
  std::vector<Found> found_;
  std::vector<int32_t> touched_;     // ranks, of the part at hand
  std::vector<int64_t> touched_at_;  // by rank: when it was touched last
  std::vector<int32_t> memory_of_;   // by rank, -1: none: of the parts, the first that is its own
  int64_t now_ = 0;
};

JobGraph make_jobs(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
                   const Ownership& own);
// The same for whoever knows the process's sites, in the order of tasks, and its slots, ascending:
// the tasks of the program may be missing.
JobGraph make_jobs(const TaskGraph& tasks, const Program& program, const MemoryOrder& order,
                   const Ownership& own, std::span<const JobSite> sites,
                   std::span<const int32_t> slots);

}  // namespace windlass

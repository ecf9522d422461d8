// Tasks that do nothing but add up arrays, of each rank one, for all of these ranks: what the
// library that carries messages has its own algorithms for (Ranks::SumGroup).
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "windlass/run/ranks.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

// The ranks of each sum of a task, ascending, if all it does is such sums in fp32; else nothing.
// All ranks come to the same.
std::vector<std::vector<int32_t>> plain_sums(const ProgramTask& task, const Ownership& own);

class PlainSums {
 public:
  // Makes the groups that this rank is in; all ranks do so at the same time. Tasks of the same
  // lanes share a group: they follow each other in the same order on all ranks.
  PlainSums(const Program& program, const TaskGraph& tasks, const Ownership& own, Ranks& ranks);

  // Whether a task is one of them; its sums are carried out then.
  bool run(TaskId task, Slots& slots);

 private:
  struct Sum {
    int32_t sum = 0;  // of ProgramTask::sums
    Ranks::SumGroup* group = nullptr;
  };
  const Program& program_;
  const Ownership& own_;
  std::vector<std::unique_ptr<Ranks::SumGroup>> groups_;
  std::map<TaskId, std::vector<Sum>> of_task_;  // those of this rank
};

}  // namespace windlass

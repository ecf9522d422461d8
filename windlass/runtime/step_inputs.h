// Data of steps: brought into the slots where tasks find it. That of the first step of a row is
// there before it begins; that of later ones is brought by the tasks that use it first, inside of
// the memory that they were granted.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

class StepInputs {
 public:
  // Refers to its arguments.
  StepInputs(const TrainingGraph& training, const TaskGraph& tasks, const Program& program,
             Slots& slots, const Ownership& own);

  // Takes memory for what is there from the start, and fills it.
  void begin(const StepRequest& request);
  // The slots of a buffer that a part of a task (-1: all of it) is the first to use. Several
  // threads may at the same time; the request's data is asked for by one at a time.
  void bring(const StepRequest& request, BufferId buffer, TaskId task, int32_t part);

 private:
  // A tensor of a micro-batch of a step of the row, as long as some slots still want parts of it.
  using Key = std::tuple<size_t, TensorId, int32_t>;
  struct Whole {
    std::vector<std::byte> bytes;
    int64_t slots_left = 0;
  };
  // `memory`: of the program; -1: all.
  void fill(const StepRequest& request, BufferId buffer, int32_t memory);

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  const Program& program_;
  Slots& slots_;
  const Ownership& own_;
  std::map<Key, int64_t> wanted_;  // by how many slots of this process
  std::vector<size_t> step_;       // by buffer of data
  std::mutex mutex_;
  std::map<Key, Whole> whole_;
};

}  // namespace windlass

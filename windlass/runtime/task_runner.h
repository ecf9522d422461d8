// Carries out single tasks: finds the operands in their slots and calls kernels, copies, updates.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "windlass/runtime/executor.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

class TaskRunner {
 public:
  TaskRunner(const TrainingGraph& training, const TaskGraph& tasks, const Program& program,
             Slots& slots, const ExecutorOptions& options);

  // What all tasks of a step share.
  void begin_step(const StepRequest& request);
  // On the thread of the task's lane. Memory has been granted.
  void run(TaskId task);

  double loss() const;
  double gradient_norm() const { return norm_; }
  void set_bandwidth(BytesPerSecond in, BytesPerSecond out) { in_ = in, out_ = out; }
  std::function<void(TensorId, std::span<const std::byte>)> watch;

  // "backward of conv1, micro-batch 3".
  std::string label(TaskId task) const;

 private:
  void compute(const ProgramTask& task);
  void sum(const ProgramTask& task);
  void add_squares(const ProgramTask& task);
  void update(const ProgramTask& task);
  void copy(const ProgramTask& task);
  void compress(const ProgramTask& task, TaskId id);
  at::Tensor operand(const Operand& operand) const;
  std::vector<at::Tensor> operands(const std::vector<Operand>& list) const;
  void keep(const std::vector<Operand>& list, std::span<Result> results);
  std::vector<Result> results(const std::vector<Operand>& list) const;
  RandomKey random_key(OpId op) const;
  // Where the random numbers of a micro-batch lie.
  PieceFacts facts_of(OpId op, int32_t micro_batch) const;
  double gradient_scale(const ProgramTask& task);
  const Op& update_op(int32_t update) const {
    return training_.graph
        .ops[training_.forward_ops + training_.backward_ops + static_cast<size_t>(update)];
  }

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  const Program& program_;
  Slots& slots_;
  const ExecutorOptions options_;
  StepRequest request_;
  BytesPerSecond in_{0}, out_{0};
  std::vector<double> losses_;  // by micro-batch
  std::mutex watch_mutex_;
  std::atomic<double> norm_ = 0;  // all updates of a step find the same
};

}  // namespace windlass

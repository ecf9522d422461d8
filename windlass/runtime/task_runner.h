// Carries out what a device does of a task: finds the operands in their slots and calls kernels,
// copies, updates.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "windlass/runtime/exchange.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/link_pacer.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

class TaskRunner {
 public:
  // Refers to its arguments. The program's pieces are told what their means divide by.
  TaskRunner(const TrainingGraph& training, const TaskGraph& tasks, Program& program, Slots& slots,
             const Ownership& own, const Machine& machine, const ExecutorOptions& options);

  // What all tasks of each step share; as many as the program has steps in a row.
  void begin(std::vector<StepRequest> requests);
  const StepRequest& request(size_t step) const { return requests_[step]; }
  // One part of a task, or all of it (-1), on the calling thread. Memory has been granted.
  void run(TaskId task, int32_t part);

  // Whether other processes have a part in it.
  bool crosses(TaskId task, int32_t part) const { return exchange_.crosses(task, part); }

  // Of a step of the row that ran last, as far as it got.
  double loss(size_t step) const;
  std::vector<double> losses(size_t step) const;  // by micro-batch
  // What this process has seen of them, and what others have.
  std::vector<std::vector<double>>& seen_losses(size_t step) { return losses_[step]; }
  void set_gradient_norm(size_t step, double norm) { norms_[step] = norm; }
  double gradient_norm(size_t step) const { return norms_[step]; }
  std::function<void(const GradientPiece&)> watch;
  const LinkPacer& links() const { return pacer_; }

  // Brings data of a later step of a row, for one part of a task or for all.
  std::function<void(BufferId, TaskId, int32_t part)> bring;

  // The step has failed: what waits for a link waits no longer.
  void stop() { pacer_.stop(); }

  // "backward conv1, micro-batch 3, on cpu1"; of a task that several devices do together, all of
  // them.
  std::string label(TaskId task, int32_t part = -1) const;

 private:
  std::string devices_of(TaskId id) const;
  void run_part(TaskId id, const Part& part);
  void compute(TaskId id, const Part& part);
  void note_loss(TaskId id, const Part& part, const at::Tensor& loss);
  void sum(TaskId id, const Part& part);
  void add_squares(const Part& part);
  void update(TaskId id, const Part& part);
  // The sum of a weight's gradients, where it is updated.
  at::Tensor gradient(const WeightUpdate& update) const;
  void copy(const Part& part, bool alone);
  bool does(const Part& part) const;
  bool counts(TaskId id) const;
  void compress(TaskId id, const Part& part);
  void allocate(const std::vector<int32_t>& slots);
  std::vector<at::Tensor> operands(const std::vector<Operand>& list) const;
  void keep(const std::vector<Operand>& list, std::span<Result> results);
  std::vector<Result> results(const std::vector<Operand>& list) const;
  RandomKey random_key(TaskId id, OpId op) const;
  double gradient_scale(TaskId id, const Part& part);
  const StepRequest& request_of(TaskId id) const { return requests_[program_.step_of(id)]; }
  const Op& update_op(int32_t update) const {
    return training_.graph
        .ops[training_.forward_ops + training_.backward_ops + static_cast<size_t>(update)];
  }

  const TrainingGraph& training_;
  const TaskGraph& tasks_;
  Program& program_;
  Slots& slots_;
  const ExecutorOptions options_;
  const Ownership& own_;
  DeviceExchange exchange_;
  LinkPacer pacer_;
  bool paces_ = false;
  std::vector<StepRequest> requests_;                     // by step
  std::vector<std::vector<std::vector<double>>> losses_;  // by step, micro-batch and member
  std::mutex watch_mutex_, host_mutex_;
  std::vector<std::atomic<double>> norms_;  // by step: all updates of it find the same
};

}  // namespace windlass

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

  // What all tasks of a step share.
  void begin_step(const StepRequest& request);
  // One part of a task, or all of it (-1), on the calling thread. Memory has been granted.
  void run(TaskId task, int32_t part);

  // Whether other processes have a part in it.
  bool crosses(TaskId task, int32_t part) const { return exchange_.crosses(task, part); }

  // Of the step that ran last, as far as it got.
  double loss() const;
  std::vector<double> losses() const;  // by micro-batch
  // What this process has seen of them, and what others have: empty if it is alone.
  std::vector<std::vector<double>>& seen_losses() { return losses_; }
  void set_gradient_norm(double norm) { norm_ = norm; }
  double gradient_norm() const { return norm_; }
  std::function<void(const GradientPiece&)> watch;
  const LinkPacer& links() const { return pacer_; }

  // The step has failed: what waits for a link waits no longer.
  void stop() { pacer_.stop(); }

  // "backward conv1, micro-batch 3, on cpu1"; of a task that several devices do together, all of
  // them.
  std::string label(TaskId task, int32_t part = -1) const;

 private:
  std::string devices_of(TaskId id) const;
  void run_part(TaskId id, const Part& part);
  void compute(TaskId id, const Part& part);
  void note_loss(const Part& part, int32_t micro_batch, const at::Tensor& loss);
  void sum(TaskId id, const Part& part);
  void add_squares(const Part& part);
  void update(const Part& part);
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
  RandomKey random_key(OpId op) const;
  double gradient_scale(const Part& part);
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
  StepRequest request_;
  std::vector<std::vector<double>> losses_;  // by micro-batch and member
  std::mutex watch_mutex_;
  std::atomic<double> norm_ = 0;  // all updates of a step find the same
};

}  // namespace windlass

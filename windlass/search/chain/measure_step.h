// What a simulated step says of single ops: their time, and the bytes that are live beside the
// saved tensors that the chain decides about. So weights, gradients, optimizer state, buffers of
// communication and workspace count as they are, whatever the strategy.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/book/evaluate.h"
#include "windlass/task/facts.h"

namespace windlass {

struct StepMeasure {
  Nanoseconds makespan = 0;
  std::vector<Nanoseconds> time;     // by op of the training graph: on one member of its group
  std::vector<int64_t> beside;       // by op: live while it runs, at most
  std::vector<int64_t> saved_bytes;  // by saved tensor that is decided about: on a member, of one
                                     // micro-batch
  std::vector<int64_t> gathered_bytes;  // by the same: of copies that the backward pass makes
  std::vector<int64_t> floor;           // by group: live beside saved tensors at any time, at most
};

// `decides`: by saved tensor. The strategy keeps all of these.
StepMeasure measure_step(const TrainingFacts& facts, const Strategy& strategy,
                         const std::vector<bool>& decides, const Evaluator::Run& run);

// Nanoseconds that a byte takes in tasks of a kind, by group, as they are in `run`. 0: there are
// none.
std::vector<double> byte_times(const Strategy& strategy, const Evaluator::Run& run, TaskKind kind);
// Whether tasks of this kind run beside the kernels of their device.
bool runs_beside(const Evaluator::Run& run, TaskKind kind);

}  // namespace windlass

// The slow executor: carries out a task graph of any number of devices in double precision, one
// task after the other in the order of their ids, with the reference interpreter.
//
// It is to the runtime what the naive simulator is to the simulator. Everything it does, it does
// because a task says so: what no task has brought to a member is not there, and reading it is an
// error. Whether tasks wait for each other is not its business but the checker's.
#pragma once

#include <functional>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/reference/training_step.h"
#include "windlass/graph/reference/update.h"
#include "windlass/machine/machine.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// What a step starts from.
struct StepStart {
  // By tensor: weights, buffers, optimizer state, whole. Constants are known from the graph.
  TensorValues values;
  // Inputs and labels of a micro-batch.
  std::function<Array(TensorId, int32_t micro_batch)> data;
  // Random numbers of a forward op in a micro-batch; where these are unequal, of the batch: asked
  // for as those of micro-batch 0.
  std::function<RandomState(OpId, int32_t micro_batch)> random;
  int32_t micro_batches = 1;
  BatchAxes batch = {};  // of the network before it was cut; may be empty if there are no divisors
  UpdateHyperparameters hyperparameters = {};
  int64_t step = 1;
};

// What it ends with. Everything whole, put together from the pieces.
struct StepEnd {
  // By micro-batch: their mean is the loss of the batch. Of the batch if the training graph is of
  // all.
  std::vector<double> losses;
  std::vector<Array> gradients;            // by update op: as the updates saw them, not clipped
  std::vector<Array> weights;              // by update op
  std::vector<std::vector<Array>> states;  // by update op: master copy and the optimizer's tensors
};

// Throws Error{Internal} naming the task if it reads what is not there or is not what it says, if
// copies of the same part differ at the end, or if a part is missing.
StepEnd run_tasks(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
                  const StepStart& start);

// The same step without a task graph: micro-batch by micro-batch, op by op, on whole tensors. Those
// of unequal sizes are the step of the batch itself, and refused here.
StepEnd run_plainly(const TrainingGraph& training, const StepStart& start);

}  // namespace windlass

// From a network to a training step: explicit backward and update ops over the same op table.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/graph/graph.h"
#include "windlass/graph/op_info.h"

namespace windlass {

struct TrainingOptions {
  OptimizerKind optimizer = OptimizerKind::Adam;
  // 16-bit weights are updated through an fp32 copy that belongs to the optimizer.
  bool master_weights = true;
  // Type of weight gradients; unset: that of the weight.
  std::optional<DType> gradient_dtype = std::nullopt;
  // Gradients are scaled down to this norm over all weights; 0: they are as they are.
  double clip_norm = 0;
  // What who runs the step does with gradients and weights (cost/runner.h). They keep their memory
  // from step to step; groups of devices that compute with a weight of another group have optimizer
  // state for it; gradients are reduced while the backward pass goes on.
  bool keeps_gradients = false;
  bool ties_have_state = false;
  bool overlaps_reduction = true;
};

// A tensor that lives from the forward to the backward pass.
struct SavedTensor {
  TensorId tensor;              // the tensor that owns the memory (never a view)
  OpId producer;                // none for data inputs
  std::vector<OpId> consumers;  // backward ops that read it or a view of it, ascending
  Bytes bytes;
};

struct UnequalMicroBatches;

// One training step: forward ops, then backward ops in reverse, then one update per trained weight.
// `graph` is in topological order as it stands; gradients that arrive from several consumers are
// summed by Accumulate ops as soon as two are there.
struct TrainingGraph {
  Graph graph;
  TrainingOptions options;
  size_t forward_ops = 0;             // ops [0, forward_ops) are forward,
  size_t backward_ops = 0;            // the next backward_ops backward, the rest updates
  TensorId loss_gradient;             // constant 1
  TensorId squares;                   // of all weights' gradients, summed up; none: not clipped
  std::vector<TensorId> gradient_of;  // by tensor: its gradient, if it has one
  std::vector<SavedTensor> saved;     // activations, auxiliaries, inputs and labels, by tensor id
  // Where the step of a batch is cut into micro-batches of two sizes, this is the step of a larger
  // one. None: all are like this.
  std::shared_ptr<const UnequalMicroBatches> unequal = nullptr;

  // The step of a micro-batch: with the same ops, tensors and ids, other sizes alone.
  const TrainingGraph& of(int32_t micro_batch) const;
};

// A batch whose number of micro-batches does not divide it: their sizes differ by one, larger ones
// first (part_of).
struct UnequalMicroBatches {
  int64_t count = 0;      // micro-batches
  BatchAxes batch;        // of the network before it was cut
  TrainingGraph smaller;  // one sample less
};

inline const TrainingGraph& TrainingGraph::of(int32_t micro_batch) const {
  return unequal && micro_batch >= unequal->batch.samples % unequal->count ? unequal->smaller
                                                                           : *this;
}

// What gradients are multiplied by so that their norm is at most `clip_norm`, where their squares
// sum up to `squares`. As torch.nn.utils.clip_grad_norm_ does.
double clip_scale(double clip_norm, double squares);

// Number of fp32 state tensors, each the size of the weight, that an optimizer keeps.
int optimizer_state_count(OptimizerKind optimizer);

std::optional<OptimizerKind> optimizer_from_name(std::string_view name);

// Differentiates the graph's loss with respect to every trainable weight. Throws Error{Input} if
// there is no loss, no trainable weight, or no path between them.
TrainingGraph differentiate(const Graph& graph, const TrainingOptions& options = {});

// Bytes and arithmetic of a training step, before any plan: everything resident on one device.
struct TrainingTotals {
  Arithmetic forward;
  Arithmetic backward;
  Bytes weights;  // trainable or not, as the passes use them
  Bytes buffers;
  Bytes weight_gradients;
  Bytes optimizer;  // master copies and states
  Bytes saved;      // activations and auxiliaries kept for the backward pass, inputs included
  Bytes inputs;     // data and labels of a step
};
TrainingTotals totals_of(const TrainingGraph& training);

}  // namespace windlass

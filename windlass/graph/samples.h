// Samples in a training step: which part of each tensor and of each op some of them make. What
// carries out a batch in parts (micro-batches, replicas) cuts the ops of the whole batch, so that
// means are those of the batch and every element draws the random numbers it always draws.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/graph/op_piece.h"

namespace windlass {

// What a part of the samples makes of a tensor.
enum class SampleKind : uint8_t {
  Fixed,   // all of it, whichever the samples
  Apart,   // the part of its samples
  Summed,  // a term: the tensor is the sum over the parts
};

struct SampleAxes {
  int64_t samples = 0;           // of the whole batch
  std::vector<SampleKind> kind;  // by tensor
  std::vector<int32_t> axis;     // by tensor: of those that are Apart, whose outermost part is the
                                 // sample; -1
  std::vector<int32_t> loop;     // by op, backward ops as their forward op: likewise; -1

  // The part of an axis or loop of so many elements that a range of samples makes, of those that
  // make `of`.
  Range part(int64_t size, const Range& of, const Range& range) const {
    const int64_t each = size / samples;
    return {of.begin + range.begin * each, of.begin + range.end * each};
  }
  // Elements of a tensor that so many samples make.
  int64_t elements(const Graph& graph, TensorId tensor, int64_t of) const {
    const int64_t all = element_count(graph[tensor].type.shape);
    return axis[tensor.index()] < 0 ? all : all / samples * of;
  }
};

// `training` is of the whole batch. Throws Error{Unsupported} if the batch cannot be carried out in
// parts: an op mixes samples, or the loss is not a sum of means over them.
SampleAxes find_samples(const TrainingGraph& training);

// Cuts parts of the loops of an op of the training graph further: to a range of the samples that
// they have.
void take_samples(const SampleAxes& axes, OpId op, const LoopNest& nest, const Range& samples,
                  std::vector<LoopPart>& parts);

}  // namespace windlass

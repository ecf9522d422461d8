// What a simulated step says about one op or one tensor: its work, what it exchanges, when it
// lives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/plan/step.h"

namespace windlass {

// All tasks of one kind that carry out an op, on the device where they take longest.
struct OpWork {
  TaskKind kind = TaskKind::Forward;  // Forward, Recompute, Backward
  int64_t runs = 0;                   // in a step
  Seconds each;                       // the longest
  Seconds total;
};

// Transfers of one kind that carry a tensor of an op.
struct OpMove {
  TaskKind kind = TaskKind::Collective;
  std::string tensor;
  int64_t runs = 0;
  Bytes bytes;         // that one device sends in a step; of all tensors that travel together
  int64_t others = 0;  // tensors that travel with it at most
  Seconds total;       // under way, alone or beside other work
};

struct OpParts {
  std::vector<OpWork> work;
  std::vector<OpMove> moves;  // by the time they are under way, the longest first
};
// `op` is a forward op; its backward op counts with it.
OpParts parts_of(const SimulatedStep& step, const TrainingGraph& training, OpId op);

// A stay of a tensor in a memory.
struct TensorStay {
  std::string memory;
  BufferKind kind = BufferKind::Activation;
  Bytes bytes;  // of each device, or of a host
  Seconds begin, end;
  bool always = false;  // all through the step and beyond
};

struct TensorParts {
  // Of the first micro-batch that has some, by the time they begin, then by memory.
  std::vector<TensorStay> stays;
  int64_t micro_batches = 0;  // that have a copy of their own; 0: one for all
  // Over all micro-batches and of the tensor itself, without its gradient.
  Bytes most_on_device;  // at once
  Bytes at_peak;         // at the peak of the fullest device
};
TensorParts parts_of(const SimulatedStep& step, TensorId tensor);

}  // namespace windlass

// Slots: the real memory of the buffers of a task graph, while they are alive.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "windlass/graph/graph.h"
#include "windlass/runtime/memory/arena.h"
#include "windlass/task/task_graph.h"

namespace windlass {

class Slots {
 public:
  // `arenas` by memory of the graph.
  Slots(const TaskGraph& tasks, std::vector<Arena*> arenas)
      : tasks_(tasks), arenas_(std::move(arenas)), slots_(tasks.buffers.size()) {}

  // Memory for a buffer, as long as it is rounded in the graph.
  void allocate(BufferId buffer);
  // A tensor that was made by a kernel becomes the buffer. Throws Error{Internal} unless it is the
  // only owner of its bytes and they were taken from the arena of the buffer's memory: a buffer
  // that borrowed them would not know when they are given back.
  void adopt(BufferId buffer, at::Tensor tensor);
  void release(BufferId buffer) { slots_[buffer.index()].reset(); }
  bool holds(BufferId buffer) const { return slots_[buffer.index()].defined(); }

  // The buffer as a tensor of a type, which shares its bytes: it is good until the buffer is
  // released. Throws Error{Internal} if the buffer is not alive or too small.
  at::Tensor view(BufferId buffer, const TensorType& type) const;
  // All of it, from `offset` on.
  std::span<std::byte> bytes(BufferId buffer) const;
  at::Tensor part(BufferId buffer, int64_t offset, const TensorType& type) const;

 private:
  const TaskGraph& tasks_;
  std::vector<Arena*> arenas_;
  std::vector<at::Tensor> slots_;
};

}  // namespace windlass

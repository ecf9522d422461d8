// Where the walk over packs of layers goes when it is not to end in tasks of layers: it says what
// it would make, and the sink makes that at another grain.
//
// Before each task the walk appends to the lists of the graph what the task waits for, and which
// buffers it uses; the sink takes them off again. Buffers are numbers of the sink's own.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/task/packs/pack_tasks.h"

namespace windlass {

class PackSink {
 public:
  virtual ~PackSink() = default;

  // Bytes of weights with buffers, of weights, and of optimizer state.
  struct Part {
    int64_t state = 0, weights = 0, optimizer = 0;
  };
  // What a layer that is large moves in, at most so many.
  virtual std::vector<Part> cut(int32_t layer, int64_t parts) = 0;

  // A pack begins, in one of the passes.
  virtual void begin_pack(Pack pack, bool backward) = 0;
  virtual BufferId buffer(MemoryId memory, BufferKind kind, const PackLabel& what) = 0;
  // The tasks of some layers, or of an update. The last of them, or one after which they would be
  // done if there are none.
  virtual TaskId compute(TaskKind kind, LaneId lane, const PackLabel& what) = 0;
  virtual TaskId move(TaskKind kind, LaneId lane, PackMove how, const PackLabel& what) = 0;
};

}  // namespace windlass

// Makes libtorch allocate from arenas: everything that a thread asks libtorch for, results,
// temporaries and the scratch of its libraries, is counted in the arena of that thread.
#pragma once

#include "windlass/runtime/memory/arena.h"

namespace windlass {

// Replaces libtorch's allocator for host memory, for the whole process, once. Threads that are
// bound to no arena share one without a limit. Blocks of the allocator that was there before are
// still given back to it.
void install_allocator();

// Binds the calling thread, while this exists, and the threads that libtorch divides its loops
// over on behalf of it.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena);
  // Bound to none.
  ArenaScope();
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena* previous_;
};

}  // namespace windlass

// Blocks that notice misuse, for tests and for runs that ask for it (--paranoid).
//
// Each block is a mapping of its own whose last byte lies before a page that nobody may touch. It
// begins as NaN (all bits set), so that what is read before it is written shows; the bytes around
// it hold a pattern that is checked when it comes back; and what came back stays mapped for a while
// without being accessible, so that whoever still reads or writes it is caught in the act. About a
// page fault a page dearer than plain blocks.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <utility>

namespace windlass {

// Not for several threads at once: the arena locks.
class GuardedBlocks {
 public:
  GuardedBlocks() = default;
  ~GuardedBlocks();
  GuardedBlocks(const GuardedBlocks&) = delete;
  GuardedBlocks& operator=(const GuardedBlocks&) = delete;

  // A block of `bytes`, aligned to 64, with room for `before` bytes that belong to the caller in
  // front of it. Null if the system has none.
  void* take(size_t before, size_t bytes);
  // Of a block made by take() with the same sizes. False if bytes beside it were written.
  bool give_back(void* block, size_t before, size_t bytes);

 private:
  std::deque<std::pair<void*, size_t>> closed_;  // mappings that nobody may touch, oldest first
};

// From now on a use of memory that is not accessible ends the process with exit code 4 and a line
// that says what the thread was doing (see doing()). Once a process.
void report_bad_accesses();
// What the calling thread does: part of that line. Cut off after some 200 characters.
void doing(const std::string& what);

}  // namespace windlass

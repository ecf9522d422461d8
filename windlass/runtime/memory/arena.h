// An arena: a memory with a limit. Every byte of it that somebody holds is counted.
//
// The process never has more pages of this memory than the limit says, but for those that blocks
// have in part and a sixteenth of the limit for what lies between them; and they are kept
// (address_space.h), so that a step costs few page faults or none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "windlass/runtime/memory/address_space.h"
#include "windlass/runtime/memory/guarded_blocks.h"

namespace windlass {

struct ArenaStatistics {
  int64_t live = 0;  // held now
  int64_t peak = 0;  // most since reset_peak()
  int64_t blocks = 0;
};

// May be used from several threads.
class Arena {
 public:
  // Sizes are rounded up to multiples of `unit`. `name` begins messages. With `guarded`, blocks
  // notice misuse (guarded_blocks.h), and their pages are not kept.
  Arena(std::string name, int64_t limit, int64_t unit, bool guarded = false);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // A block of at least `bytes` (more than 0), aligned to 64 bytes. Throws Error{OutOfMemory}, and
  // takes nothing, if the limit would be exceeded: the message says how much was asked for, what is
  // live, and what `describe` (see set_context) adds.
  void* allocate(size_t bytes);
  // A block of any arena goes back to the one it came from.
  static void release(void* block);
  // The arena that a block came from.
  static Arena& owner(void* block);

  ArenaStatistics statistics() const;
  int64_t limit() const { return limit_; }
  // The peak counts from what is live now.
  void reset_peak();
  // Gives pages that nobody uses back to the system.
  void trim();
  // Throws Error{Internal} if bytes beside a guarded block were found changed when it came back.
  void check_guards() const;
  // What an error message says beside the numbers: the task that runs and what is alive.
  void set_context(std::function<std::string()> describe);

  // Bytes that a request really takes.
  int64_t rounded(int64_t bytes) const { return (bytes + unit_ - 1) / unit_ * unit_; }

 private:
  struct Header;
  void* take_guarded(int64_t size, size_t bytes);
  void* take(int64_t size);

  const std::string name_;
  const int64_t limit_;
  const int64_t unit_;
  mutable std::mutex mutex_;
  ArenaStatistics statistics_;
  AddressSpace space_;
  std::function<std::string()> describe_;
  std::unique_ptr<GuardedBlocks> guarded_;
  int64_t damaged_ = 0;  // guarded blocks with bytes changed beside them
};

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

}  // namespace windlass

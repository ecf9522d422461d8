// A gate to one memory: who takes bytes of it is let in in the order of the simulation, and what
// dies is given back in that order too (memory_order.h).
//
// Whoever is next and fits is let in. A gate has a lock of its own; nothing is called with it held
// but what gives a slot's bytes back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "windlass/base/id.h"
#include "windlass/task/task_graph.h"

namespace windlass {

class MemoryGate {
 public:
  // What enters: by rank, as each step has it.
  struct Entry {
    int64_t bytes = 0, workspace = 0;
    std::vector<int32_t> jobs;  // that are let in together, once all of them have asked
  };
  // What dies in it.
  struct Life {
    std::vector<int32_t> slots = {};
    int64_t bytes = 0;
    int32_t uses = 0;   // jobs that use it
    int32_t rank = 0;   // entries that come first
    bool held = false;  // until the peak is over
  };

  // What it goes by, which gates of memories that are used alike may share.
  struct Book {
    // Most that is live, and what is when a step begins.
    int64_t cap = 0, at_start = 0;
    std::vector<Entry> entries = {};
    std::vector<Life> lives = {};
    bool has_peak = false;  // some job's end is the end of the peak
  };
  explicit MemoryGate(std::shared_ptr<const Book> goes_by) : book(std::move(goes_by)) {}
  const std::shared_ptr<const Book> book;

  // Releases the slots of a life.
  std::function<void(const Life&)> release;

  void begin_step();
  // A job asks for entry `rank`. Adds the jobs that are let in now to `admitted`.
  void ask(int32_t rank, std::vector<int32_t>& admitted);
  // A job has ended: what it took beside its buffers goes, `ended` lives have a user less, and the
  // peak may be over.
  void leave(int64_t workspace, const std::vector<int32_t>& ended, bool peak_over,
             std::vector<int32_t>& admitted);

 private:
  void admit(std::vector<int32_t>& admitted);
  bool releasable(const Life& life) const;
  void release_deferred();

  std::mutex mutex_;
  size_t next_ = 0;
  int64_t live_ = 0;
  bool peak_over_ = false;
  std::vector<int32_t> asked_;      // by rank: how many of its jobs
  std::vector<int32_t> uses_left_;  // by life
  std::vector<int32_t> deferred_;
};

}  // namespace windlass

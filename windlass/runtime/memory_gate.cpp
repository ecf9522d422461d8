#include "windlass/runtime/memory_gate.h"

namespace windlass {

void MemoryGate::begin_step() {
  const std::lock_guard lock(mutex_);
  next_ = 0;
  live_ = book->at_start;
  peak_over_ = !book->has_peak;
  asked_.assign(book->entries.size(), 0);
  uses_left_.clear();
  for (const Life& life : book->lives) uses_left_.push_back(life.uses);
  deferred_.clear();
}

void MemoryGate::ask(int32_t rank, std::vector<int32_t>& admitted) {
  const std::lock_guard lock(mutex_);
  ++asked_[static_cast<size_t>(rank)];
  admit(admitted);
}

void MemoryGate::leave(int64_t workspace, const std::vector<int32_t>& ended, bool peak_over,
                       std::vector<int32_t>& admitted) {
  const std::lock_guard lock(mutex_);
  live_ -= workspace;
  for (int32_t id : ended) {
    if (--uses_left_[static_cast<size_t>(id)] > 0) continue;
    const Life& life = book->lives[static_cast<size_t>(id)];
    if (releasable(life)) {
      release(life);
      live_ -= life.bytes;
    } else {
      deferred_.push_back(id);
    }
  }
  if (peak_over) {
    peak_over_ = true;
    release_deferred();
  }
  admit(admitted);
}

// Called with the lock held, like those below.
void MemoryGate::admit(std::vector<int32_t>& admitted) {
  while (next_ < book->entries.size()) {
    const Entry& entry = book->entries[next_];
    if (asked_[next_] < static_cast<int32_t>(entry.jobs.size())) return;
    if (live_ + entry.bytes + entry.workspace > book->cap) return;
    ++next_;
    live_ += entry.bytes + entry.workspace;
    admitted.insert(admitted.end(), entry.jobs.begin(), entry.jobs.end());
    release_deferred();
  }
}

bool MemoryGate::releasable(const Life& life) const {
  return static_cast<size_t>(life.rank) <= next_ && (!life.held || peak_over_);
}

void MemoryGate::release_deferred() {
  std::erase_if(deferred_, [&](int32_t id) {
    const Life& life = book->lives[static_cast<size_t>(id)];
    if (!releasable(life)) return false;
    release(life);
    live_ -= life.bytes;
    return true;
  });
}

}  // namespace windlass

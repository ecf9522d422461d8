#include "windlass/runtime/memory/arena.h"

#include <new>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/base/units.h"

namespace windlass {

// Stands before each block, in a cache line of its own.
struct alignas(64) Arena::Header {
  Arena* arena = nullptr;
  int64_t size = 0;      // as it is counted
  size_t requested = 0;  // guarded: what was asked for
};

namespace {

// Between the blocks of a step some percent of the addresses are idle (address_space.h). If there
// were no pages for those, a memory that is full to its limit would give back and take again many
// times as many in every step.
constexpr int64_t kBetweenBlocks = 16;

int64_t pages_for(int64_t limit) {
  return limit > kNoLimit - limit / kBetweenBlocks ? kNoLimit : limit + limit / kBetweenBlocks;
}

}  // namespace

Arena::Arena(std::string name, int64_t limit, int64_t unit, bool guarded)
    : name_(std::move(name)), limit_(limit), unit_(unit), space_(pages_for(limit)) {
  if (guarded) guarded_ = std::make_unique<GuardedBlocks>();
}

Arena::~Arena() = default;

void* Arena::allocate(size_t bytes) {
  std::unique_lock lock(mutex_);
  const bool sane = bytes <= static_cast<size_t>(kNoLimit / 2);
  const int64_t size = sane ? rounded(static_cast<int64_t>(bytes)) : kNoLimit / 2;
  if (size > limit_ - statistics_.live) {
    const int64_t live = statistics_.live;
    lock.unlock();  // who describes may wait for somebody who gives something back
    const std::string more = describe_ ? "\n" + describe_() : "";
    fail(ErrorKind::OutOfMemory,
         "{}: {} more would exceed the limit of {}: {} are in use, {} too much{}", name_,
         format_bytes(Bytes(size)), format_bytes(Bytes(limit_)), format_bytes(Bytes(live)),
         format_bytes(Bytes(size - (limit_ - live))), more);
  }
  void* block = guarded_ ? take_guarded(size, bytes) : take(size);
  if (block == nullptr)
    fail(ErrorKind::OutOfMemory, "{}: the system has no {} to give", name_,
         format_bytes(Bytes(size)));
  statistics_.live += size;
  statistics_.peak = std::max(statistics_.peak, statistics_.live);
  ++statistics_.blocks;
  return block;
}

void Arena::release(void* block) {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  Arena& arena = *header->arena;
  const std::lock_guard lock(arena.mutex_);
  arena.statistics_.live -= header->size;
  --arena.statistics_.blocks;
  if (arena.guarded_) {
    if (!arena.guarded_->give_back(block, sizeof(Header), header->requested)) ++arena.damaged_;
    return;
  }
  const auto size = static_cast<size_t>(header->size);
  arena.space_.give_back(reinterpret_cast<std::byte*>(header), sizeof(Header) + size);
}

Arena& Arena::owner(void* block) { return *(static_cast<Header*>(block) - 1)->arena; }

void Arena::check_guards() const {
  const std::lock_guard lock(mutex_);
  if (damaged_ > 0)
    fail(ErrorKind::Internal, "internal error: {}: bytes beside {} block{} were changed", name_,
         damaged_, damaged_ == 1 ? "" : "s");
}

// Called with the lock held.
void* Arena::take_guarded(int64_t size, size_t bytes) {
  void* block = guarded_->take(sizeof(Header), bytes);
  if (block != nullptr) new (static_cast<Header*>(block) - 1) Header{this, size, bytes};
  return block;
}

void* Arena::take(int64_t size) {
  std::byte* memory = space_.take(sizeof(Header) + static_cast<size_t>(size));
  return memory == nullptr ? nullptr : new (memory) Header{this, size} + 1;
}

void Arena::trim() {
  const std::lock_guard lock(mutex_);
  space_.trim();
}

ArenaStatistics Arena::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void Arena::reset_peak() {
  const std::lock_guard lock(mutex_);
  statistics_.peak = statistics_.live;
}

void Arena::set_context(std::function<std::string()> describe) {
  const std::lock_guard lock(mutex_);
  describe_ = std::move(describe);
}

}  // namespace windlass

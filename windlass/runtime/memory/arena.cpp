#include "windlass/runtime/memory/arena.h"

#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/base/units.h"

namespace windlass {

// Stands before each block, in a cache line of its own.
struct alignas(64) Arena::Header {
  Arena* arena = nullptr;
  int64_t size = 0;      // as it is counted
  size_t mapped = 0;     // of the whole mapping; 0 if it came from malloc
  size_t requested = 0;  // guarded: what was asked for
};

namespace {

// Blocks from this size on are mapped, so that they really go back to the system.
constexpr int64_t kMapFrom = 1 << 20;
constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

Arena::Arena(std::string name, int64_t limit, int64_t unit, bool guarded)
    : name_(std::move(name)), limit_(limit), unit_(unit) {
  if (guarded) guarded_ = std::make_unique<GuardedBlocks>();
}

Arena::~Arena() { trim(); }

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
  void* block = guarded_ ? take_guarded(size, bytes) : take_kept(size);
  if (!guarded_ && block == nullptr) block = take_resized(size);
  if (!guarded_ && block == nullptr) block = take_new(size);
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
  arena.kept_[header->size].push_back(header);
  arena.kept_bytes_ += header->size;
}

Arena& Arena::owner(void* block) { return *(static_cast<Header*>(block) - 1)->arena; }

void Arena::check_guards() const {
  const std::lock_guard lock(mutex_);
  if (damaged_ > 0)
    fail(ErrorKind::Internal, "internal error: {}: bytes beside {} block{} were changed", name_,
         damaged_, damaged_ == 1 ? "" : "s");
}

// Called with the lock held, like those below.
void* Arena::take_kept(int64_t size) {
  const auto found = kept_.find(size);
  if (found == kept_.end() || found->second.empty()) return nullptr;
  Header* header = found->second.back();
  found->second.pop_back();
  kept_bytes_ -= size;
  return header + 1;
}

void* Arena::take_guarded(int64_t size, size_t bytes) {
  void* block = guarded_->take(sizeof(Header), bytes);
  if (block != nullptr) new (static_cast<Header*>(block) - 1) Header{this, size, 0, bytes};
  return block;
}

void* Arena::take_new(int64_t size) {
  drop_kept(size);
  const size_t whole = sizeof(Header) + static_cast<size_t>(size);
  Header header{this, size};
  void* memory = nullptr;
  if (size >= kMapFrom) {
    header.mapped = whole_pages(whole);
    memory =
        mmap(nullptr, header.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) memory = nullptr;
  } else {
    memory = std::aligned_alloc(64, (whole + 63) / 64 * 64);
  }
  return memory == nullptr ? nullptr : new (memory) Header(header) + 1;
}

// A mapped block made of one that would have to go to make room for it: of those that are too long
// the shortest, otherwise the longest, to which only what is missing is added.
void* Arena::take_resized(int64_t size) {
  if (size < kMapFrom || kept_bytes_ <= limit_ - statistics_.live - size) return nullptr;
  std::erase_if(kept_, [](const auto& entry) { return entry.second.empty(); });
  auto found = kept_.upper_bound(size);
  if (found == kept_.end()) {
    if (found == kept_.begin()) return nullptr;
    --found;
  }
  if (found->first < kMapFrom) return nullptr;
  Header* header = found->second.back();
  found->second.pop_back();
  kept_bytes_ -= header->size;
  drop_kept(size);
  const size_t mapped = whole_pages(sizeof(Header) + static_cast<size_t>(size));
  void* memory = mremap(header, header->mapped, mapped, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) {
    put_back(header);
    return nullptr;
  }
  header = static_cast<Header*>(memory);
  header->size = size;
  header->mapped = mapped;
  return header + 1;
}

// Makes room for a block that nobody has had before: the largest ones go first.
void Arena::drop_kept(int64_t needed) {
  while (kept_bytes_ > 0 && kept_bytes_ > limit_ - statistics_.live - needed) {
    auto last = std::prev(kept_.end());
    if (last->second.empty()) {
      kept_.erase(last);
      continue;
    }
    Header* header = last->second.back();
    last->second.pop_back();
    kept_bytes_ -= header->size;
    put_back(header);
  }
}

void Arena::put_back(Header* header) {
  if (header->mapped > 0)
    munmap(header, header->mapped);
  else
    std::free(header);
}

void Arena::trim() {
  const std::lock_guard lock(mutex_);
  for (auto& [size, headers] : kept_)
    for (Header* header : headers) put_back(header);
  kept_.clear();
  kept_bytes_ = 0;
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

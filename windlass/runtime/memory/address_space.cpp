#include "windlass/runtime/memory/address_space.h"

#include <algorithm>
#include <cstdint>
#include <sys/mman.h>

#include "windlass/base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define WINDLASS_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WINDLASS_POISONS 1
#endif
#endif
#ifdef WINDLASS_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace windlass {
namespace {

constexpr size_t kPage = 4096, kLine = 64;
// Addresses of a segment: those of the pages allowed, several times, so that what is left between
// ranges does not matter; within reason.
constexpr size_t kLeastSegment = size_t{16} << 20, kMostSegment = size_t{1} << 36, kTimes = 4;

constexpr int64_t kHugePagesFrom = int64_t{1} << 30;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

void forbid([[maybe_unused]] void* bytes, [[maybe_unused]] size_t count) {
#ifdef WINDLASS_POISONS
  ASAN_POISON_MEMORY_REGION(bytes, count);
#endif
}

void allow([[maybe_unused]] void* bytes, [[maybe_unused]] size_t count) {
#ifdef WINDLASS_POISONS
  ASAN_UNPOISON_MEMORY_REGION(bytes, count);
#endif
}

AddressSpace::~AddressSpace() {
  for (const Segment& segment : segments_) {
    allow(segment.begin, segment.used);
    munmap(segment.begin, segment.size);
  }
}

AddressSpace::Segment& AddressSpace::segment_of(const std::byte* address) {
  const auto found = std::ranges::find_if(segments_, [&](const Segment& segment) {
    return segment.begin <= address && address < segment.begin + segment.size;
  });
  ensure(found != segments_.end(), "an address of no segment");
  return *found;
}

std::byte* AddressSpace::take(size_t bytes) {
  bytes = round_up(bytes, kLine);
  auto found = idle_.end();
  for (auto range = idle_.begin(); range != idle_.end(); ++range)
    if (range->second >= bytes && (found == idle_.end() || range->second < found->second))
      found = range;
  std::byte* begin = found == idle_.end() ? extend(bytes) : found->first;
  if (begin == nullptr) return nullptr;
  if (found != idle_.end()) {
    const size_t left = found->second - bytes;
    const auto next = idle_.erase(found);
    if (left > 0) idle_.emplace_hint(next, begin + bytes, left);
  }
  note_pages(begin, bytes);
  allow(begin, bytes);
  return begin;
}

// Behind the last range of a segment, together with what is idle there; not idle any more.
std::byte* AddressSpace::extend(size_t bytes) {
  const auto try_in = [&](Segment& segment) -> std::byte* {
    std::byte* end = segment.begin + segment.used;
    auto last = idle_.lower_bound(end);
    const bool joins =
        last != idle_.begin() && segment.used > 0 && (--last, last->first + last->second == end);
    const size_t known = joins ? last->second : 0;
    if (bytes - known > segment.size - segment.used) return nullptr;
    if (joins) idle_.erase(last);
    segment.used += bytes - known;
    return end - known;
  };
  for (Segment& segment : segments_)
    if (std::byte* found = try_in(segment)) return found;
  return add_segment(bytes) ? try_in(segments_.back()) : nullptr;
}

bool AddressSpace::add_segment(size_t bytes) {
  const size_t enough = allowed_ > static_cast<int64_t>(kMostSegment / kTimes)
                            ? kMostSegment
                            : static_cast<size_t>(allowed_) * kTimes;
  const size_t least = round_up(bytes, kPage);
  // Less where the system does not let a process have so many addresses.
  for (size_t size = std::max(round_up(std::max(enough, kLeastSegment), kPage), least);;
       size = std::max(size / 2 / kPage * kPage, least)) {
    void* begin = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin != MAP_FAILED) {
      // Huge pages would be a large part of a small memory.
      if (allowed_ < kHugePagesFrom) madvise(begin, size, MADV_NOHUGEPAGE);
      segments_.push_back({static_cast<std::byte*>(begin), size, 0, {}});
      return true;
    }
    if (size == least) return false;
  }
}

void AddressSpace::note_pages(std::byte* begin, size_t bytes) {
  Segment& segment = segment_of(begin);
  const auto offset = static_cast<size_t>(begin - segment.begin);
  const size_t first = offset / kPage, end = round_up(offset + bytes, kPage) / kPage;
  if (segment.pages.size() < end) segment.pages.resize(std::max(end, segment.pages.size() * 2));
  int64_t fresh = 0;
  for (size_t page = first; page < end; ++page)
    if (!segment.pages[page]) {
      segment.pages[page] = true;
      fresh += static_cast<int64_t>(kPage);
    }
  if (fresh == 0) return;
  resident_ += fresh;
  if (resident_ > allowed_) drop_pages(resident_ - allowed_);
}

// Of the last idle ranges, which are asked for last, until there are so many bytes less, as far as
// there are any.
void AddressSpace::drop_pages(int64_t bytes) {
  for (auto range = idle_.rbegin(); range != idle_.rend() && bytes > 0; ++range)
    if (range->second >= kPage) bytes -= drop_pages_of(range->first, range->second, bytes);
}

// Those that lie inside altogether, the last ones first, until they are `most` bytes. Returns the
// bytes of those that were there.
int64_t AddressSpace::drop_pages_of(std::byte* begin, size_t size, int64_t most) {
  Segment& segment = segment_of(begin);
  const auto offset = static_cast<size_t>(begin - segment.begin);
  const size_t first = round_up(offset, kPage) / kPage, end = (offset + size) / kPage;
  int64_t dropped = 0;
  size_t page = end;
  while (page > first && dropped < most)
    if (segment.pages[--page]) {
      segment.pages[page] = false;
      dropped += static_cast<int64_t>(kPage);
    }
  if (dropped > 0) madvise(segment.begin + page * kPage, (end - page) * kPage, MADV_DONTNEED);
  resident_ -= dropped;
  return dropped;
}

void AddressSpace::give_back(std::byte* range, size_t bytes) {
  size_t size = round_up(bytes, kLine);
  forbid(range, size);
  const Segment& segment = segment_of(range);
  auto next = idle_.lower_bound(range);
  if (next != idle_.end() && next->first == range + size &&
      next->first < segment.begin + segment.size) {
    size += next->second;
    next = idle_.erase(next);
  }
  if (next != idle_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == range && before->first >= segment.begin) {
      before->second += size;
      return;
    }
  }
  idle_.emplace_hint(next, range, size);
}

void AddressSpace::trim() {
  for (const auto& [begin, size] : idle_) drop_pages_of(begin, size, resident_);
}

}  // namespace windlass

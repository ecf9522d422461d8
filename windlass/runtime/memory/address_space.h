// Ranges of addresses and the pages behind them, for an arena.
//
// Addresses are plenty, pages are not: ranges that come back are joined with their neighbours and
// given out again, with the pages they have, and as long as the pages in use and those that lie
// idle stay within what was allowed none goes back to the system. So memory near its limit costs no
// page faults either, whatever the sizes that come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace windlass {

// Under the address sanitizer nobody may touch the bytes from now on, or may again.
void forbid(void* bytes, size_t count);
void allow(void* bytes, size_t count);

// Not for several threads at once: the arena locks.
class AddressSpace {
 public:
  // Keeps idle pages as long as there are not more than `pages_of` bytes of pages in all.
  explicit AddressSpace(int64_t pages_of) : allowed_(pages_of) {}
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // A range of `bytes`, rounded up to a multiple of 64 and aligned to that, where others have been
  // before. Null if none of them is long enough.
  std::byte* reuse(size_t bytes);
  // The same at addresses that were not used so far, where that is needed. Null if the system has
  // none.
  std::byte* extend(size_t bytes);
  // A range of so many bytes, as it was given out.
  void give_back(std::byte* range, size_t bytes);
  // All idle pages go back to the system.
  void trim();

  // Bytes of pages that ranges had since they last went back.
  int64_t resident() const { return resident_; }

 private:
  struct Segment {
    std::byte* begin = nullptr;
    size_t size = 0;
    size_t used = 0;          // from `begin` on, given out at least once
    std::vector<bool> pages;  // that are there, of those used
  };
  Segment& segment_of(const std::byte* address);
  bool add_segment(size_t bytes);
  std::byte* take(std::byte* begin, size_t size, size_t bytes, bool at_end = false);
  size_t missing_pages(const std::byte* begin, size_t bytes);
  void note_pages(std::byte* begin, size_t bytes);
  void drop_pages(int64_t bytes);
  int64_t drop_pages_of(std::byte* begin, size_t size, int64_t most);
  void insert(std::byte* begin, size_t size);
  void erase(std::byte* begin, size_t size);

  const int64_t allowed_;
  int64_t resident_ = 0;
  std::vector<Segment> segments_;
  std::map<std::byte*, size_t> idle_;                     // ranges of segments, none beside another
  std::set<std::pair<size_t, std::byte*>> idle_by_size_;  // the same
};

}  // namespace windlass

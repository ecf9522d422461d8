#include "windlass/runtime/memory/guarded_blocks.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

namespace windlass {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kAlignment = 64;
constexpr size_t kMostClosed = 4096;  // mappings; the system allows a process some 65,000
constexpr unsigned char kPattern = 0xA5;
constexpr int kBugExitCode = 4;

size_t up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// [pattern][before][block][pattern][closed page]
struct Places {
  size_t mapped = 0;  // with the closed page
  size_t block = 0;   // where it begins
};
Places places(size_t before, size_t bytes) {
  const size_t open = up(before + up(bytes, kAlignment), kPageBytes);
  return {open + kPageBytes, open - up(bytes, kAlignment)};
}

bool untouched(const unsigned char* from, size_t count) {
  return std::all_of(from, from + count, [](unsigned char byte) { return byte == kPattern; });
}

thread_local std::array<char, 256> current = {};

void say(std::string_view text) {
  // What cannot be written is lost: the process is about to end.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

void on_bad_access(int) {
  say("windlass: internal error: memory was used that is not in use");
  if (current[0] != 0) {
    say(", by ");
    say({current.data(), strnlen(current.data(), current.size())});
  }
  say("\n");
  _exit(kBugExitCode);
}

}  // namespace

GuardedBlocks::~GuardedBlocks() {
  for (const auto& [start, size] : closed_) munmap(start, size);
}

void* GuardedBlocks::take(size_t before, size_t bytes) {
  const Places at = places(before, bytes);
  void* start =
      mmap(nullptr, at.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return nullptr;
  auto* base = static_cast<unsigned char*>(start);
  mprotect(base + at.mapped - kPageBytes, kPageBytes, PROT_NONE);
  unsigned char* block = base + at.block;
  std::memset(base, kPattern, at.block - before);
  std::memset(block, 0xFF, bytes);
  std::memset(block + bytes, kPattern, up(bytes, kAlignment) - bytes);
  return block;
}

bool GuardedBlocks::give_back(void* block, size_t before, size_t bytes) {
  const Places at = places(before, bytes);
  auto* there = static_cast<unsigned char*>(block);
  unsigned char* base = there - at.block;
  const bool whole =
      untouched(base, at.block - before) && untouched(there + bytes, up(bytes, kAlignment) - bytes);
  // The pages go back to the system, their addresses stay taken.
  mmap(base, at.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  closed_.emplace_back(base, at.mapped);
  if (closed_.size() > kMostClosed) {
    munmap(closed_.front().first, closed_.front().second);
    closed_.pop_front();
  }
  return whole;
}

void report_bad_accesses() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_handler = on_bad_access;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
  });
}

void doing(const std::string& what) {
  const size_t count = std::min(what.size(), current.size() - 1);
  std::memcpy(current.data(), what.data(), count);
  current[count] = 0;
}

}  // namespace windlass

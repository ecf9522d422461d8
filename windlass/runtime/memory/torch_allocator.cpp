#include "windlass/runtime/memory/torch_allocator.h"

#include <cstring>
#include <mutex>

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <torch/version.h>

namespace windlass {
namespace {

constexpr int64_t kFreeUnit = 64;

// libtorch asks without saying on whose behalf: the thread knows.
thread_local Arena* bound_arena = nullptr;

Arena& free_arena() {
  // Never destroyed: libtorch's own statics may outlive any of ours.
  static Arena* const arena = new Arena("host", kNoLimit, kFreeUnit);
  return *arena;
}

class ArenaAllocator final : public at::Allocator {
 public:
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
  at::DataPtr allocate(size_t bytes) override { return take(bytes); }
#else
  at::DataPtr allocate(size_t bytes) const override { return take(bytes); }
#endif
  at::DeleterFnPtr raw_deleter() const override { return &Arena::release; }
#if TORCH_VERSION_MAJOR >= 2
  void copy_data(void* to, const void* from, std::size_t count) const override {
    std::memcpy(to, from, count);
  }
#endif

 private:
  static at::DataPtr take(size_t bytes) {
    if (bytes == 0) return {nullptr, nullptr, &Arena::release, at::Device(at::kCPU)};
    Arena& arena = bound_arena != nullptr ? *bound_arena : free_arena();
    void* block = arena.allocate(bytes);
    return {block, block, &Arena::release, at::Device(at::kCPU)};
  }
};

// The threads of a parallel region belong to the thread that opens it and serve it again next time.
void bind_team(Arena* arena) {
  bound_arena = arena;
  const int threads = at::get_num_threads();
  if (threads <= 1 || at::in_parallel_region()) return;
#pragma omp parallel num_threads(threads)
  bound_arena = arena;
}

}  // namespace

void install_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    static ArenaAllocator* const allocator = new ArenaAllocator;
    c10::SetCPUAllocator(allocator, 1);
  });
}

ArenaScope::ArenaScope(Arena& arena) : previous_(bound_arena) { bind_team(&arena); }
ArenaScope::ArenaScope() : previous_(bound_arena) { bind_team(nullptr); }
ArenaScope::~ArenaScope() { bind_team(previous_); }

}  // namespace windlass

#include "windlass/runtime/device.h"

#include <cstring>
#include <optional>
#include <sys/prctl.h>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "windlass/runtime/compute_pacer.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/threads.h"

namespace windlass {
namespace {

class CpuLane final : public LaneWork {
 public:
  CpuLane(Arena& arena, LaneKind kind, int threads, double sharing) : pacer_(sharing) {
    use_threads(threads);
    // Whoever is paced wakes up on time rather than some 50 us later: a small copy takes less.
    prctl(PR_SET_TIMERSLACK, 1000UL);
    if (kind == LaneKind::Compute) scope_.emplace(arena);
  }

  Clock::time_point run(const std::function<void()>& job, Clock::time_point ready) override {
    if (pacer_.paces()) pacer_.begin();
    job();
    return pacer_.paces() ? pacer_.end(ready) : Clock::now();
  }
  void run_for_another(const std::function<void()>& job) override {
    const ArenaScope none;
    job();
  }

 private:
  std::optional<ArenaScope> scope_;
  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  ComputePacer pacer_;
};

class CpuDevice final : public RealDevice {
 public:
  explicit CpuDevice(const DevicePlace& place)
      : threads_(place.threads),
        sharing_(place.sharing),
        arena_(place.name, place.limit, place.unit, place.guarded) {}

  at::Tensor allocate(int64_t bytes) override {
    void* block = bytes == 0 ? nullptr : arena_.allocate(static_cast<size_t>(bytes));
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes),
                         c10::DataPtr(block, block, &Arena::release, at::kCPU));
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        caffe2::TypeMeta::fromScalarType(at::kByte));
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
    return tensor;
  }
  bool owns(const at::Tensor& tensor) const override {
    const c10::DataPtr& data = tensor.storage().data_ptr();
    return data.get_deleter() == &Arena::release && &Arena::owner(data.get()) == &arena_;
  }
  ArenaStatistics statistics() const override { return arena_.statistics(); }
  void reset_peak() override { arena_.reset_peak(); }
  void set_context(std::function<std::string()> describe) override {
    arena_.set_context(std::move(describe));
  }
  void check() const override { arena_.check_guards(); }
  Arena* arena() override { return &arena_; }

  void copy(const std::byte* from, std::byte* to, int64_t bytes, bool alone) override {
    if (!alone) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      return;
    }
    constexpr int64_t kGrain = 1 << 18;  // bytes worth a thread
    at::parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  }

  std::unique_ptr<LaneWork> enter(LaneKind kind) override {
    const bool computes = kind == LaneKind::Compute || kind == LaneKind::Host;
    return std::make_unique<CpuLane>(arena_, kind, computes ? threads_ : 1,
                                     computes ? sharing_ : 1);
  }

 private:
  const int threads_;
  const double sharing_;
  Arena arena_;
};

}  // namespace

std::unique_ptr<RealDevice> make_cpu_device(const DevicePlace& place) {
  return std::make_unique<CpuDevice>(place);
}

void DeviceLane::start(Run run) {
  thread_ = std::thread([this, run = std::move(run)] { work(run); });
}

void DeviceLane::work(const Run& run) {
  const std::unique_ptr<LaneWork> lane = device_.enter(kind_);
  while (true) {
    Ready next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closing_ || !ready_.empty(); });
      if (closing_) return;
      next = ready_.front();
      ready_.pop_front();
    }
    run(*this, *lane, next.job, next.since);
  }
}

void DeviceLane::post(int32_t job, Clock::time_point since) {
  const std::lock_guard lock(mutex_);
  ready_.push_back({job, since});
  changed_.notify_one();
}

bool DeviceLane::idle() {
  const std::lock_guard lock(mutex_);
  return ready_.empty();
}

void DeviceLane::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
}

}  // namespace windlass

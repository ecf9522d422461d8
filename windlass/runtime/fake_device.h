// Devices that count what is asked of them, and wait or fail when they are told to. For tests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "windlass/runtime/device.h"

namespace windlass::testing_runs {

// What all devices of a run have been asked for, and are told to do.
struct FakeOrders {
  // Called with the name of the device before it does so; may wait or throw.
  std::function<void(const std::string& device, int64_t bytes)> allocating = {};
  std::function<void(const std::string& device, LaneKind lane)> working = {};

  std::mutex mutex;
  struct Counts {
    int64_t allocations = 0, copied = 0;  // copied: bytes
    std::map<LaneKind, int64_t> jobs;     // of the lane's own
    int64_t for_others = 0;               // jobs that its lanes did in the place of others
    int64_t lanes = 0;                    // that were entered
  };
  std::map<std::string, Counts> counts;  // by device

  template <class Change>
  void count(const std::string& device, Change&& change) {
    const std::lock_guard lock(mutex);
    change(counts[device]);
  }
};

class FakeDevice final : public RealDevice {
 public:
  FakeDevice(const DevicePlace& place, FakeOrders& orders)
      : name_(place.name), orders_(orders), real_(make_cpu_device(place)) {}

  at::Tensor allocate(int64_t bytes) override {
    if (orders_.allocating) orders_.allocating(name_, bytes);
    orders_.count(name_, [](auto& counts) { ++counts.allocations; });
    return real_->allocate(bytes);
  }
  bool owns(const at::Tensor& tensor) const override { return real_->owns(tensor); }
  ArenaStatistics statistics() const override { return real_->statistics(); }
  void reset_peak() override { real_->reset_peak(); }
  void set_context(std::function<std::string()> describe) override {
    real_->set_context(std::move(describe));
  }
  void check() const override { real_->check(); }
  Arena* arena() override { return real_->arena(); }
  void copy(const std::byte* from, std::byte* to, int64_t bytes, bool alone) override {
    orders_.count(name_, [&](auto& counts) { counts.copied += bytes; });
    real_->copy(from, to, bytes, alone);
  }
  std::unique_ptr<LaneWork> enter(LaneKind kind) override {
    orders_.count(name_, [](auto& counts) { ++counts.lanes; });
    return std::make_unique<Lane>(*this, kind, real_->enter(kind));
  }

 private:
  class Lane final : public LaneWork {
   public:
    Lane(FakeDevice& device, LaneKind kind, std::unique_ptr<LaneWork> real)
        : device_(device), kind_(kind), real_(std::move(real)) {}
    Clock::time_point run(const std::function<void()>& job, Clock::time_point ready) override {
      device_.orders_.count(device_.name_, [&](auto& counts) { ++counts.jobs[kind_]; });
      if (device_.orders_.working) device_.orders_.working(device_.name_, kind_);
      return real_->run(job, ready);
    }
    void run_for_another(const std::function<void()>& job) override {
      device_.orders_.count(device_.name_, [](auto& counts) { ++counts.for_others; });
      real_->run_for_another(job);
    }

   private:
    FakeDevice& device_;
    const LaneKind kind_;
    std::unique_ptr<LaneWork> real_;
  };

  const std::string name_;
  FakeOrders& orders_;
  std::unique_ptr<RealDevice> real_;
};

inline DeviceMaker fake_devices(FakeOrders& orders) {
  return
      [&orders](const DevicePlace& place) { return std::make_unique<FakeDevice>(place, orders); };
}

}  // namespace windlass::testing_runs

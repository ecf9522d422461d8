#include "windlass/runtime/compute_pacer.h"

#include <algorithm>
#include <thread>

#include "windlass/runtime/threads.h"

namespace windlass {
namespace {

// Of the cores, where devices take turns: copies, updates on the host and what the system does to
// switch from one device to the next.
constexpr double kForTheHost = 0.2;

}  // namespace

double core_sharing(int devices, int threads) {
  if (threads > 1) return 1;  // what the host gives them is what they get
  const auto cores = static_cast<double>(std::max(1U, std::thread::hardware_concurrency()));
  return devices <= cores ? 1 : devices / (cores * (1 - kForTheHost));
}

void ComputePacer::begin() { worked_ = thread_time(); }

ComputePacer::Clock::time_point ComputePacer::end(Clock::time_point ready) {
  // Shorter waits than this are put together: to wake up takes as long.
  constexpr auto kWorthIt = std::chrono::microseconds(100);
  const auto worked = static_cast<double>(thread_time() - worked_) * sharing_;
  free_at_ = std::max(free_at_, ready) + std::chrono::nanoseconds(static_cast<int64_t>(worked));
  if (free_at_ > Clock::now() + kWorthIt) std::this_thread::sleep_until(free_at_);
  return free_at_;
}

}  // namespace windlass

#include "windlass/runtime/link_pacer.h"

#include <algorithm>
#include <thread>

namespace windlass {
namespace {

// Of a chunk, on the slowest link of its way.
constexpr double kChunkSeconds = 250e-6;

}  // namespace

LinkPacer::LinkPacer(const Machine& machine, size_t steps) {
  for (const Link& link : machine.links)
    for (int direction = 0; direction < 2; ++direction)
      buckets_.push_back(
          {.bandwidth = link.bandwidth.value, .bytes = std::vector<int64_t>(steps, 0)});
}

LinkPacer::Bucket& LinkPacer::bucket(const LinkDirection& direction) {
  return buckets_[direction.link.index() * 2 + (direction.forward ? 0 : 1)];
}

void LinkPacer::count(const Traffic& traffic, size_t step) {
  const std::lock_guard lock(mutex_);
  for (const LinkLoad& load : traffic.loads) bucket(load.direction).bytes[step] += load.bytes.value;
}

void LinkPacer::wait(const Traffic& traffic, Clock::time_point begin) {
  const auto at = [&](double seconds) {
    return epoch_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  double due = std::chrono::duration<double>(begin - epoch_).count();
  double slowest = 0;
  for (const LinkLoad& load : traffic.loads)
    slowest =
        std::max(slowest, static_cast<double>(load.bytes.value) / bucket(load.direction).bandwidth);
  const auto chunks = std::max<int64_t>(1, static_cast<int64_t>(slowest / kChunkSeconds));
  for (int64_t i = 0; i < chunks; ++i) {
    double next = due;
    {
      const std::lock_guard lock(mutex_);
      for (const LinkLoad& load : traffic.loads) {
        Bucket& link = bucket(load.direction);
        const auto part = static_cast<double>(load.bytes.value) / static_cast<double>(chunks);
        link.free_at = std::max(link.free_at, due) + part / link.bandwidth;
        next = std::max(next, link.free_at);
      }
    }
    if (stopped_) return;
    due = next;
    std::this_thread::sleep_until(at(due));
  }
}

void LinkPacer::lead(size_t transfer, const Traffic& traffic, Clock::time_point begin) {
  wait(traffic, begin);
  {
    const std::lock_guard lock(mutex_);
    over_.insert(transfer);
  }
  led_.notify_all();
}

void LinkPacer::follow(size_t transfer) {
  std::unique_lock lock(mutex_);
  led_.wait(lock, [&] { return stopped_ || over_.contains(transfer); });
}

void LinkPacer::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  led_.notify_all();
}

std::vector<LinkLoad> LinkPacer::bytes(size_t step) const {
  const std::lock_guard lock(mutex_);
  std::vector<LinkLoad> moved;
  for (size_t i = 0; i < buckets_.size(); ++i)
    if (buckets_[i].bytes[step] > 0)
      moved.push_back({{LinkId(i / 2), i % 2 == 0}, Bytes(buckets_[i].bytes[step])});
  std::ranges::sort(moved, {}, &LinkLoad::direction);
  return moved;
}

void LinkPacer::begin_row() {
  const std::lock_guard lock(mutex_);
  over_.clear();
  for (Bucket& link : buckets_) std::ranges::fill(link.bytes, 0);
}

}  // namespace windlass

// Links that are as fast as a machine says: what moves over the same link at the same time shares
// it.
//
// A link direction is a bucket that empties at its bandwidth. A transfer fills the buckets on its
// way chunk by chunk and waits for the slowest, so that transfers that share a link get about equal
// shares of it, whoever began first. What a transfer takes in all does not depend on how late its
// thread wakes up. Latencies are those of the host's own threads, and take what they take.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "windlass/cost/traffic.h"
#include "windlass/machine/machine.h"

namespace windlass {

class LinkPacer {
 public:
  using Clock = std::chrono::steady_clock;

  // Bytes are counted by step of a row of so many.
  explicit LinkPacer(const Machine& machine, size_t steps = 1);

  // Returns when the traffic that began at `begin` would be done. May be called by several threads
  // at the same time.
  void wait(const Traffic& traffic, Clock::time_point begin);
  // Of a transfer that several threads carry out, each a part: one waits as above, with a number
  // that the transfer has in this row, the others until that one is done.
  void lead(size_t transfer, const Traffic& traffic, Clock::time_point begin);
  void follow(size_t transfer);
  // Counts what crosses links.
  void count(const Traffic& traffic, size_t step = 0);

  // Nobody waits any longer, now or later.
  void stop();

  // Bytes of a step that have crossed each direction since the row began, ascending by direction;
  // those that nothing crossed are left out.
  std::vector<LinkLoad> bytes(size_t step = 0) const;
  void begin_row();

 private:
  struct Bucket {
    double bandwidth = 0;        // bytes a second
    double free_at = 0;          // seconds since epoch_
    std::vector<int64_t> bytes;  // by step
  };
  Bucket& bucket(const LinkDirection& direction);

  const Clock::time_point epoch_ = Clock::now();
  std::atomic<bool> stopped_ = false;
  mutable std::mutex mutex_;
  std::condition_variable led_;
  std::set<size_t> over_;        // transfers whose leader has waited
  std::vector<Bucket> buckets_;  // two for each link
};

}  // namespace windlass

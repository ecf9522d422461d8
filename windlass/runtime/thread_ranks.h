// Ranks that are threads of one process, for tests: messages lie in a table that all share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/run/ranks.h"
#include "windlass/runtime/join_ranks.h"

namespace windlass::testing_runs {

class ThreadRanks final : public Ranks {
 public:
  // What all share.
  struct Table {
    std::mutex mutex;
    std::condition_variable changed;
    // By sender, receiver and tag, in order.
    std::map<std::tuple<int32_t, int32_t, uint32_t>, std::deque<std::vector<std::byte>>> letters;
    std::optional<std::string> failure;
    std::map<std::pair<std::vector<int32_t>, int>, uint32_t> sum_tags;
  };
  // `ahead`: what the clock of each rank is ahead of that of the rank before it, in seconds.
  ThreadRanks(int32_t rank, int32_t size, std::shared_ptr<Table> table, double ahead = 0)
      : Ranks(rank, size), table_(std::move(table)), offset_(ahead * rank) {}

  void exchange(uint32_t tag, std::span<const Transfer> sends,
                std::span<const Transfer> receives) override {
    std::unique_lock lock(table_->mutex);
    for (const Transfer& send : sends)
      table_->letters[{rank(), send.peer, tag}].emplace_back(send.bytes.begin(), send.bytes.end());
    table_->changed.notify_all();
    for (const Transfer& receive : receives) {
      auto& queue = table_->letters[{receive.peer, rank(), tag}];
      const bool there = table_->changed.wait_for(lock, std::chrono::seconds(60), [&] {
        return table_->failure.has_value() || !queue.empty();
      });
      if (table_->failure) throw Error(ErrorKind::Runtime, *table_->failure);
      if (!there) throw Error(ErrorKind::Runtime, "nothing came");
      ensure(queue.front().size() == receive.bytes.size(), "a message of another size came");
      if (!receive.bytes.empty())
        std::memcpy(receive.bytes.data(), queue.front().data(), receive.bytes.size());
      queue.pop_front();
    }
  }
  void fail(const std::string& message) noexcept override {
    const std::lock_guard lock(table_->mutex);
    if (!table_->failure) table_->failure = message;
    table_->changed.notify_all();
  }
  // By messages, in descending order of the members: not what ascending order gives.
  class BackwardSums final : public SumGroup {
   public:
    BackwardSums(ThreadRanks& ranks, std::vector<int32_t> members, uint32_t tag)
        : ranks_(ranks), members_(std::move(members)), tag_(tag) {}
    void add_up(std::span<float> values) override {
      std::vector<std::vector<float>> terms;
      std::vector<Transfer> sends, receives;
      for (int32_t member : members_) {
        terms.emplace_back(values.begin(), values.end());
        if (member == ranks_.rank()) continue;
        sends.push_back({member, std::as_writable_bytes(values)});
        receives.push_back({member, std::as_writable_bytes(std::span(terms.back()))});
      }
      ranks_.exchange(tag_, sends, receives);
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = 0;
        for (size_t m = terms.size(); m-- > 0;) values[i] += terms[m][i];
      }
      ++ranks_.library_sums;
    }

   private:
    ThreadRanks& ranks_;
    const std::vector<int32_t> members_;
    const uint32_t tag_;
  };
  std::unique_ptr<SumGroup> make_sum_group(const std::vector<int32_t>& members) override {
    const std::lock_guard lock(table_->mutex);
    // The same on all members, as they make their groups in the same order.
    const auto known = table_->sum_tags.try_emplace({members, groups_of_[members]++},
                                                    kSumTag + table_->sum_tags.size());
    return std::make_unique<BackwardSums>(*this, members, known.first->second);
  }
  std::atomic<int64_t> library_sums = 0;  // that were made here

  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
               .count() +
           offset_;
  }
  void align_clock() override {
    const ClockReading found = read_clock(*this);
    offset_ += found.offset;
    clock_error_ = found.error;
  }
  double clock_error() const override { return clock_error_; }

 private:
  const std::shared_ptr<Table> table_;
  std::map<std::vector<int32_t>, int> groups_of_;
  double offset_ = 0, clock_error_ = 0;
};

// Calls run(ranks) for each rank on a thread of its own. Throws the first error there was.
inline void on_every_rank(int32_t count, const std::function<void(Ranks&)>& run, double ahead = 0) {
  const auto table = std::make_shared<ThreadRanks::Table>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRanks ranks(rank, count, table, ahead);
      try {
        run(ranks);
      } catch (const std::exception& error) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        ranks.fail(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace windlass::testing_runs

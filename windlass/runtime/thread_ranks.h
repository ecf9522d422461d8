// Ranks that are threads of one process, for tests: messages lie in a table that all share.
#pragma once

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
  };
  ThreadRanks(int32_t rank, int32_t size, std::shared_ptr<Table> table)
      : Ranks(rank, size), table_(std::move(table)) {}

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
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

 private:
  const std::shared_ptr<Table> table_;
};

// Calls run(ranks) for each rank on a thread of its own. Throws the first error there was.
inline void on_every_rank(int32_t count, const std::function<void(Ranks&)>& run) {
  const auto table = std::make_shared<ThreadRanks::Table>();
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRanks ranks(rank, count, table);
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

#include "windlass/run/rank_links.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// A network whose every message takes as long as it says, by clocks that it moves itself.
struct FakeNetwork {
  struct Letter {
    std::vector<std::byte> bytes;
    double arrives = 0;
  };
  std::function<PairLink(int32_t from, int32_t to)> link;
  std::set<std::pair<int32_t, int32_t>> cut = {};  // from, to: nothing arrives

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::tuple<int32_t, int32_t, uint32_t>, std::deque<Letter>> letters;
  std::optional<std::string> failure;
};

class FakeRanks final : public Ranks {
 public:
  FakeRanks(int32_t rank, int32_t size, FakeNetwork& network)
      : Ranks(rank, size), network_(network), clock_(1000.0 * rank) {}

  void exchange(uint32_t tag, std::span<const Transfer> sends,
                std::span<const Transfer> receives) override {
    std::unique_lock lock(network_.mutex);
    for (const Transfer& send : sends) {
      // Only what is long is lost: short ones keep the ranks in step.
      if (network_.cut.contains({rank(), send.peer}) && send.bytes.size() > 1000) continue;
      const PairLink link = network_.link(rank(), send.peer);
      const double takes =
          link.latency.value + static_cast<double>(send.bytes.size()) / link.bandwidth.value;
      network_.letters[{rank(), send.peer, tag}].push_back(
          {{send.bytes.begin(), send.bytes.end()}, at_all() + takes});
    }
    network_.changed.notify_all();
    for (const Transfer& receive : receives) {
      auto& queue = network_.letters[{receive.peer, rank(), tag}];
      network_.changed.wait(lock, [&] { return network_.failure || !queue.empty(); });
      if (network_.failure) throw Error(ErrorKind::Runtime, *network_.failure);
      const FakeNetwork::Letter& letter = queue.front();
      ensure(letter.bytes.size() == receive.bytes.size(), "a message of another size");
      std::ranges::copy(letter.bytes, receive.bytes.begin());
      clock_ += std::max(0.0, letter.arrives - at_all());
      queue.pop_front();
    }
  }
  void fail(const std::string& message) noexcept override {
    const std::lock_guard lock(network_.mutex);
    if (!network_.failure) network_.failure = message;
    network_.changed.notify_all();
  }
  double now() const override { return clock_; }

 private:
  // Clocks of ranks differ.
  double at_all() const { return clock_ - 1000.0 * rank(); }

  FakeNetwork& network_;
  double clock_;
};

// What each rank finds, or the first error.
std::vector<RankLinks> measure_all(FakeNetwork& network, int32_t size,
                                   const std::vector<int32_t>& members, double time_out = 60) {
  std::vector<RankLinks> found(static_cast<size_t>(size));
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      FakeRanks ranks(rank, size, network);
      try {
        found[static_cast<size_t>(rank)] = measure_rank_links(ranks, members, time_out);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.message();
        ranks.fail(error.message());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw Error(ErrorKind::Runtime, error);
  return found;
}

// Connections of 1 GB/s, but that of rank 2 with 100 MB/s; 40 us from host to host.
PairLink one_slow(int32_t from, int32_t to) {
  return {from, to, BytesPerSecond(from == 2 || to == 2 ? 1e8 : 1e9), Seconds(40e-6)};
}

TEST(RankLinks, FiguresAreThoseOfTheNetwork) {
  FakeNetwork network;
  network.link = one_slow;
  const std::vector<RankLinks> found = measure_all(network, 4, {0, 1, 2, 3});
  for (const RankLinks& links : found) {
    ASSERT_EQ(links.pairs.size(), 6u);  // 4 * 3 / 2
    ASSERT_EQ(links.ring.size(), 4u);
    for (const PairLink& pair : links.pairs) {
      const PairLink real = one_slow(pair.a, pair.b);
      EXPECT_NEAR(pair.bandwidth / real.bandwidth, 1, 0.01);
      EXPECT_NEAR(pair.latency / real.latency, 1, 0.01);
    }
    // A slow peer is not the others' fault, neither in their pairs nor in the ring.
    EXPECT_NEAR(links.bandwidth_of(1).value, 1e9, 5e7);
    EXPECT_NEAR(links.bandwidth_of(2).value, 1e8, 5e6);
    EXPECT_NEAR(links.latency_of(3).value, 40e-6, 1e-6);
    // All ranks have the same.
    EXPECT_EQ(links.bandwidth_of(0).value, found[0].bandwidth_of(0).value);
  }
}

// Of two processes of a host, one measures.
TEST(RankLinks, OthersLookOn) {
  FakeNetwork network;
  network.link = one_slow;
  const std::vector<RankLinks> found = measure_all(network, 4, {0, 3});
  for (const RankLinks& links : found) {
    ASSERT_EQ(links.pairs.size(), 1u);
    EXPECT_EQ(links.pairs[0].b, 3);
    EXPECT_NEAR(links.bandwidth_of(3).value, 1e9, 5e7);
  }
}

// 5 kB/s and 50 ms: a block of 64 KiB takes 13 s, of which there are four; a minute, by its clock.
TEST(RankLinks, VerySlowLinksAreMeasuredToo) {
  FakeNetwork network;
  network.link = [](int32_t from, int32_t to) {
    return PairLink{from, to, BytesPerSecond(5e3), Seconds(0.05)};
  };
  const std::vector<RankLinks> found = measure_all(network, 2, {0, 1});
  EXPECT_NEAR(found[0].bandwidth_of(0).value, 5e3, 50);
  // A word of 8 bytes is a message, too.
  EXPECT_NEAR(found[0].latency_of(1).value, 0.05 + 8 / 5e3, 1e-4);
}

TEST(RankLinks, APairThatDoesNotAnswerIsNamed) {
  FakeNetwork network;
  network.link = one_slow;
  network.cut = {{1, 2}};
  try {
    measure_all(network, 3, {0, 1, 2}, 0.3);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Runtime);
    EXPECT_EQ(error.message(), "the link between ranks 1 and 2: nothing came within 0.3 s");
  }
}

// Pairs had 10 each alone; all together 6: the switch between them is narrow.
TEST(RankLinks, WhatAllGetTogetherCounts) {
  RankLinks links;
  links.pairs = {{0, 1, BytesPerSecond(10), Seconds(1)},
                 {0, 2, BytesPerSecond(10), Seconds(2)},
                 {1, 2, BytesPerSecond(10), Seconds(3)}};
  links.ring = {{0, BytesPerSecond(6)}, {1, BytesPerSecond(6)}, {2, BytesPerSecond(6)}};
  for (int32_t rank : {0, 1, 2}) EXPECT_DOUBLE_EQ(links.bandwidth_of(rank).value, 6);
  EXPECT_DOUBLE_EQ(links.latency_of(2).value, 2);
  // It never counts as more.
  links.ring = {{0, BytesPerSecond(20)}, {1, BytesPerSecond(20)}, {2, BytesPerSecond(20)}};
  EXPECT_DOUBLE_EQ(links.bandwidth_of(0).value, 10);
}

TEST(RankLinks, EveryPairMeetsOnceAndNobodyTwiceAtATime) {
  for (size_t count = 0; count < 20; ++count) {
    std::set<std::pair<size_t, size_t>> met;
    for (const auto& round : pair_rounds(count, 100)) {
      std::set<size_t> busy;
      for (const auto& [a, b] : round) {
        EXPECT_LT(a, b);
        EXPECT_LT(b, count);
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
        EXPECT_TRUE(met.insert({a, b}).second);
      }
    }
    EXPECT_EQ(met.size(), count * (count == 0 ? 0 : count - 1) / 2);
  }
  EXPECT_EQ(pair_rounds(1000, kMostLinkRounds).size(), kMostLinkRounds);
  for (const auto& round : pair_rounds(1000, kMostLinkRounds)) EXPECT_EQ(round.size(), 500u);
}

}  // namespace
}  // namespace windlass

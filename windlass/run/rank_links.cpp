#include "windlass/run/rank_links.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr int kMostTrips = 50, kLeastTrips = 5, kMostBlocks = 9, kLeastBlocks = 3;
constexpr double kTripSeconds = 0.2, kBlockSeconds = 0.5;
// A block is as long as takes this long, between these sizes.
constexpr double kLongEnough = 0.02;
constexpr int64_t kLeastBlock = int64_t{1} << 16, kMostBlock = int64_t{1} << 24;
constexpr int kRingTurns = 5;

double median_link(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Ends the run of all ranks if what is under way does not end in time.
class LinkGuard {
 public:
  LinkGuard(Ranks& ranks, double time_out) : ranks_(ranks), time_out_(time_out) {
    thread_ = std::thread([this] { watch(); });
  }
  ~LinkGuard() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  LinkGuard(const LinkGuard&) = delete;
  LinkGuard& operator=(const LinkGuard&) = delete;

  // What may take `times` the time-out.
  void begins(std::string what, double times = 1) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
    limit_ = times * time_out_;
    since_ = Clock::now();
  }

 private:
  using Clock = std::chrono::steady_clock;
  void watch() {
    std::unique_lock lock(mutex_);
    while (!over_) {
      changed_.wait_for(lock, std::chrono::milliseconds(50), [&] { return over_; });
      if (over_ || std::chrono::duration<double>(Clock::now() - since_).count() < limit_) continue;
      return ranks_.fail(fmt::format("{}: nothing came within {} s", what_, limit_));
    }
  }

  Ranks& ranks_;
  const double time_out_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::string what_ = "all ranks";
  double limit_ = time_out_;
  Clock::time_point since_ = Clock::now();
  std::thread thread_;
};

class LinkMeter {
 public:
  LinkMeter(Ranks& ranks, LinkGuard& guard) : ranks_(ranks), guard_(guard) {}

  // The lower rank of a pair leads; the other one does as it is told.
  std::optional<PairLink> measure(int32_t a, int32_t b) {
    peer_ = ranks_.rank() == a ? b : a;
    pair_ = fmt::format("the link between ranks {} and {}", a, b);
    if (ranks_.rank() != a) {
      follow();
      return std::nullopt;
    }
    const double trip = measure_trip();
    const double rate = measure_blocks(trip);
    send(int64_t{0});
    return PairLink{a, b, BytesPerSecond(rate), Seconds(trip / 2)};
  }

  // Sends to one and receives from another at once; seconds.
  double turn(int32_t to, int32_t from, int64_t bytes) {
    guard_.begins(fmt::format("the link between ranks {} and {}, or {}", ranks_.rank(), to, from));
    room_.resize(static_cast<size_t>(bytes));
    other_.resize(static_cast<size_t>(bytes));
    const Ranks::Transfer out = {to, room_}, in = {from, other_};
    const double begin = ranks_.now();
    ranks_.exchange(kLinkTag + 2, {&out, 1}, {&in, 1});
    return ranks_.now() - begin;
  }

 private:
  void send(int64_t word) { pass(kLinkTag, std::as_writable_bytes(std::span(&word, 1)), true); }
  int64_t receive() {
    int64_t word = 0;
    pass(kLinkTag, std::as_writable_bytes(std::span(&word, 1)), false);
    return word;
  }
  void pass(uint32_t tag, std::span<std::byte> bytes, bool sends) {
    guard_.begins(pair_);
    const Ranks::Transfer one = {peer_, bytes};
    if (sends)
      ranks_.exchange(tag, {&one, 1}, {});
    else
      ranks_.exchange(tag, {}, {&one, 1});
  }

  // There and back, of a word; the first one waits until the other is there.
  double measure_trip() {
    std::vector<double> trips;
    double spent = 0;
    for (int i = 0; i <= kMostTrips && (i <= kLeastTrips || spent < kTripSeconds); ++i) {
      const double begin = ranks_.now();
      send(-1);
      receive();
      const double trip = ranks_.now() - begin;
      if (i == 0) continue;
      trips.push_back(trip);
      spent += trip;
    }
    constexpr double kLeastTrip = 1e-7;  // no clock is finer
    return std::max(kLeastTrip, median_link(std::move(trips)));
  }

  // Bytes a second, without the time of the short messages around a block.
  double measure_blocks(double trip) {
    int64_t size = kLeastBlock;
    while (size < kMostBlock && block_seconds(size) < kLongEnough) size *= 4;
    std::vector<double> blocks;
    double spent = 0;
    for (int i = 0; i < kMostBlocks && (i < kLeastBlocks || spent < kBlockSeconds); ++i) {
      blocks.push_back(block_seconds(size));
      spent += blocks.back();
    }
    const double took = median_link(std::move(blocks));
    return static_cast<double>(size) / std::max(took - trip, took / 10);
  }
  // From when both know of it to the word that it is there.
  double block_seconds(int64_t size) {
    room_.resize(static_cast<size_t>(size));
    send(size);
    receive();
    const double begin = ranks_.now();
    pass(kLinkTag + 1, room_, true);
    receive();
    return ranks_.now() - begin;
  }

  void follow() {
    while (true) {
      const int64_t word = receive();
      if (word == 0) return;
      if (word > kMostBlock) fail_input("{}: a block of {} bytes", pair_, word);
      if (word > 0) room_.resize(static_cast<size_t>(word));
      send(1);
      if (word < 0) continue;
      pass(kLinkTag + 1, room_, false);
      send(1);
    }
  }

  Ranks& ranks_;
  LinkGuard& guard_;
  int32_t peer_ = -1;
  std::string pair_;
  std::vector<std::byte> room_, other_;
};

nlohmann::json told_json(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array()) fail(ErrorKind::Runtime, "a rank tells no figures of its links");
  return json;
}

}  // namespace

std::vector<std::vector<std::pair<size_t, size_t>>> pair_rounds(size_t count, size_t most) {
  // One place stays where it is, the others go round; of an odd number one has nobody to meet.
  std::vector<std::vector<std::pair<size_t, size_t>>> rounds;
  const size_t even = count + count % 2;
  if (even < 2) return rounds;
  const size_t all = even - 1, wanted = std::min(most, all);
  for (size_t i = 0; i < wanted; ++i) {
    const size_t r = i * all / wanted;
    auto& round = rounds.emplace_back();
    for (size_t k = 0; k < even / 2; ++k) {
      const size_t a = (r + k) % all, b = k == 0 ? all : (r + all - k) % all;
      if (a < count && b < count) round.emplace_back(std::min(a, b), std::max(a, b));
    }
    std::ranges::sort(round);
  }
  return rounds;
}

RankLinks measure_rank_links(Ranks& ranks, const std::vector<int32_t>& members, double time_out) {
  LinkGuard guard(ranks, time_out);
  LinkMeter meter(ranks, guard);
  const auto all_at = [&](const std::string& text) {
    // Whoever has nothing to do waits for others, whose links may be slow.
    constexpr double kSlowPairs = 10;
    guard.begins("all ranks", kSlowPairs);
    return ranks.tell_all(text);
  };
  const auto own = std::ranges::find(members, ranks.rank());
  const bool measures = own != members.end();

  RankLinks links;
  nlohmann::json mine = nlohmann::json::array();
  for (const auto& round : pair_rounds(members.size(), kMostLinkRounds)) {
    all_at("");
    for (const auto& [first, second] : round) {
      const int32_t a = members[first], b = members[second];
      if (ranks.rank() != a && ranks.rank() != b) continue;
      if (const auto found = meter.measure(a, b))
        mine.push_back({a, b, found->bandwidth.value, found->latency.value});
    }
  }
  double slowest = 1e18;
  for (const std::string& text : all_at(mine.dump()))
    for (const nlohmann::json& pair : told_json(text)) {
      links.pairs.push_back({pair.at(0).get<int32_t>(), pair.at(1).get<int32_t>(),
                             BytesPerSecond(pair.at(2).get<double>()),
                             Seconds(pair.at(3).get<double>())});
      slowest = std::min(slowest, links.pairs.back().bandwidth.value);
    }
  std::ranges::sort(links.pairs, {}, [](const PairLink& link) {
    return std::pair{link.a, link.b};
  });

  const int64_t block = static_cast<int64_t>(std::clamp(
      slowest * kLongEnough, static_cast<double>(kLeastBlock), static_cast<double>(kMostBlock)));
  std::vector<double> turns;
  for (int i = 0; i < kRingTurns; ++i) {
    all_at("");
    if (!measures) continue;
    const auto place = static_cast<size_t>(own - members.begin());
    turns.push_back(meter.turn(members[(place + 1) % members.size()],
                               members[(place + members.size() - 1) % members.size()], block));
  }
  mine = nlohmann::json::array();
  if (measures) {
    const double took = median_link(std::move(turns));
    const double latency = links.latency_of(ranks.rank()).value;
    mine.push_back(static_cast<double>(block) / std::max(took - latency, took / 10));
  }
  const std::vector<std::string> told = all_at(mine.dump());
  for (int32_t member : members)
    links.ring.push_back(
        {member, BytesPerSecond(told_json(told[static_cast<size_t>(member)]).at(0).get<double>())});
  return links;
}

BytesPerSecond RankLinks::bandwidth_of(int32_t rank) const {
  const auto alone = [&](int32_t of) {
    BytesPerSecond most(0);
    for (const PairLink& pair : pairs)
      if (pair.a == of || pair.b == of) most = std::max(most, pair.bandwidth);
    return most;
  };
  // A slow neighbour slows the ring, too: what it has alone is no sign of a narrow switch.
  std::vector<double> shares;
  for (size_t i = 0; i < ring.size(); ++i) {
    const size_t next = (i + 1) % ring.size(), before = (i + ring.size() - 1) % ring.size();
    const BytesPerSecond least =
        std::min({alone(ring[i].rank), alone(ring[next].rank), alone(ring[before].rank)});
    shares.push_back(ring[i].bandwidth / least);
  }
  const double share = shares.empty() ? 1 : std::min(1.0, median_link(std::move(shares)));
  return alone(rank) * share;
}

Seconds RankLinks::latency_of(int32_t rank) const {
  std::optional<Seconds> least;
  for (const PairLink& pair : pairs)
    if (pair.a == rank || pair.b == rank)
      least = least ? std::min(*least, pair.latency) : pair.latency;
  return least.value_or(Seconds(0));
}

}  // namespace windlass

#include "windlass/runtime/rank_meetings.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

namespace windlass {
namespace {

constexpr size_t kRounds = 2;
constexpr size_t kMeetingFaults = 8;

uint64_t scrambled(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

struct MessageSize {
  int64_t bytes = 0, parcels = 0;
  bool operator==(const MessageSize&) const = default;
};

// A message as a number that almost no other has.
uint64_t message_mark(size_t round, int32_t from, int32_t to, const MessageSize& size) {
  const uint64_t ends = (static_cast<uint64_t>(from) << 32) | static_cast<uint64_t>(to);
  return scrambled(scrambled(scrambled(ends) + static_cast<uint64_t>(size.bytes)) +
                   static_cast<uint64_t>(size.parcels) * kRounds + round);
}

}  // namespace

// What one rank says, as a sink of TaskCrossings.
struct MeetingFinder::Ends {
  explicit Ends(size_t ranks) : seen(ranks, false) {
    for (auto& end : sizes)
      for (auto& list : end) list.resize(ranks);
  }
  void add(int32_t from, int32_t to, const Parcel& parcel, const void*) {
    count(0, from, to, parcel);
  }
  void again(const void*, const void*) {}
  void chunk(int32_t, const std::vector<int32_t>&, size_t, const Range&) {}
  void pass_on(int32_t from, int32_t to, const Parcel& parcel) { count(1, from, to, parcel); }

  void count(size_t round, int32_t from, int32_t to, const Parcel& parcel) {
    const bool sends = from == rank;
    const auto peer = static_cast<size_t>(sends ? to : from);
    MessageSize& size = sizes[sends ? 0 : 1][round][peer];
    size.bytes += room_in_message(parcel.bytes);
    ++size.parcels;
    if (seen[peer]) return;
    seen[peer] = true;
    peers.push_back(static_cast<int32_t>(peer));
  }
  // Calls visit(sends, round, peer, size) for the rank's messages, and forgets them.
  template <class Visit>
  void tell(Visit&& visit) {
    for (int32_t peer : peers) {
      const auto at = static_cast<size_t>(peer);
      for (size_t end = 0; end < 2; ++end)
        for (size_t round = 0; round < kRounds; ++round) {
          MessageSize& size = sizes[end][round][at];
          if (size.parcels > 0) visit(end == 0, round, peer, size);
          size = {};
        }
      seen[at] = false;
    }
    peers.clear();
  }

  int32_t rank = 0;
  std::vector<MessageSize> sizes[2][kRounds];  // sent, expected; by peer
  std::vector<bool> seen;
  std::vector<int32_t> peers;
};

MeetingFinder::MeetingFinder(int32_t ranks) : ranks_(static_cast<size_t>(ranks)) {}

RankMeeting MeetingFinder::find(const TaskCrossings& crossings) {
  RankMeeting made;
  made.peers_begin.assign(ranks_ + 1, 0);
  Ends ends(ranks_);
  uint64_t sent = 0, expected = 0;
  size_t known = 0;
  for (int32_t rank : crossings.ranks()) {
    // Those between have none.
    for (; known <= static_cast<size_t>(rank); ++known)
      made.peers_begin[known] = static_cast<uint32_t>(made.peers.size());
    ends.rank = rank;
    crossings.tell(rank, ends);
    if (!std::ranges::is_sorted(ends.peers)) std::ranges::sort(ends.peers);
    made.peers.insert(made.peers.end(), ends.peers.begin(), ends.peers.end());
    ends.tell([&](bool sends, size_t round, int32_t peer, const MessageSize& size) {
      if (!sends) {
        expected += message_mark(round, peer, rank, size);
        return;
      }
      sent += message_mark(round, rank, peer, size);
      ++made.messages;
      made.bytes += size.bytes;
    });
  }
  for (; known <= ranks_; ++known)
    made.peers_begin[known] = static_cast<uint32_t>(made.peers.size());
  if (sent != expected) name_faults(crossings, made);
  if (made.any()) find_circles(made);
  return made;
}

void MeetingFinder::name_faults(const TaskCrossings& crossings, RankMeeting& made) {
  std::map<std::tuple<int32_t, int32_t, size_t>, std::pair<MessageSize, MessageSize>> all;
  int32_t most = 0;
  for (int32_t rank : crossings.ranks()) most = std::max(most, rank);
  Ends ends(static_cast<size_t>(most) + 1);
  for (int32_t rank : crossings.ranks()) {
    ends.rank = rank;
    crossings.tell(rank, ends);
    ends.tell([&](bool sends, size_t round, int32_t peer, const MessageSize& size) {
      auto& both = sends ? all[{rank, peer, round}] : all[{peer, rank, round}];
      (sends ? both.first : both.second) = size;
    });
  }
  for (const auto& [key, both] : all) {
    if (both.first == both.second || made.faults.size() >= kMeetingFaults) continue;
    made.faults.push_back(
        fmt::format("what rank {} sends to rank {} {}", std::get<0>(key), std::get<1>(key),
                    both.second.parcels == 0  ? "is received by nobody"
                    : both.first.parcels == 0 ? "is expected there, but not sent"
                                              : "has another size than is expected there"));
  }
}

// Ranks that meet the same ones, themselves among them, are a circle if there are as many of them.
void MeetingFinder::find_circles(RankMeeting& made) const {
  std::map<uint64_t, int32_t> circle_by_mark;
  std::vector<int32_t> circle_of(ranks_, -1);
  std::vector<std::vector<int32_t>> circles;
  std::vector<size_t> sizes;
  for (size_t r = 0; r < ranks_; ++r) {
    const auto begin = made.peers_begin[r], end = made.peers_begin[r + 1];
    if (begin == end) continue;
    uint64_t mark = scrambled(r);
    for (auto i = begin; i < end; ++i) mark += scrambled(static_cast<uint64_t>(made.peers[i]));
    const auto [entry, fresh] =
        circle_by_mark.try_emplace(mark, static_cast<int32_t>(circles.size()));
    if (fresh) {
      circles.emplace_back();
      sizes.push_back(end - begin + 1);
    }
    circle_of[r] = entry->second;
    circles[static_cast<size_t>(entry->second)].push_back(static_cast<int32_t>(r));
    if (sizes[static_cast<size_t>(entry->second)] != end - begin + 1) return;
  }
  for (size_t c = 0; c < circles.size(); ++c)
    if (circles[c].size() != sizes[c]) return;
  made.circle_of = std::move(circle_of);
  made.circles = std::move(circles);
  made.peers_begin = {};
  made.peers = {};
}

}  // namespace windlass

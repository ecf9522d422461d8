#include <algorithm>

#include "windlass/runtime/join_ranks.h"

namespace windlass {

double clock_offset(Ranks& ranks) {
  constexpr int kTrips = 5;
  const auto send = [&](int32_t peer, double& time) {
    const Ranks::Transfer one = {peer, std::as_writable_bytes(std::span(&time, 1))};
    ranks.exchange(kControlTag, {&one, 1}, {});
  };
  const auto receive = [&](int32_t peer, double& time) {
    const Ranks::Transfer one = {peer, std::as_writable_bytes(std::span(&time, 1))};
    ranks.exchange(kControlTag, {}, {&one, 1});
  };
  double quickest = 1e9, offset = 0;
  for (int32_t peer = 1; ranks.rank() == 0 && peer < ranks.size(); ++peer)
    for (int i = 0; i < kTrips; ++i) {
      double theirs = 0;
      receive(peer, theirs);
      double mine = ranks.now();
      send(peer, mine);
    }
  for (int i = 0; ranks.rank() != 0 && i < kTrips; ++i) {
    double before = ranks.now(), there = 0;
    send(0, before);
    receive(0, there);
    const double after = ranks.now();
    if (after - before >= quickest) continue;
    quickest = after - before;
    offset = there - (before + after) / 2;
  }
  return offset;
}

std::string reason_line(const char* text) {
  std::string line = text;
  line.resize(std::min(line.size(), line.find('\n')));
  const size_t place = line.find(".cc:"), end = line.find("] ");
  const bool placed = line.starts_with("[") && place < end && end != std::string::npos;
  return placed ? line.substr(end + 2) : line;
}

}  // namespace windlass

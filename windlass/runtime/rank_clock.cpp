#include <algorithm>

#include "windlass/runtime/join_ranks.h"

namespace windlass {

ClockReading read_clock(Ranks& ranks) {
  constexpr int kTrips = 10;
  const auto send = [&](int32_t peer, double& time) {
    const Ranks::Transfer one = {peer, std::as_writable_bytes(std::span(&time, 1))};
    ranks.exchange(kControlTag, {&one, 1}, {});
  };
  const auto receive = [&](int32_t peer, double& time) {
    const Ranks::Transfer one = {peer, std::as_writable_bytes(std::span(&time, 1))};
    ranks.exchange(kControlTag, {}, {&one, 1});
  };
  for (int32_t peer = 1; ranks.rank() == 0 && peer < ranks.size(); ++peer)
    for (int i = 0; i < kTrips; ++i) {
      double theirs = 0;
      receive(peer, theirs);
      double mine = ranks.now();
      send(peer, mine);
    }
  ClockReading found;
  for (int i = 0; ranks.rank() != 0 && i < kTrips; ++i) {
    double before = ranks.now(), there = 0;
    send(0, before);
    receive(0, there);
    const double after = ranks.now(), error = (after - before) / 2;
    // Rank 0 looked at its clock somewhere between the two.
    if (i == 0 || error < found.error) found = {there - (before + after) / 2, error};
  }
  return found;
}

std::string reason_line(const char* text) {
  std::string line = text;
  line.resize(std::min(line.size(), line.find('\n')));
  const size_t place = line.find(".cc:"), end = line.find("] ");
  const bool placed = line.starts_with("[") && place < end && end != std::string::npos;
  return placed ? line.substr(end + 2) : line;
}

}  // namespace windlass

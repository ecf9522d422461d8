// Who exchanges messages with whom in a task, for all ranks at once, and whether both ends mean the
// same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/runtime/crossings.h"

namespace windlass {

// Of one task, or of several that are alike.
struct RankMeeting {
  int64_t messages = 0, bytes = 0;
  // Ranks that all exchange messages with each other form a circle. By rank: which; -1: none. Empty
  // if there are ranks that meet otherwise: then those that each meets, one rank behind the other.
  std::vector<int32_t> circle_of;
  std::vector<std::vector<int32_t>> circles;  // members, ascending
  std::vector<uint32_t> peers_begin;
  std::vector<int32_t> peers;
  // What is sent and not received, or otherwise; at most some.
  std::vector<std::string> faults;

  bool any() const { return messages > 0 || !faults.empty(); }
};

// Asks every rank what it sends and what it expects, and compares.
class MeetingFinder {
 public:
  explicit MeetingFinder(int32_t ranks);
  RankMeeting find(const TaskCrossings& crossings);

 private:
  struct Ends;
  void find_circles(RankMeeting& made) const;
  static void name_faults(const TaskCrossings& crossings, RankMeeting& made);

  const size_t ranks_;
};

}  // namespace windlass

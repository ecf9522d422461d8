// What crosses from process to process in a task: messages, of which each has what one rank needs
// of another. All ranks have the same program, so that both ends know a message without asking.
//
// What a rank computes from it is what one process would: terms come as they are and are added up
// in the order of the members, so that the bits are the same. A sum that more than two ranks want
// is divided among them: each adds up a chunk of the elements and hands it round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "windlass/runtime/crossings.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program.h"

namespace windlass {

struct RankMessage {
  int32_t peer = 0;
  int64_t bytes = 0;
  std::vector<Parcel> parcels = {};
};

// Of one rank.
struct TaskParcels {
  // A second round hands round the chunks of sums.
  static constexpr uint32_t kRounds = 2;
  std::vector<RankMessage> sends[kRounds], receives[kRounds];
  // Where that which a step of the program reads is in what was received: by its address (of a
  // source, a copy, a term, a slot of statistics).
  struct Place {
    size_t message = 0;
    int64_t offset = 0;
  };
  std::map<const void*, Place> arrived;
  // Sums that are divided: by index into ProgramTask::sums.
  struct Chunk {
    int32_t rank = 0;
    Range elements;
    Place place = {};  // in the second round, if it is another's
  };
  std::map<int32_t, std::vector<Chunk>> divided;

  bool any() const {
    for (size_t round = 0; round < kRounds; ++round)
      if (!sends[round].empty() || !receives[round].empty()) return true;
    return false;
  }
};

// Of a part of a task, or of all of it (-1). Refers to the program. Empty ones are not sent.
TaskParcels make_parcels(const Program& program, const Ownership& own, TaskId task, int32_t part);

}  // namespace windlass

#include "windlass/runtime/parcels.h"

#include <utility>

namespace windlass {
namespace {

// Puts what crosses into messages. Both ends are told it in the same order.
class ParcelMaker {
 public:
  explicit ParcelMaker(int32_t rank, int32_t ranks) : rank_(rank) {
    for (auto& rounds : message_of_)
      for (auto& list : rounds) list.assign(static_cast<size_t>(ranks), -1);
  }

  void add(int32_t from, int32_t to, const Parcel& parcel, const void* key) {
    const TaskParcels::Place place = put(0, from, to, parcel);
    if (to == rank_) made.arrived[key] = place;
  }
  void again(const void* key, const void* first) { made.arrived[key] = made.arrived.at(first); }
  void chunk(int32_t sum, const std::vector<int32_t>& ranks, size_t i, const Range& elements) {
    made.divided[sum].push_back({ranks[i], elements});
  }
  void pass_on(int32_t from, int32_t to, const Parcel& parcel) {
    const TaskParcels::Place place = put(1, from, to, parcel);
    if (to == rank_) made.divided[parcel.sum].back().place = place;
  }

  TaskParcels made;

 private:
  TaskParcels::Place put(size_t round, int32_t from, int32_t to, Parcel parcel) {
    const bool sends = from == rank_;
    std::vector<RankMessage>& list = sends ? made.sends[round] : made.receives[round];
    const int32_t peer = sends ? to : from;
    int32_t& known = message_of_[round][sends ? 0 : 1][static_cast<size_t>(peer)];
    if (known < 0) {
      known = static_cast<int32_t>(list.size());
      list.push_back({.peer = peer});
    }
    RankMessage& message = list[static_cast<size_t>(known)];
    parcel.offset = message.bytes;
    message.bytes += room_in_message(parcel.bytes);
    message.parcels.push_back(parcel);
    return {static_cast<size_t>(known), parcel.offset};
  }

  const int32_t rank_;
  std::vector<int32_t> message_of_[TaskParcels::kRounds][2];  // by round, end and peer; -1: none
};

}  // namespace

TaskParcels make_parcels(const Program& program, const Ownership& own, TaskId task, int32_t part) {
  const TaskCrossings crossings(program.tasks[task.index()], part, own);
  ParcelMaker maker(own.rank, own.ranks);
  crossings.tell(own.rank, maker);
  return std::move(maker.made);
}

}  // namespace windlass

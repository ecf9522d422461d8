// Exchange: what crosses from one device to another, or between a device and a host that is another
// process's. Inside of a process the memories of all devices are at hand; what is another process's
// comes in messages (parcels.h) over the ranks of the run (run/ranks.h).
#pragma once

#include <memory>
#include <vector>

#include "windlass/run/ranks.h"
#include "windlass/runtime/parcels.h"
#include "windlass/runtime/plain_sums.h"
#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

class DeviceExchange {
 public:
  // Refers to its arguments. `ranks` is null if this process is alone. `plain`: sums that are not
  // carried out here; may be null. `threads`: that large moves are divided over.
  DeviceExchange(const Program& program, Slots& slots, const Ownership& own, Ranks* ranks,
                 std::unique_ptr<PlainSums> plain = nullptr, int64_t threads = 1);
  ~DeviceExchange();

  // What a task (or one part of it) has to move between devices, and copies of its parts that come
  // from or go to other processes; those inside of this one are not its concern. The slots it
  // writes to are allocated. Returns when all of it is there. Sums are in the order of the members,
  // in fp32 where the type has 16 bits: the same bits whatever the arrival, and however many
  // processes there are. But for those of `plain`.
  void run(TaskId task, int32_t part);

  // Whether other processes have a part in it.
  bool crosses(TaskId task, int32_t part) const;

 private:
  // Bytes of messages; those that are not in use are kept for the next ones.
  class Room;
  struct Received;

  void carry_out(const ProgramTask& task, const Received& received);
  void copy_parts(const Part& part, const Received& received);
  void receive(const Receive& receive, const Received& received);
  void receive_wide(const Receive& receive, const Received& received);
  void sum(const TermSum& sum, Range elements, const Received& received);
  void divided_sum(const ProgramTask& task, int32_t index, Received& received);
  void hand_out(const ProgramTask& task, const Received& received);
  void copy(const FlatCopy& copy, Range bytes, const Received& received);
  void merge(const StatisticsMerge& merge, const Received& received);
  void pass_messages(TaskId task, size_t round, Received& received);
  void pack(const Parcel& parcel, const Received& received, std::byte* to);

  const Program& program_;
  Slots& slots_;
  const Ownership& own_;
  Ranks* const ranks_;
  // By task: of all of it, or by part. Those without messages are empty.
  std::vector<std::vector<TaskParcels>> parcels_;
  std::vector<uint32_t> first_tag_;  // by task: each list has two, one for each round
  std::unique_ptr<Room> room_;
  std::unique_ptr<PlainSums> plain_;
  const int64_t threads_;
};

}  // namespace windlass

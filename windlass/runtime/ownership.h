// Which process has which memory, where several carry out one program. Each has the whole program
// and does what touches its own slots: so that all speak of the same tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/machine/machine.h"
#include "windlass/runtime/program.h"

namespace windlass {

struct Ownership {
  int32_t rank = 0;                // this process
  int32_t ranks = 1;               // processes
  std::vector<int32_t> of_memory;  // by memory of the program: its rank
  std::vector<int32_t> of_slot;

  bool alone() const { return ranks == 1; }
  bool mine(int32_t slot) const { return of_slot[static_cast<size_t>(slot)] == rank; }
  bool has_memory(int32_t memory) const { return of_memory[static_cast<size_t>(memory)] == rank; }
};

// A process has all devices, those of one host, or one device, as the number of processes says; the
// memory of a host belongs to the process of its first device. Throws Error{Input} for other
// numbers.
Ownership share_out(const Program& program, const Machine& machine, int32_t rank, int32_t ranks);
// The rank of each device, likewise.
std::vector<int32_t> device_ranks(const Machine& machine, int32_t ranks);

// Calls visit(slot) for the slots that a part of a task touches; some several times.
template <class Visit>
void for_slots(const Part& part, Visit&& visit) {
  const auto one = [&](const Operand& operand) {
    if (operand.present()) visit(operand.slot);
  };
  const auto all = [&](const std::vector<Operand>& list) {
    for (const Operand& operand : list) one(operand);
  };
  all(part.reads);
  all(part.writes);
  one(part.statistics);
  all(part.squares);
  all(part.squared);
  for (const WeightUpdate& update : part.updates) {
    all(update.gradients);
    one(update.weight);
    one(update.master);
    all(update.states);
  }
  for (const FlatCopy& copy : part.flat_copies) {
    visit(copy.from);
    visit(copy.to);
  }
  for (const PartCopy& copy : part.part_copies) {
    one(copy.from);
    visit(copy.to);
  }
  for (int32_t slot : part.allocates) visit(slot);
}

}  // namespace windlass

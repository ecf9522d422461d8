// The real memory of the slots of a program, while they are alive.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "windlass/graph/graph.h"
#include "windlass/runtime/device.h"
#include "windlass/runtime/program.h"

namespace windlass {

// Tasks that touch the same slot are ordered by whoever runs them.
class Slots {
 public:
  // `devices` by memory of the program.
  Slots(const Program& program, std::vector<RealDevice*> devices)
      : program_(program),
        devices_(std::move(devices)),
        held_(program.slots.size()),
        alive_(program.slots.size()) {}

  // Memory for a slot, as long as it is rounded in the graph.
  void allocate(int32_t slot);
  // A tensor that was made by a kernel becomes the slot. Throws Error{Internal} unless it is the
  // only owner of its bytes and they were taken from the memory of the slot's device: a slot that
  // borrowed them would not know when they are given back.
  void adopt(int32_t slot, at::Tensor tensor);
  void release(int32_t slot) { set(slot, {}); }
  // The bytes of one slot become those of another.
  void pass(int32_t from, int32_t to) {
    set(to, std::move(held_[static_cast<size_t>(from)]));
    set(from, {});
  }
  // By memory of the program.
  RealDevice& device(int32_t memory) const { return *devices_[static_cast<size_t>(memory)]; }
  bool holds(int32_t slot) const { return held_[static_cast<size_t>(slot)].defined(); }
  // The same for those who are not in order with the tasks that touch it: as good as a look.
  bool seen_alive(int32_t slot) const { return alive_[static_cast<size_t>(slot)]; }

  // All of it.
  std::span<std::byte> bytes(int32_t slot) const;
  // A tensor of this type that lies there, from byte `offset` on, and shares the bytes: it is good
  // until the slot is released. Throws Error{Internal} if the slot is not alive or too small.
  at::Tensor view(int32_t slot, int64_t offset, const TensorType& type) const;
  // The ends of a copy. Throws Error{Internal} if it goes beyond one of them.
  struct Ends {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
  };
  Ends ends(const FlatCopy& copy) const;
  // What an operand is: a view, or, if it is a part that is not dense, a copy, in the arena of the
  // calling thread.
  at::Tensor operand(const Operand& operand) const;

 private:
  void set(int32_t slot, at::Tensor tensor) {
    alive_[static_cast<size_t>(slot)] = tensor.defined();
    held_[static_cast<size_t>(slot)] = std::move(tensor);
  }

  const Program& program_;
  std::vector<RealDevice*> devices_;
  std::vector<at::Tensor> held_;
  std::vector<std::atomic<bool>> alive_;
};

}  // namespace windlass

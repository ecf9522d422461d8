// What a step of packs moves, by kind.
#pragma once

#include <cstdint>

namespace windlass {

// Bytes a step, of the whole machine. The first four cross between host and devices.
struct SwapVolume {
  int64_t weights = 0;      // with buffers, in; out too where devices update them
  int64_t gradients = 0;    // device to host
  int64_t optimizer = 0;    // both ways
  int64_t activations = 0;  // stashes, boundaries and inputs, both ways
  int64_t peers = 0;        // device to device
  int64_t messages = 0;     // from one host buffer to another

  int64_t swapped() const { return weights + gradients + optimizer + activations; }
  bool operator==(const SwapVolume&) const = default;
};

}  // namespace windlass

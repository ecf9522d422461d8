// Layer profiles: a network as a chain of layers with measured times and peaks, instead of a graph.
// What planning needs when weights are moved in packs of layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/units.h"

namespace windlass {

// One pass over each layer at one micro-batch size.
struct PassCosts {
  std::vector<double> seconds;  // by layer
  std::vector<int64_t> peak;    // bytes while the layer runs alone, its weights and input included
};

// Measurements of a pass at several micro-batch sizes.
struct PassProfile {
  std::vector<int64_t> sizes;      // micro-batch sizes, ascending, at least one
  std::vector<PassCosts> at_size;  // parallel to sizes

  bool covers(int64_t micro_batch) const {
    return micro_batch >= sizes.front() && micro_batch <= sizes.back();
  }
  // Between measured sizes: linear, layer by layer, peaks rounded down to bytes. Throws
  // Error{Input} outside of the measured range, which nobody knows.
  PassCosts at(int64_t micro_batch) const;
};

// A chain of at least two layers, the last of which is the loss. The output of layer l is the input
// of layer l + 1; gradients have the bytes of what they are gradients of. Targets are not listed.
// All lists are of one length, no number is negative, and sums over the chain of any of them, at
// any micro-batch size in range, stay far below 2^62.
struct LayerProfile {
  std::string source;                                // where the figures come from
  std::vector<int64_t> weights, buffers, optimizer;  // bytes
  int64_t tied = 0;                 // bytes of weights that an earlier layer lists too: stored once
  std::vector<int64_t> input;       // bytes for one sample
  std::vector<double> host_update;  // seconds of the optimizer step on the host
  PassProfile forward;
  PassProfile backward;  // recomputing the layer included

  size_t layers() const { return weights.size(); }
  int64_t input_bytes(size_t layer, int64_t micro_batch) const {
    return input[layer] * micro_batch;
  }
};

// A stable hash over all figures; where they come from does not count.
uint64_t fingerprint(const LayerProfile& profile);

// Whether the text is meant as a layer profile: a JSON object with the keys that only those have.
// Never throws Error.
bool is_layer_profile(std::string_view text);

// Reads a profile (docs/layer_profile.md). `where` begins messages. Throws Error{Input} naming the
// key that is missing, unknown, of the wrong length, or out of range.
LayerProfile layer_profile_from_json(std::string_view text, const std::string& where);

// The same from a file.
LayerProfile load_layer_profile(const std::string& path);

}  // namespace windlass

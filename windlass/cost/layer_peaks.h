// Most bytes that the ops of a layer have alive at once.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/differentiate.h"

namespace windlass {

// By layer, as allocators round them. Left out are weights and buffers, their gradients, the
// layer's input and the gradient of its output.
struct LayerPeaks {
  // Op by op: what a later op of the layer reads, or the next layer, stays; of what the backward
  // pass reads nothing else does. Workspace included.
  std::vector<int64_t> forward;
  // The layer computed again, everything that its backward ops read kept, then those. Of several
  // layers in a row, their sum is never below what they have alive together.
  std::vector<int64_t> backward;
};

// `layer_of`: by forward op. `workspace`: bytes by op of both passes.
LayerPeaks layer_peaks(const TrainingGraph& training, const std::vector<int32_t>& layer_of,
                       const std::vector<int64_t>& workspace);

}  // namespace windlass

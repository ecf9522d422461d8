// Which stored float tensors are parameters. ONNX does not say; their place in the graph does.
#pragma once

#include "windlass/graph/graph.h"

namespace windlass {

// Turns weights into buffers that training cannot or should not touch:
//  - no gradient of any output reaches them (a causal mask that is only compared, a table of
//  indices);
//  - they are frequencies: all that becomes of them, combined with nothing but positions and
//  constants,
//    goes into sines and cosines (rotary and sinusoidal embeddings).
// Returns how many weights were demoted.
int demote_buffers(Graph& graph);

}  // namespace windlass

// Mixed precision as frameworks make it: weights stay fp32, and casts are ops of the graph.
#pragma once

#include "windlass/graph/graph.h"

namespace windlass {

// A network as torch.autocast runs it. Products, convolutions, attention and recurrent layers get
// their float operands in `dtype` (bf16 or fp16); softmax, layer and group norms, sums over axes,
// exponentials, logarithms, powers and losses in fp32; all others work in the widest type of their
// operands that have axes, and batch norm in that of its input. A weight is cast once for all that
// read it, as the cast cache does; an activation anew for each op that wants it otherwise, so that
// each keeps a copy of its own. What is fp64 or no float stays. (torch.amp, "CUDA Op-Specific
// Behavior", and PyTorch's source.) Adds of two types are cast by an op here, inside of
// the kernel there: the cast is one transient more.
Graph autocast(const Graph& graph, DType dtype);

// The network with the losses of 16-bit predictions computed from an fp32 copy of them.
Graph with_fp32_losses(const Graph& graph);

// Takes scaling and masking out of the way from a product to a softmax, whose kernel does them: for
// prices, not to be computed with. Returns how many ops are gone.
int fuse_scores(Graph& graph);

}  // namespace windlass

// Canonical form of imported graphs: the same computation with fewer and plainer ops.
#pragma once

#include "windlass/graph/graph.h"

namespace windlass {

// Ops with one scalar constant become unary (x * c + d, x^c), so that nothing of them is kept for
// the backward pass; copies that copy nothing (identity transposes, full slices, casts to the same
// type, reshapes to the same shape) vanish; chains of reshapes, transposes and scalings are merged.
void simplify(Graph& graph);

}  // namespace windlass

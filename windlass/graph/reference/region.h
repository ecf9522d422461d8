// Parts of arrays.
#pragma once

#include "windlass/graph/op_piece.h"
#include "windlass/graph/reference/interpret.h"

namespace windlass {

// The region of an array; all of it if the region is empty.
Array take_region(const Array& whole, const Region& region);
// Writes a part over its region of `whole`, or adds it there.
void put_region(const Array& part, const Region& region, Array& whole);
void add_region(const Array& part, const Region& region, Array& whole);

}  // namespace windlass

// What goes from one dense part of a tensor to another: copies, and sums in the order of members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "windlass/graph/dtype.h"
#include "windlass/graph/op_info.h"
#include "windlass/task/overlap.h"

namespace windlass {

// Elements of `from` to where `to` has them.
void copy_overlap(const Overlap& overlap, DType dtype, const std::byte* from, std::byte* to);
// `to` combined with them, in the precision of the type.
void combine_overlap(const Overlap& overlap, DType dtype, CombineFn combine, const std::byte* from,
                     std::byte* to);
// Elements of `from` one run behind the other.
void pack_overlap(const Overlap& overlap, DType dtype, const std::byte* from, std::byte* to);
// As if `from` were what pack_overlap() has made.
void copy_packed(const Overlap& overlap, DType dtype, const std::byte* packed, std::byte* to);
void combine_packed(const Overlap& overlap, DType dtype, CombineFn combine, const std::byte* packed,
                    std::byte* to);
// The same sum in fp32, beside a type of 16 bits.
void add_overlap_wide(const Overlap& overlap, DType dtype, const std::byte* from, float* to);

// Where a sum goes.
struct SumTarget {
  std::byte* data = nullptr;
  bool adds = false;  // to what is there
};
// Results of several members, element by element in the order of the members: the same bits
// whatever the arrival. Types of 16 bits are summed in fp32 and rounded once. Targets may be among
// the terms.
void combine_terms(DType dtype, CombineFn combine, const std::vector<const std::byte*>& terms,
                   const std::vector<SumTarget>& targets, int64_t count);

// fp32 to a type of 16 bits.
void narrow(const float* from, DType dtype, std::byte* to, int64_t count);

}  // namespace windlass

// Lossy storage of activations in 8, 4 or 2 bits an element.
//
// Elements are taken in groups of 64; what is left over belongs to the last group, so that only a
// tensor of fewer than 64 elements has a smaller one. A group keeps its least and greatest element
// as two bf16 numbers, the one rounded down and the other up, and for each element a code on the
// even ladder between them, rounded up or down at random in proportion (Chakrabarti and Moseley,
// "Backprop with approximate activations", 2019; Chen et al., "ActNN", 2021):
//  - the expected value of a decoded element is the element;
//  - least and greatest are exact if they are bf16 numbers, as is a constant group;
//  - a group with NaN or infinity, or spread wider than fp32 holds, comes back as NaN throughout:
//    an overflow stays visible.
//
// Packed: the bf16 pairs (least, greatest) of all groups, then the codes, element i in bits
// [i * bits, (i + 1) * bits), from the lowest bit of each byte.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

// Size of the packed form: what lowering reserves for a compressed tensor.
int64_t packed_bytes(int64_t elements, int bits);

// `packed` is a contiguous tensor of packed_bytes(...) bytes (U8), `tensor` contiguous and of a
// floating-point type. The key chooses the direction of rounding. Nothing is allocated, and the
// result does not depend on the number of threads.
void compress(const at::Tensor& tensor, int bits, RandomKey key, at::Tensor& packed);
void decompress(const at::Tensor& packed, int bits, at::Tensor& tensor);

}  // namespace windlass

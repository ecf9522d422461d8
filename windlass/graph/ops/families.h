// The parts of the op table, one per family, and what their rules share.
#pragma once

#include <string>
#include <vector>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/graph/coupled.h"
#include "windlass/graph/op_info.h"
#include "windlass/graph/op_piece.h"

namespace windlass::ops {

std::vector<OpInfo> contraction_ops();
std::vector<OpInfo> convolution_ops();
std::vector<OpInfo> normalization_ops();
std::vector<OpInfo> attention_ops();
std::vector<OpInfo> elementwise_ops();
std::vector<OpInfo> lookup_ops();
std::vector<OpInfo> layout_ops();
std::vector<OpInfo> reduction_ops();
std::vector<OpInfo> recurrent_ops();
std::vector<OpInfo> routing_ops();
std::vector<OpInfo> loss_ops();
std::vector<OpInfo> update_ops();

inline double elements(const TensorType& type) {
  return static_cast<double>(element_count(type.shape));
}

inline SavedRef saved_input(int32_t i) { return {SavedRef::Source::Input, i}; }
inline SavedRef saved_output(int32_t i) { return {SavedRef::Source::Output, i}; }
inline SavedRef saved_aux(int32_t i) { return {SavedRef::Source::Auxiliary, i}; }

// dtype of statistics and sums kept beside 16-bit data.
inline DType statistic_dtype(DType dtype) { return dtype == DType::F64 ? DType::F64 : DType::F32; }

// Throws unless the operand is a floating-point tensor.
void require_float(const Signature& s, size_t input);
void require_integer(const Signature& s, size_t input);
void require_rank(const Signature& s, size_t input, size_t rank);
void require_shape(const Signature& s, size_t input, const Shape& expected, std::string_view what);

// Type of `width` statistics for each point of `points`.
TensorType statistics_type(const Signature& s, Shape points, int64_t width);

// Rule with `count` inputs, all None.
GradientRule no_gradient(size_t count);

// One Free loop per axis of `shape`, called d0, d1, ...
std::vector<LoopDim> axis_loops(const Shape& shape);

// Axis i follows loop first + i.
OperandMap aligned_map(size_t rank, int32_t first = 0);

// Map of an operand of `shape` that is broadcast against axis loops of `full`: axes of size 1 where
// the full size differs are whole.
OperandMap broadcast_map(const Shape& shape, const Shape& full, int32_t first = 0);

// Loops of an op whose single output has one Free loop per axis and whose inputs broadcast against
// it.
LoopNest broadcast_loops(const Signature& s);

// `size` elements kept, no arithmetic.
inline Arithmetic pointwise(double operations) { return {0, operations}; }
inline Arithmetic no_arithmetic(const Signature&) { return {}; }

}  // namespace windlass::ops

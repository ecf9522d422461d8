// Shapes: fixed sizes, outermost axis first, all tensors dense and row-major.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/base/units.h"
#include "windlass/graph/dtype.h"

namespace windlass {

using Shape = std::vector<int64_t>;

// No tensor has more elements than this, so that sizes in bytes and sums of a few sizes fit 64
// bits.
inline constexpr int64_t kMaxElements = int64_t{1} << 59;
// No tensor has more dimensions than this.
inline constexpr size_t kMaxRank = 64;

// Number of elements. Throws Error{Input} if a dimension is negative or the dimensions that are not
// 0 have a product beyond kMaxElements: an empty tensor has strides and partial products too.
int64_t element_count(const Shape& shape);

// "[2, 3, 224, 224]"; a scalar is "[]". Far too many dimensions are cut short.
std::string format_shape(const Shape& shape);

// Axis counted from the front: -1 is the last one. Throws Error{Input} when it is out of range.
size_t normalize_axis(int64_t axis, size_t rank);

// NumPy broadcasting of two shapes; throws Error{Input} when they do not fit.
Shape broadcast_shapes(const Shape& a, const Shape& b);

// What an op must know of a tensor.
struct TensorType {
  DType dtype = DType::None;  // None: an optional operand that is not there
  Shape shape;

  bool present() const { return dtype != DType::None; }
  bool operator==(const TensorType&) const = default;
};

Bytes byte_size(const TensorType& type);

// "fp32[2, 3]".
std::string format_type(const TensorType& type);

}  // namespace windlass

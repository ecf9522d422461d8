// Shapes: fixed sizes, outermost axis first, all tensors dense and row-major.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/base/units.h"
#include "windlass/graph/dtype.h"

namespace windlass {

using Shape = std::vector<int64_t>;

// Number of elements; throws Error{Input} if it does not fit 64 bits or a dimension is negative.
int64_t element_count(const Shape& shape);

// "[2, 3, 224, 224]"; a scalar is "[]".
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

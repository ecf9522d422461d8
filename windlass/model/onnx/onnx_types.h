// Element types as ONNX numbers them.
#pragma once

#include <cstdint>

#include "windlass/graph/dtype.h"

namespace windlass {

// TensorProto::DataType, as far as windlass knows it.
enum class OnnxType : int {
  Float = 1,
  UInt8 = 2,
  Int8 = 3,
  UInt16 = 4,
  Int16 = 5,
  Int32 = 6,
  Int64 = 7,
  Bool = 9,
  Float16 = 10,
  Double = 11,
  UInt32 = 12,
  UInt64 = 13,
  BFloat16 = 16,
};

// The type windlass reads it into; None if it knows none. Unsigned types wider than a byte become
// the next signed one that holds them.
DType dtype_of_onnx(int64_t onnx_type);

// Bytes of one stored element.
int64_t stored_bytes(int64_t onnx_type);

}  // namespace windlass

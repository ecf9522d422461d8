#include "windlass/model/onnx/onnx_types.h"

namespace windlass {

DType dtype_of_onnx(int64_t onnx_type) {
  if (onnx_type < 0 || onnx_type > static_cast<int64_t>(OnnxType::BFloat16)) return DType::None;
  switch (static_cast<OnnxType>(onnx_type)) {
    case OnnxType::Float: return DType::F32;
    case OnnxType::Double: return DType::F64;
    case OnnxType::Float16: return DType::F16;
    case OnnxType::BFloat16: return DType::BF16;
    case OnnxType::Int64:
    case OnnxType::UInt64:
    case OnnxType::UInt32: return DType::I64;
    case OnnxType::Int32:
    case OnnxType::UInt16: return DType::I32;
    case OnnxType::Int16: return DType::I16;
    case OnnxType::Int8: return DType::I8;
    case OnnxType::UInt8: return DType::U8;
    case OnnxType::Bool: return DType::Bool;
  }
  return DType::None;
}

int64_t stored_bytes(int64_t onnx_type) {
  if (onnx_type == static_cast<int64_t>(OnnxType::UInt16)) return 2;
  if (onnx_type == static_cast<int64_t>(OnnxType::UInt32)) return 4;
  return element_bytes(dtype_of_onnx(onnx_type));
}

}  // namespace windlass

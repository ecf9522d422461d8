// Element types.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace windlass {

enum class DType : uint8_t {
  None,  // of an absent optional operand
  F64,
  F32,
  BF16,
  F16,
  I64,
  I32,
  I16,
  I8,
  U8,
  Bool,
};

// Bytes of one element; Bool takes one.
constexpr int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::None: return 0;
    case DType::F64:
    case DType::I64: return 8;
    case DType::F32:
    case DType::I32: return 4;
    case DType::BF16:
    case DType::F16:
    case DType::I16: return 2;
    case DType::I8:
    case DType::U8:
    case DType::Bool: return 1;
  }
  return 0;
}

constexpr bool is_float(DType dtype) { return dtype >= DType::F64 && dtype <= DType::F16; }
constexpr bool is_integer(DType dtype) { return dtype >= DType::I64 && dtype <= DType::U8; }

// "fp32", "bf16", "int64", ...
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace windlass

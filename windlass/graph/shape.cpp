#include "windlass/graph/shape.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "windlass/base/checked.h"

namespace windlass {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 10> kDTypeNames = {{
    {DType::F64, "fp64"},
    {DType::F32, "fp32"},
    {DType::BF16, "bf16"},
    {DType::F16, "fp16"},
    {DType::I64, "int64"},
    {DType::I32, "int32"},
    {DType::I16, "int16"},
    {DType::I8, "int8"},
    {DType::U8, "uint8"},
    {DType::Bool, "bool"},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [known, name] : kDTypeNames)
    if (known == dtype) return name;
  return "none";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& [dtype, known] : kDTypeNames)
    if (known == name) return dtype;
  if (name == "float32") return DType::F32;
  if (name == "float16" || name == "half") return DType::F16;
  if (name == "bfloat16") return DType::BF16;
  return std::nullopt;
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  bool empty = false;
  for (int64_t size : shape) {
    if (size < 0) fail_input("shape {} has a negative dimension", format_shape(shape));
    if (size == 0)
      empty = true;
    else
      count = checked_mul(count, size);
  }
  if (count > kMaxElements)
    fail_input("size overflows: shape {}; the dimensions are not plausible", format_shape(shape));
  return empty ? 0 : count;
}

std::string format_shape(const Shape& shape) {
  if (shape.size() <= kMaxRank) return fmt::format("[{}]", fmt::join(shape, ", "));
  return fmt::format("[{}, ... {} dimensions]", fmt::join(shape.begin(), shape.begin() + 8, ", "),
                     shape.size());
}

size_t normalize_axis(int64_t axis, size_t rank) {
  const auto signed_rank = static_cast<int64_t>(rank);
  if (axis < -signed_rank || axis >= signed_rank)
    fail_input("axis {} is out of range for a tensor of {} dimensions", axis, rank);
  return static_cast<size_t>(axis < 0 ? axis + signed_rank : axis);
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()));
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1)
      fail_input("shapes {} and {} cannot be broadcast together", format_shape(a), format_shape(b));
    result[result.size() - 1 - i] = x == 1 ? y : x;
  }
  return result;
}

Bytes byte_size(const TensorType& type) {
  return Bytes(checked_mul(element_count(type.shape), element_bytes(type.dtype)));
}

std::string format_type(const TensorType& type) {
  return fmt::format("{}{}", dtype_name(type.dtype), format_shape(type.shape));
}

}  // namespace windlass

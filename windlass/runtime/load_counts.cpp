#include "windlass/runtime/load_counts.h"

#include <cstring>

#include "windlass/graph/reference/mean_counts.h"
#include "windlass/model/convert.h"

namespace windlass {
namespace {

template <class T>
void widen(std::span<const std::byte> bytes, std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = static_cast<double>(value);
  }
}

Array as_array(const TensorType& type, std::span<const std::byte> bytes) {
  Array array(type.shape);
  switch (type.dtype) {
    case DType::I64: widen<int64_t>(bytes, array.values); break;
    case DType::I32: widen<int32_t>(bytes, array.values); break;
    case DType::I16: widen<int16_t>(bytes, array.values); break;
    case DType::I8: widen<int8_t>(bytes, array.values); break;
    case DType::U8:
    case DType::Bool: widen<uint8_t>(bytes, array.values); break;
    default:
      convert_values(bytes, type.dtype, std::as_writable_bytes(std::span(array.values)),
                     DType::F64);
  }
  return array;
}

}  // namespace

std::vector<double> load_mean_counts(
    const std::vector<const Graph*>& graphs, const BatchAxes& batch, int64_t micro_batches,
    const std::function<void(TensorId, int32_t micro_batch, std::span<std::byte>)>& load) {
  return mean_counts(graphs, batch, static_cast<int32_t>(micro_batches),
                     [&](TensorId id, int32_t micro_batch) {
                       const auto at = static_cast<size_t>(micro_batch) % graphs.size();
                       const TensorType& type = (*graphs[at])[id].type;
                       std::vector<std::byte> bytes(static_cast<size_t>(byte_size(type).value));
                       load(id, micro_batch, bytes);
                       return as_array(type, bytes);
                     });
}

}  // namespace windlass

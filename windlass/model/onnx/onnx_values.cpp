// Reading the values of stored tensors, wherever they lie.

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/onnx_file.h"
#include "windlass/model/onnx/onnx_types.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// External data must stay below the model's folder.
fs::path resolve(const OnnxFile& file, const OnnxTensor& tensor) {
  const fs::path relative = fs::path(tensor.external->file).lexically_normal();
  if (relative.is_absolute() || relative.empty() || *relative.begin() == "..")
    fail_input("tensor \"{}\": external data \"{}\" is outside of the model's folder", tensor.name,
               tensor.external->file);
  return fs::path(file.folder.empty() ? "." : file.folder) / relative;
}

double half_to_double(uint16_t bits) {
  const int sign = bits >> 15, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double value = 0;
  if (exponent == 31)
    value = fraction ? std::nan("") : HUGE_VAL;
  else if (exponent == 0)
    value = std::ldexp(fraction, -24);
  else
    value = std::ldexp(fraction + 1024, exponent - 25);
  return sign ? -value : value;
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

double decode(const std::byte* at, int onnx_type) {
  switch (static_cast<OnnxType>(onnx_type)) {
    case OnnxType::Float: return static_cast<double>(load<float>(at));
    case OnnxType::Double: return load<double>(at);
    case OnnxType::Float16: return half_to_double(load<uint16_t>(at));
    case OnnxType::BFloat16:
      return static_cast<double>(
          std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(at)) << 16));
    case OnnxType::Int64: return static_cast<double>(load<int64_t>(at));
    case OnnxType::UInt64: return static_cast<double>(load<uint64_t>(at));
    case OnnxType::Int32: return load<int32_t>(at);
    case OnnxType::UInt32: return load<uint32_t>(at);
    case OnnxType::Int16: return load<int16_t>(at);
    case OnnxType::UInt16: return load<uint16_t>(at);
    case OnnxType::Int8: return load<int8_t>(at);
    case OnnxType::Bool: return load<uint8_t>(at) != 0;
    default: return load<uint8_t>(at);
  }
}

std::vector<std::byte> read_external(const OnnxFile& file, const OnnxTensor& tensor) {
  const WeightLocation location = locate(file, tensor);
  std::vector<std::byte> bytes(static_cast<size_t>(location.bytes));
  std::ifstream stream(location.file, std::ios::binary);
  stream.seekg(location.offset);
  stream.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!stream) fail_input("tensor \"{}\": cannot read {}", tensor.name, location.file);
  return bytes;
}

// Whether the payload is stored as raw data would be. Packed lists of floats are.
bool is_plain(const Payload& payload) {
  return !payload.records &&
         (payload.field == PayloadField::Raw || payload.field == PayloadField::Float ||
          payload.field == PayloadField::Double);
}

}  // namespace

std::vector<double> read_values(const OnnxFile& file, const OnnxTensor& tensor) {
  if (tensor.type.dtype == DType::None)
    fail_unsupported("tensor \"{}\" has an element type without numbers (ONNX type {})",
                     tensor.name, tensor.onnx_type);
  const int64_t width = stored_bytes(tensor.onnx_type);
  const int64_t count = element_count(tensor.type.shape);
  std::vector<std::byte> copy;
  std::span<const std::byte> bytes = tensor.bytes;
  if (tensor.payload) {
    copy = read_payload(file.data, file.payloads[*tensor.payload], width);
    bytes = copy;
  } else if (tensor.external) {
    copy = read_external(file, tensor);
    bytes = copy;
  }
  if (static_cast<int64_t>(bytes.size()) != checked_mul(count, width))
    fail_input("tensor \"{}\": {} bytes of data, {} needs {}", tensor.name, bytes.size(),
               format_type(tensor.type), checked_mul(count, width));
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = decode(bytes.data() + i * static_cast<size_t>(width), tensor.onnx_type);
  return values;
}

std::optional<std::vector<double>> sample_values(const OnnxFile& file, const OnnxTensor& tensor,
                                                 std::span<const int64_t> indices) {
  if (tensor.payload && !is_plain(file.payloads[*tensor.payload])) return std::nullopt;
  const int64_t width = stored_bytes(tensor.onnx_type);
  const int64_t count = element_count(tensor.type.shape);
  std::span<const std::byte> bytes = tensor.bytes;
  WeightLocation location;
  std::ifstream stream;
  if (tensor.payload) {
    const Payload& payload = file.payloads[*tensor.payload];
    bytes =
        file.data.subspan(static_cast<size_t>(payload.offset), static_cast<size_t>(payload.length));
  } else if (tensor.external) {
    location = locate(file, tensor);
    stream.open(location.file, std::ios::binary);
  }
  std::vector<double> values;
  for (int64_t index : indices) {
    if (index < 0 || index >= count) return std::nullopt;
    if (!tensor.external) {
      if ((index + 1) * width > static_cast<int64_t>(bytes.size())) return std::nullopt;
      values.push_back(decode(bytes.data() + index * width, tensor.onnx_type));
    } else {
      std::byte element[8] = {};
      stream.seekg(location.offset + index * width);
      stream.read(reinterpret_cast<char*>(element), width);
      if (!stream) return std::nullopt;
      values.push_back(decode(element, tensor.onnx_type));
    }
  }
  return values;
}

WeightLocation locate(const OnnxFile& file, const OnnxTensor& tensor) {
  const int64_t width = stored_bytes(tensor.onnx_type);
  const int64_t needed = checked_mul(element_count(tensor.type.shape), width);
  const auto require = [&](int64_t found) {
    if (found != needed)
      fail_input("tensor \"{}\": {} bytes of data, {} needs {}", tensor.name, found,
                 format_type(tensor.type), needed);
  };
  WeightLocation location{file.path, 0, needed, tensor.type.dtype, {}};
  if (tensor.external) {
    const fs::path path = resolve(file, tensor);
    std::error_code failed;
    const auto size = fs::file_size(path, failed);
    if (failed)
      fail_input("tensor \"{}\": external data {} cannot be read ({}); it belongs beside the model",
                 tensor.name, path.string(), failed.message());
    const int64_t end = checked_add(tensor.external->offset, needed);
    if (end > static_cast<int64_t>(size))
      fail_input("tensor \"{}\": external data {} has {} bytes, {} are needed up to its end",
                 tensor.name, path.string(), size, end);
    location.file = path.string();
    location.offset = tensor.external->offset;
    return location;
  }
  if (!tensor.payload) {
    require(static_cast<int64_t>(tensor.bytes.size()));
    location.value = tensor.bytes;
    return location;
  }
  const Payload& payload = file.payloads[*tensor.payload];
  const bool plain = is_plain(payload);
  if (plain) {
    require(payload.length);
    location.offset = payload.offset;
  }
  if (!plain || file.path.empty()) {
    location.value = read_payload(file.data, payload, width);
    require(static_cast<int64_t>(location.value.size()));
  }
  return location;
}

}  // namespace windlass

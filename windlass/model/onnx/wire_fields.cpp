#include "windlass/model/onnx/wire_fields.h"

#include <limits>

#include "windlass/base/error.h"

namespace windlass {

std::string_view field_name(PayloadField field) {
  switch (field) {
    case PayloadField::Float: return "float_data";
    case PayloadField::Int32: return "int32_data";
    case PayloadField::String: return "string_data";
    case PayloadField::Int64: return "int64_data";
    case PayloadField::Raw: return "raw_data";
    case PayloadField::Double: return "double_data";
    case PayloadField::Uint64: return "uint64_data";
  }
  return "";
}

size_t varint_width(uint64_t value) {
  size_t width = 1;
  while (value >>= 7) ++width;
  return width;
}

void append_varint(std::string& out, uint64_t value, size_t width) {
  for (size_t i = 0; i + 1 < width; ++i, value >>= 7)
    out.push_back(static_cast<char>(0x80 | (value & 0x7f)));
  out.push_back(static_cast<char>(value));
}

void append_varint(std::string& out, uint64_t value) {
  append_varint(out, value, varint_width(value));
}

void append_bytes(std::string& out, uint32_t field, std::string_view content) {
  append_varint(out, uint64_t{field} << 3 | static_cast<uint64_t>(WireType::Delimited));
  append_varint(out, content.size());
  out.append(content);
}

Field FieldReader::next() {
  Field field;
  field.begin = position_;
  const uint64_t tag = read_varint();
  field.number = static_cast<uint32_t>(tag >> 3);
  if (tag > std::numeric_limits<uint32_t>::max() || field.number == 0)
    fail_input("byte {}: {} has a field with the invalid tag {}; the file is damaged or not ONNX",
               field.begin, message_, tag);
  field.type = static_cast<WireType>(tag & 7);
  field.content = position_;
  uint64_t length = 0;
  switch (field.type) {
    case WireType::Varint: field.varint = read_varint(); break;
    case WireType::Fixed64: length = 8; break;
    case WireType::Fixed32: length = 4; break;
    case WireType::Delimited:
      field.length_at = position_;
      length = read_varint();
      field.content = position_;
      break;
    default:
      fail_input("byte {}: field {} of {} has wire type {}; the file is damaged or not ONNX",
                 field.begin, field.number, message_, tag & 7);
  }
  if (length > end_ - position_)
    fail_input(
        "byte {}: field {} of {} claims {} bytes where {} are left; the file is cut short "
        "or damaged",
        field.begin, field.number, message_, length, end_ - position_);
  position_ += length;
  field.end = position_;
  return field;
}

uint64_t FieldReader::read_varint() {
  const size_t begin = position_;
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (position_ == end_)
      fail_input("byte {}: a number in {} is cut short; the file is truncated or damaged", begin,
                 message_);
    const uint64_t byte = std::to_integer<uint64_t>(file_[position_++]);
    if (shift == 63 && byte > 1) break;
    value |= (byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
  fail_input("byte {}: a number in {} exceeds 64 bits; the file is damaged or not ONNX", begin,
             message_);
}

}  // namespace windlass

// Reading the values that a skeleton left in the file.

#include "windlass/base/error.h"
#include "windlass/model/onnx/wire.h"
#include "windlass/model/onnx/wire_fields.h"

namespace windlass {
namespace {

void append_element(std::vector<std::byte>& out, uint64_t value, int64_t element_bytes) {
  for (int64_t i = 0; i < element_bytes; ++i, value >>= 8)
    out.push_back(static_cast<std::byte>(value & 0xff));
}

// Appends the elements of one packed part.
void append_list(std::span<const std::byte> file, size_t begin, size_t end, PayloadField field,
                 int64_t element_bytes, std::vector<std::byte>& out) {
  const bool fixed_width =
      field == PayloadField::Raw || field == PayloadField::Float || field == PayloadField::Double;
  if (fixed_width) {
    out.insert(out.end(), file.begin() + begin, file.begin() + end);
    return;
  }
  FieldReader reader(file, begin, end, field_name(field));
  while (!reader.done()) append_element(out, reader.read_varint(), element_bytes);
}

}  // namespace

std::vector<std::byte> read_payload(std::span<const std::byte> file, const Payload& payload,
                                    int64_t element_bytes) {
  if (payload.field == PayloadField::String)
    fail(ErrorKind::Unsupported, "tensor \"{}\" holds strings", payload.tensor);
  ensure(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8,
         "read_payload: element width");
  const auto begin = static_cast<size_t>(payload.offset);
  const auto end = begin + static_cast<size_t>(payload.length);
  ensure(begin <= end && end <= file.size(), "read_payload: payload of another file");
  std::vector<std::byte> out;
  if (!payload.records) {
    append_list(file, begin, end, payload.field, element_bytes, out);
    return out;
  }
  FieldReader reader(file, begin, end, field_name(payload.field));
  while (!reader.done()) {
    const Field field = reader.next();
    if (field.type == WireType::Varint)
      append_element(out, field.varint, element_bytes);
    else
      append_list(file, field.content, field.end, payload.field, element_bytes, out);
  }
  return out;
}

}  // namespace windlass

// Fields of protobuf messages on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "windlass/model/onnx/wire.h"

namespace windlass {

enum class WireType : uint8_t { Varint = 0, Fixed64 = 1, Delimited = 2, Fixed32 = 5 };

// Name of the field in onnx.proto.
std::string_view field_name(PayloadField field);

size_t varint_width(uint64_t value);

// Appends `value`, padded with empty groups of seven bits to `width` bytes.
void append_varint(std::string& out, uint64_t value, size_t width);
void append_varint(std::string& out, uint64_t value);

// A field with a length: tag, length, content.
void append_bytes(std::string& out, uint32_t field, std::string_view content);

// One field of a message. Offsets are positions in the file.
struct Field {
  uint32_t number = 0;
  WireType type = WireType::Varint;
  size_t begin = 0;      // of the tag
  size_t length_at = 0;  // Delimited: of the length
  size_t content = 0;    // of the value
  size_t end = 0;
  uint64_t varint = 0;  // Varint: the value

  size_t size() const { return end - content; }
};

// Walks the fields of the message in [position, end) of the file. `message` names it in errors.
// Next and read_varint throw Error{Input} beginning with the byte position on damage.
class FieldReader {
 public:
  FieldReader(std::span<const std::byte> file, size_t begin, size_t end, std::string_view message)
      : file_(file), position_(begin), end_(end), message_(message) {}

  bool done() const { return position_ == end_; }
  Field next();
  uint64_t read_varint();

 private:
  std::span<const std::byte> file_;
  size_t position_;
  size_t end_;
  std::string_view message_;
};

}  // namespace windlass

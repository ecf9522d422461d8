// Reading an ONNX file without reading its weights.
//
// An ONNX file is one serialized protobuf message, of which all but a few per cent are the values
// of tensors. `read_skeleton` walks the wire format, steps over those values without touching them,
// and returns the same message with every large value cut out, and a table of where each lies. The
// skeleton is small enough to be parsed by protobuf whatever the size of the file, beyond
// protobuf's own limit of 2 GiB too.
//
// A tensor whose value was cut out is rewritten as ONNX's external data, pointing into the file
// itself:
//
//   data_location = EXTERNAL
//   external_data = {location: <options.location>, offset: <payload.offset>,
//                    length: <payload.length>, windlass_payload: <index into the table>}
//
// (replacing what it said of its location before) so that ONNX's checker accepts it. The last key
// tells it from a tensor that was external already; a file that uses the key itself is refused.
// Everything else is copied byte for byte, unknown fields included, and a file with no large value
// is its own skeleton. Lengths of enclosing messages keep the width they had, so that cutting is a
// matter of copying the pieces between the cuts: time is linear in the number of fields plus the
// size of the skeleton.
//
// Tensors are found wherever ONNX has them: initializers, sparse initializers, attributes,
// subgraphs, functions and training information. Only the indices of sparse tensors stay: the
// checker reads them.
//
// The input is not trusted. Truncated or overlong varints, lengths that leave their message,
// groups, nesting deeper than 64 messages and contradictory tensors throw Error{Input} beginning
// with the byte position. What is well-formed on the wire but wrong as ONNX is left to protobuf and
// the checker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace windlass {

// Key of the external_data entry that holds the index into Skeleton::payloads.
inline constexpr std::string_view kPayloadKey = "windlass_payload";

// Field of TensorProto that held the value; the numbers are those of onnx.proto.
enum class PayloadField : uint8_t {
  Float = 4,
  Int32 = 5,
  String = 6,
  Int64 = 7,
  Raw = 9,
  Double = 10,
  Uint64 = 11,
};

// A tensor's value that was left in the file. `offset` and `length` are the bytes of raw_data or of
// a packed list; if `records`, of a run of whole fields, each with its tag (strings, and lists that
// are not packed or come in several parts).
struct Payload {
  std::string tensor;  // TensorProto.name; attributes often have none
  int64_t offset = 0;
  int64_t length = 0;
  PayloadField field = PayloadField::Raw;
  bool records = false;
  bool operator==(const Payload&) const = default;
};

struct Skeleton {
  std::string model;              // serialized ModelProto
  std::vector<Payload> payloads;  // ascending in offset, disjoint
};

struct SkeletonOptions {
  int64_t threshold = 4096;  // cut out values of more bytes than this
  std::string location;      // the file's own name, as external data would spell it
};

// The skeleton of a serialized ModelProto. `file` may be a memory-mapped file: only pages with
// something other than payloads are touched.
Skeleton read_skeleton(std::span<const std::byte> file, const SkeletonOptions& options = {});

// The value of a payload as raw_data would hold it: fixed-width little-endian elements of
// `element_bytes` (1, 2, 4 or 8) each. Integer lists are narrowed as ONNX prescribes (int32_data
// carries bool, 8- and 16-bit integers and 16-bit floats). `file` is the span the skeleton was read
// from. Throws Error{Input} on damaged lists and Error{Unsupported} on strings.
std::vector<std::byte> read_payload(std::span<const std::byte> file, const Payload& payload,
                                    int64_t element_bytes);

}  // namespace windlass

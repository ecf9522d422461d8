// An ONNX file as plain data: what the importer works on. Protobuf and ONNX's own headers stay
// behind onnx_file.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "windlass/graph/attributes.h"
#include "windlass/graph/shape.h"
#include "windlass/model/model.h"
#include "windlass/model/onnx/wire.h"

namespace windlass {

// Where the value of a tensor is. Exactly one of the three.
struct OnnxTensor {
  std::string name;
  TensorType type;
  int onnx_type = 0;                       // TensorProto::DataType, as stored
  std::vector<std::byte> bytes;            // small values: little-endian elements
  std::optional<size_t> payload;           // large values in the file: index into the table
  std::optional<WeightLocation> external;  // values in another file
};

struct OnnxGraph;

struct OnnxAttribute {
  int64_t i = 0;
  double f = 0;
  std::string s;
  Ints ints;
  std::vector<double> floats;
  std::vector<std::string> strings;
  std::optional<OnnxTensor> tensor;
  std::shared_ptr<OnnxGraph> graph;
  std::string reference;  // inside a function: name of the caller's attribute
};

struct OnnxNode {
  std::string name, op_type, domain;
  std::vector<std::string> inputs, outputs;  // "" is an absent optional one
  std::map<std::string, OnnxAttribute> attributes;
};

struct OnnxDimension {
  std::optional<int64_t> size;
  std::string symbol;  // "" if neither size nor name is known
};

struct OnnxValue {
  std::string name;
  DType dtype = DType::None;  // None: not a tensor, or a type windlass does not know
  bool has_shape = false;
  std::vector<OnnxDimension> dimensions;
};

struct OnnxGraph {
  std::string name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValue> inputs, outputs, values;
};

struct OnnxFunction {
  std::string name, domain;
  std::vector<std::string> inputs, outputs;
  std::vector<OnnxNode> nodes;
};

struct OnnxFile {
  std::string path;    // "" if the bytes did not come from a file
  std::string folder;  // external data is looked for here
  std::string producer;
  int64_t ir_version = 0;
  int64_t opset = 0;  // of ONNX's own domain
  OnnxGraph graph;
  std::vector<OnnxFunction> functions;
  std::vector<Payload> payloads;
  std::span<const std::byte> data;  // the file; the owner outlives this
  std::string unchecked;            // why ONNX's checker was not run; "" if it was
};

// Parses and checks. Throws Error{Input}.
OnnxFile parse_onnx(std::span<const std::byte> data, std::string path, std::string folder);

// Elements of a tensor. Integers beyond 2^53 lose their last digits. Throws Error{Input} if the
// data is missing, short or out of bounds, and Error{Unsupported} for types without numbers.
std::vector<double> read_values(const OnnxFile& file, const OnnxTensor& tensor);

// Some elements of a tensor, by flat index, without reading the rest; nothing if its storage does
// not allow that.
std::optional<std::vector<double>> sample_values(const OnnxFile& file, const OnnxTensor& tensor,
                                                 std::span<const int64_t> indices);

// Where the bytes of a tensor lie. Checks that they are there and as many as the type needs.
WeightLocation locate(const OnnxFile& file, const OnnxTensor& tensor);

}  // namespace windlass

// Writing ONNX files for tests, without protobuf. Every function returns one field of the message
// it belongs to, so that messages are made by concatenation; field numbers are those of onnx.proto.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <vector>

namespace windlass::proto {

enum ElementType : int { kFloat = 1, kInt64 = 7, kBool = 9 };

inline std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(0x80 | (value & 0x7f)));
  out.push_back(static_cast<char>(value));
  return out;
}
inline std::string number(uint32_t field, int64_t value) {
  return varint(field << 3) + varint(static_cast<uint64_t>(value));
}
inline std::string bytes(uint32_t field, const std::string& content) {
  return varint(field << 3 | 2) + varint(content.size()) + content;
}
inline std::string texts(uint32_t field, const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& text : list) out += bytes(field, text);
  return out;
}

template <typename T>
std::string raw(const std::vector<T>& values) {
  std::string out(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// --- tensors and values

// Content of a TensorProto without its value.
inline std::string tensor_head(const std::string& name, const std::vector<int64_t>& dims,
                               ElementType type = kFloat) {
  std::string out;
  for (int64_t size : dims) out += number(1, size);
  return out + number(2, type) + bytes(8, name);
}
inline std::string tensor(const std::string& name, const std::vector<int64_t>& dims,
                          const std::vector<float>& values) {
  return tensor_head(name, dims) + bytes(9, raw(values));
}
inline std::string int_tensor(const std::string& name, const std::vector<int64_t>& dims,
                              const std::vector<int64_t>& values) {
  return tensor_head(name, dims, kInt64) + bytes(9, raw(values));
}
// Content of a TensorProto whose value is in another file; entries are keys and values.
inline std::string external_tensor(
    const std::string& name, const std::vector<int64_t>& dims,
    const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = tensor_head(name, dims) + number(14, 1);
  for (const auto& [key, value] : entries) out += bytes(13, bytes(1, key) + bytes(2, value));
  return out;
}

inline std::string initializer(const std::string& content) { return bytes(5, content); }
inline std::string initializer(const std::string& name, const std::vector<int64_t>& dims,
                               const std::vector<float>& values) {
  return initializer(tensor(name, dims, values));
}
// One with the values 1, 2, 3, ...
inline std::string counting(const std::string& name, const std::vector<int64_t>& dims) {
  size_t count = 1;
  for (int64_t size : dims) count *= static_cast<size_t>(size);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i + 1);
  return initializer(name, dims, values);
}

// A size, or the name of an open dimension.
struct Dim {
  Dim(int64_t s) : size(s) {}        // NOLINT: so that lists of both can be written plainly
  Dim(int s) : size(s) {}            // NOLINT
  Dim(const char* s) : symbol(s) {}  // NOLINT
  int64_t size = -1;
  std::string symbol;
};
inline std::string value_info(const std::string& name, const std::vector<Dim>& dims,
                              ElementType type) {
  std::string shape;
  for (const Dim& dim : dims)
    shape += bytes(1, dim.size >= 0 ? number(1, dim.size) : bytes(2, dim.symbol));
  return bytes(1, name) + bytes(2, bytes(1, number(1, type) + bytes(2, shape)));
}
inline std::string input(const std::string& name, const std::vector<Dim>& dims,
                         ElementType type = kFloat) {
  return bytes(11, value_info(name, dims, type));
}
inline std::string output(const std::string& name, const std::vector<Dim>& dims,
                          ElementType type = kFloat) {
  return bytes(12, value_info(name, dims, type));
}

// --- nodes

inline std::string attribute(const std::string& name, int64_t value) {
  return bytes(5, bytes(1, name) + number(3, value) + number(20, 2));
}
inline std::string float_attribute(const std::string& name, float value) {
  return bytes(5, bytes(1, name) + varint(2 << 3 | 5) + raw(std::vector{value}) + number(20, 1));
}
inline std::string text_attribute(const std::string& name, const std::string& value) {
  return bytes(5, bytes(1, name) + bytes(4, value) + number(20, 3));
}
inline std::string ints_attribute(const std::string& name, const std::vector<int64_t>& values) {
  std::string list;
  for (int64_t value : values) list += number(8, value);
  return bytes(5, bytes(1, name) + list + number(20, 7));
}
inline std::string tensor_attribute(const std::string& name, const std::string& content) {
  return bytes(5, bytes(1, name) + bytes(5, content) + number(20, 4));
}
inline std::string graph_attribute(const std::string& name, const std::string& content) {
  return bytes(5, bytes(1, name) + bytes(6, bytes(2, name) + content) + number(20, 5));
}
// Inside a function: the value of the call's attribute `reference`, which is a float.
inline std::string attribute_reference(const std::string& name, const std::string& reference) {
  return bytes(5, bytes(1, name) + bytes(21, reference) + number(20, 1));
}

struct NodeOptions {
  std::string attributes = {};
  std::string name = {};
  std::string domain = {};
};
inline std::string node_content(const std::string& op, const std::vector<std::string>& inputs,
                                const std::vector<std::string>& outputs,
                                const NodeOptions& options = {}) {
  return texts(1, inputs) + texts(2, outputs) + bytes(3, options.name) + bytes(4, op) +
         options.attributes + bytes(7, options.domain);
}
inline std::string node(const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const NodeOptions& options = {}) {
  return bytes(1, node_content(op, inputs, outputs, options));
}
inline std::string constant(const std::string& name, const std::string& tensor_content) {
  return node("Constant", {}, {name}, {.attributes = tensor_attribute("value", tensor_content)});
}

// --- models

struct FunctionSpec {
  std::string name;
  std::vector<std::string> inputs, outputs, attributes;
  std::vector<std::string> nodes;  // by node_content
};

struct ModelSpec {
  int64_t opset = 13;
  int64_t ir_version = 8;
  std::string producer = {};
  std::vector<std::string> domains = {};     // beside ONNX's own
  std::vector<FunctionSpec> functions = {};  // in the domain "local"
};

inline std::string opset_import(uint32_t field, const std::string& domain, int64_t version) {
  return bytes(field, bytes(1, domain) + number(2, version));
}
inline std::string model(const std::string& graph, const ModelSpec& spec = {}) {
  std::string out =
      number(1, spec.ir_version) + bytes(2, spec.producer) + opset_import(8, "", spec.opset);
  for (const std::string& domain : spec.domains) out += opset_import(8, domain, 1);
  if (!spec.functions.empty()) out += opset_import(8, "local", 1);
  for (const FunctionSpec& f : spec.functions)
    out +=
        bytes(25, bytes(1, f.name) + texts(4, f.inputs) + texts(5, f.outputs) +
                      texts(6, f.attributes) + texts(7, f.nodes) + opset_import(9, "", spec.opset) +
                      opset_import(9, "local", 1) + bytes(10, "local"));
  return out + bytes(7, bytes(2, "test") + graph);
}

}  // namespace windlass::proto

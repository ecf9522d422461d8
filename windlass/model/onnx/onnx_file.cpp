#include "windlass/model/onnx/onnx_file.h"

#include <bit>
#include <charconv>
#include <filesystem>

#include <onnx/checker.h>
#include <onnx/defs/schema.h>
#include <onnx/onnx_pb.h>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/onnx_types.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using onnx::TensorProto;

static_assert(static_cast<int>(OnnxType::Float) == TensorProto::FLOAT &&
              static_cast<int>(OnnxType::UInt16) == TensorProto::UINT16 &&
              static_cast<int>(OnnxType::Int64) == TensorProto::INT64 &&
              static_cast<int>(OnnxType::Bool) == TensorProto::BOOL &&
              static_cast<int>(OnnxType::UInt64) == TensorProto::UINT64 &&
              static_cast<int>(OnnxType::BFloat16) == TensorProto::BFLOAT16);

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof(T));
}

// Typed lists as raw_data would hold them.
std::vector<std::byte> inline_bytes(const TensorProto& proto) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<std::byte> bytes;
  if (proto.has_raw_data()) {
    const auto* begin = reinterpret_cast<const std::byte*>(proto.raw_data().data());
    bytes.assign(begin, begin + proto.raw_data().size());
    return bytes;
  }
  for (float v : proto.float_data()) append(bytes, v);
  for (double v : proto.double_data()) append(bytes, v);
  for (int64_t v : proto.int64_data()) append(bytes, v);
  for (uint64_t v : proto.uint64_data()) {
    if (proto.data_type() == TensorProto::UINT32)
      append(bytes, static_cast<uint32_t>(v));
    else
      append(bytes, v);
  }
  for (int32_t v : proto.int32_data()) {
    switch (stored_bytes(proto.data_type())) {
      case 1: append(bytes, static_cast<uint8_t>(v)); break;
      case 2: append(bytes, static_cast<uint16_t>(v)); break;
      default: append(bytes, v); break;
    }
  }
  return bytes;
}

int64_t parse_number(const std::string& text, const std::string& tensor, std::string_view key) {
  int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0)
    fail_input("tensor \"{}\": external data has {} \"{}\", expected a number", tensor, key, text);
  return value;
}

class Converter {
 public:
  explicit Converter(OnnxFile& file) : file_(file) {}

  OnnxTensor tensor(const TensorProto& proto) {
    OnnxTensor result;
    result.name = proto.name();
    result.onnx_type = proto.data_type();
    result.type.dtype = dtype_of_onnx(proto.data_type());
    for (int64_t size : proto.dims()) {
      if (size < 0) fail_input("tensor \"{}\" has a negative dimension: {}", proto.name(), size);
      result.type.shape.push_back(size);
    }
    element_count(result.type.shape);
    if (proto.data_location() == TensorProto::EXTERNAL)
      read_location(proto, result);
    else
      result.bytes = inline_bytes(proto);
    return result;
  }

  OnnxGraph graph(const onnx::GraphProto& proto) {
    OnnxGraph result;
    result.name = proto.name();
    for (const auto& node : proto.node()) result.nodes.push_back(this->node(node));
    for (const auto& initializer : proto.initializer())
      result.initializers.push_back(tensor(initializer));
    if (proto.sparse_initializer_size() > 0)
      fail_unsupported("sparse initializers are not supported; export dense weights");
    for (const auto& value : proto.input()) result.inputs.push_back(this->value(value));
    for (const auto& value : proto.output()) result.outputs.push_back(this->value(value));
    for (const auto& value : proto.value_info()) result.values.push_back(this->value(value));
    return result;
  }

  OnnxFunction function(const onnx::FunctionProto& proto) {
    OnnxFunction result;
    result.name = proto.name();
    result.domain = proto.domain();
    result.inputs.assign(proto.input().begin(), proto.input().end());
    result.outputs.assign(proto.output().begin(), proto.output().end());
    for (const auto& node : proto.node()) result.nodes.push_back(this->node(node));
    return result;
  }

 private:
  OnnxNode node(const onnx::NodeProto& proto) {
    OnnxNode result;
    result.name = proto.name();
    result.op_type = proto.op_type();
    result.domain = proto.domain() == "ai.onnx" ? "" : proto.domain();
    result.inputs.assign(proto.input().begin(), proto.input().end());
    result.outputs.assign(proto.output().begin(), proto.output().end());
    for (const auto& attribute : proto.attribute())
      result.attributes.emplace(attribute.name(), this->attribute(attribute));
    return result;
  }

  OnnxAttribute attribute(const onnx::AttributeProto& proto) {
    OnnxAttribute result;
    result.i = proto.i();
    result.f = static_cast<double>(proto.f());
    result.s = proto.s();
    result.ints.assign(proto.ints().begin(), proto.ints().end());
    result.floats.assign(proto.floats().begin(), proto.floats().end());
    result.strings.assign(proto.strings().begin(), proto.strings().end());
    result.reference = proto.ref_attr_name();
    if (proto.has_t()) result.tensor = tensor(proto.t());
    if (proto.has_g()) result.graph = std::make_shared<OnnxGraph>(graph(proto.g()));
    return result;
  }

  OnnxValue value(const onnx::ValueInfoProto& proto) {
    OnnxValue result;
    result.name = proto.name();
    if (!proto.type().has_tensor_type()) return result;
    const auto& type = proto.type().tensor_type();
    result.dtype = dtype_of_onnx(type.elem_type());
    result.has_shape = type.has_shape();
    for (const auto& dim : type.shape().dim()) {
      OnnxDimension dimension;
      // Some exporters write -1 or 0 for "unknown".
      if (dim.has_dim_value() && dim.dim_value() < -1)
        fail_input("value \"{}\" has a negative dimension: {}", proto.name(), dim.dim_value());
      if (dim.has_dim_value() && dim.dim_value() >= 0) dimension.size = dim.dim_value();
      if (dim.has_dim_param()) dimension.symbol = dim.dim_param();
      result.dimensions.push_back(dimension);
    }
    return result;
  }

  void read_location(const TensorProto& proto, OnnxTensor& result) {
    WeightLocation location;
    location.bytes = checked_mul(element_count(result.type.shape), stored_bytes(proto.data_type()));
    location.dtype = result.type.dtype;
    for (const auto& entry : proto.external_data()) {
      if (entry.key() == kPayloadKey) {
        result.payload = static_cast<size_t>(parse_number(entry.value(), proto.name(), "index"));
        ensure(*result.payload < file_.payloads.size(), "payload index out of range");
        return;
      }
      if (entry.key() == "location") location.file = entry.value();
      if (entry.key() == "offset")
        location.offset = parse_number(entry.value(), proto.name(), "offset");
      if (entry.key() == "length") {
        const int64_t length = parse_number(entry.value(), proto.name(), "length");
        if (length < location.bytes)
          fail_input("tensor \"{}\": external data has {} bytes, {} needs {}", proto.name(), length,
                     format_type(result.type), location.bytes);
      }
    }
    if (location.file.empty())
      fail_input("tensor \"{}\": external data names no file", proto.name());
    result.external = location;
  }

  OnnxFile& file_;
};

// The checker wants to see values and to find external files; it gets one byte in place of each.
void stub_values(TensorProto& tensor) {
  if (tensor.data_location() != TensorProto::EXTERNAL) return;
  tensor.clear_data_location();
  tensor.clear_external_data();
  if (tensor.data_type() == TensorProto::STRING)
    tensor.add_string_data("");
  else
    tensor.set_raw_data("0");
}
void stub_values(onnx::GraphProto& graph);
void stub_values(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  for (auto& node : nodes) {
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) stub_values(*attribute.mutable_t());
      if (attribute.has_g()) stub_values(*attribute.mutable_g());
      for (auto& tensor : *attribute.mutable_tensors()) stub_values(tensor);
      for (auto& graph : *attribute.mutable_graphs()) stub_values(graph);
    }
  }
}
void stub_values(onnx::GraphProto& graph) {
  for (auto& initializer : *graph.mutable_initializer()) stub_values(initializer);
  stub_values(*graph.mutable_node());
}

// Why the installed checker cannot judge the file, or "".
std::string reason_not_to_check(const onnx::ModelProto& model) {
  if (model.ir_version() > onnx::Version::IR_VERSION)
    return fmt::format("the file has IR version {}, the installed ONNX library knows {}",
                       model.ir_version(), static_cast<int>(onnx::Version::IR_VERSION));
  const auto& known = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  for (const auto& opset : model.opset_import()) {
    const std::string domain = opset.domain() == "ai.onnx" ? "" : opset.domain();
    const auto range = known.find(domain);
    if (range != known.end() && opset.version() > range->second.second)
      return fmt::format("the file uses opset {}{}{}, the installed ONNX library knows {}",
                         opset.version(), domain.empty() ? "" : " of ", domain,
                         range->second.second);
  }
  return "";
}

void run_checker(onnx::ModelProto& model) {
  stub_values(*model.mutable_graph());
  for (auto& function : *model.mutable_functions()) stub_values(*function.mutable_node());
  try {
    onnx::checker::check_model(model);
  } catch (const std::exception& error) {
    std::string message = error.what();
    // The checker appends context on further lines; the first holds the finding.
    message = message.substr(0, message.find('\n'));
    fail_input("not a valid ONNX model: {}", message);
  }
}

}  // namespace

OnnxFile parse_onnx(std::span<const std::byte> data, std::string path, std::string folder) {
  OnnxFile file;
  file.path = std::move(path);
  file.folder = std::move(folder);
  file.data = data;
  if (data.empty()) fail_input("the file is empty");
  Skeleton skeleton = read_skeleton(data, {.location = fs::path(file.path).filename().string()});
  file.payloads = std::move(skeleton.payloads);

  onnx::ModelProto model;
  if (skeleton.model.size() > INT32_MAX || !model.ParseFromString(skeleton.model))
    fail_input("not an ONNX file, or damaged: it does not parse");
  if (!model.has_graph() || model.opset_import_size() == 0)
    fail_input("not an ONNX model: it has no graph or no opset");

  for (const auto& opset : model.opset_import())
    if (opset.domain().empty() || opset.domain() == "ai.onnx") file.opset = opset.version();
  file.ir_version = model.ir_version();
  file.producer = model.producer_name();
  Converter converter(file);
  file.graph = converter.graph(model.graph());
  for (const auto& function : model.functions())
    file.functions.push_back(converter.function(function));
  file.unchecked = reason_not_to_check(model);
  if (file.unchecked.empty()) run_checker(model);
  return file;
}

}  // namespace windlass

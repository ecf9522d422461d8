// Runs the forward pass of an ONNX file with the slow reference interpreter.
//
//   windlass_run_reference [--no-fuse] [--as-exported] [--no-loss] [NAME=N...] MODEL.onnx FOLDER
//
// Input i of the model is read from FOLDER/input.i as little-endian elements of its type; output i
// is written to FOLDER/output.i as doubles. NAME=N binds a symbolic dimension. What needs labels is
// left out. Prints the number of parameters, the ops as KIND=COUNT, and the shape of each output, a
// line each.

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>

#include "windlass/base/error.h"
#include "windlass/graph/reference/interpret.h"
#include "windlass/model/convert.h"
#include "windlass/model/onnx/onnx_import.h"
#include "windlass/model/weights.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> read_bytes(const std::string& path, int64_t offset, int64_t count) {
  std::ifstream stream(path, std::ios::binary);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  stream.seekg(offset);
  stream.read(reinterpret_cast<char*>(bytes.data()), count);
  if (!stream) fail_input("{}: cannot read {} bytes at {}", path, count, offset);
  return bytes;
}

template <typename T>
std::vector<double> convert(const std::vector<std::byte>& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(T));
  std::vector<double> values;
  for (T element : elements) values.push_back(static_cast<double>(element));
  return values;
}

std::vector<double> decode(const std::vector<std::byte>& bytes, DType dtype) {
  static_assert(std::endian::native == std::endian::little);
  switch (dtype) {
    case DType::F32: return convert<float>(bytes);
    case DType::F64: return convert<double>(bytes);
    case DType::I64: return convert<int64_t>(bytes);
    case DType::I32: return convert<int32_t>(bytes);
    case DType::I16: return convert<int16_t>(bytes);
    case DType::I8: return convert<int8_t>(bytes);
    case DType::U8: return convert<uint8_t>(bytes);
    case DType::F16:
    case DType::BF16: {
      std::vector<std::byte> wide(bytes.size() * (sizeof(double) / 2));
      convert_values(bytes, dtype, wide, DType::F64);
      return convert<double>(wide);
    }
    case DType::Bool: return convert<uint8_t>(bytes);
    default: fail_unsupported("values of type {}", dtype_name(dtype));
  }
}

std::vector<double> weight_values(const WeightLocation& location) {
  const DType as = is_float(location.dtype) ? DType::F64 : location.dtype;
  std::vector<std::byte> bytes(static_cast<size_t>(stored_elements(location) * element_bytes(as)));
  read_weight(location, as, bytes);
  return decode(bytes, as);
}

using Values = std::vector<std::optional<Array>>;

// What is known before the first op: inputs, weights, buffers and constants.
Values load_values(const Model& model, const fs::path& folder) {
  const Graph& graph = model.graph;
  Values values(graph.tensors.size());
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const TensorType& type = graph[graph.inputs[i]].type;
    const std::string path = (folder / ("input." + std::to_string(i))).string();
    const std::vector<std::byte> bytes = read_bytes(path, 0, byte_size(type).value);
    values[graph.inputs[i].index()] = Array(type.shape, decode(bytes, type.dtype));
  }
  for (const auto& [id, location] : model.weights)
    values[id.index()] = Array(graph[id].type.shape, weight_values(location));
  for (size_t t = 0; t < values.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    const bool stored = tensor.role == TensorRole::Weight || tensor.role == TensorRole::Buffer;
    ensure(!stored || values[t].has_value(), "no location of " + tensor.name);
    if (tensor.constant < 0) continue;
    const ConstantValue& constant = graph.constants[static_cast<size_t>(tensor.constant)];
    values[t] = Array(tensor.type.shape, constant.values);
  }
  return values;
}

void run_forward(const Graph& graph, Values& values) {
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    std::vector<const Array*> inputs;
    bool known = true;
    for (TensorId id : op.inputs) {
      const bool present = id.valid() && values[id.index()];
      known = known && (present || !id.valid());
      inputs.push_back(present ? &*values[id.index()] : nullptr);
    }
    if (!known) continue;
    ForwardResult result = interpret_forward(signature_of(graph, op), inputs, {.seed = 1, .op = i});
    for (size_t k = 0; k < op.outputs.size(); ++k)
      values[op.outputs[k].index()] = std::move(result.outputs[k]);
  }
}

void print_summary(const Graph& graph) {
  std::map<std::string_view, int> kinds;
  for (const Op& op : graph.ops) ++kinds[op_info(op.kind).name];
  std::cout << parameter_count(graph) << '\n';
  for (const auto& [kind, count] : kinds) std::cout << kind << '=' << count << ' ';
  std::cout << '\n';
}

void write_outputs(const Graph& graph, const Values& values, const fs::path& folder) {
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const std::optional<Array>& output = values[graph.outputs[i].index()];
    if (!output) fail_input("output {} needs labels", i);
    std::ofstream stream(folder / ("output." + std::to_string(i)), std::ios::binary);
    stream.write(reinterpret_cast<const char*>(output->values.data()),
                 static_cast<std::streamsize>(output->values.size() * sizeof(double)));
    for (int64_t size : output->shape) std::cout << size << ' ';
    std::cout << '\n';
  }
}

void run(std::vector<std::string> arguments) {
  ModelOptions options;
  options.fuse = std::erase(arguments, "--no-fuse") == 0;
  options.as_exported = std::erase(arguments, "--as-exported") != 0;
  options.without_loss = std::erase(arguments, "--no-loss") != 0;
  std::erase_if(arguments, [&](const std::string& argument) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) return false;
    options.dimensions[argument.substr(0, equals)] = std::stoll(argument.substr(equals + 1));
    return true;
  });
  if (arguments.size() != 2) fail_input("expected MODEL.onnx FOLDER");
  const Model model = load_onnx(arguments[0], options);
  Values values = load_values(model, arguments[1]);
  run_forward(model.graph, values);
  print_summary(model.graph);
  write_outputs(model.graph, values, arguments[1]);
}

}  // namespace
}  // namespace windlass

int main(int count, char** arguments) {
  try {
    windlass::run({arguments + 1, arguments + count});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}

#include "windlass/model/onnx/onnx_import.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <unordered_map>

#include "windlass/base/error.h"
#include "windlass/base/mapped_file.h"
#include "windlass/graph/fuse.h"
#include "windlass/graph/simplify.h"
#include "windlass/model/onnx/importer.h"
#include "windlass/model/onnx/onnx_types.h"
#include "windlass/model/onnx/parameters.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// Whether a tensor is a loss that the model computes itself: a single number.
bool is_loss(const TensorType& type) { return is_float(type.dtype) && type.shape.empty(); }

bool is_sigmoid(const Op& op) {
  const auto* unary = std::get_if<UnaryAttrs>(&op.attrs);
  return op.kind == OpKind::Unary && unary && unary->fn == UnaryFn::Sigmoid;
}

std::string describe(const FusionReport& report) {
  std::string text;
  const auto add = [&](int count, std::string_view what) {
    if (count > 0)
      text +=
          fmt::format("{}{} {}{}", text.empty() ? "" : ", ", count, what, count == 1 ? "" : "s");
  };
  add(report.attentions, "attention");
  add(report.layer_norms, "layer norm");
  add(report.rms_norms, "RMS norm");
  add(report.activations, "activation");
  add(report.linears, "linear layer");
  return text;
}

// What is added in a + (b - a), in either order: b by a detour. Nobody writes that but for its
// gradient, as PyTorch's straight-through estimator a + (b - a).detach().
std::optional<TensorId> added_in_detour(const Graph& graph, const Op& op) {
  const auto is = [](const Op& binary, BinaryFn fn) {
    return binary.kind == OpKind::Binary && std::get<BinaryAttrs>(binary.attrs).fn == fn;
  };
  if (!is(op, BinaryFn::Add) || !is_float(graph[op.outputs[0]].type.dtype)) return std::nullopt;
  for (size_t i = 0; i < 2; ++i) {
    const OpId producer = graph[op.inputs[i]].producer;
    const TensorId other = op.inputs[1 - i];
    if (producer.valid() && is(graph[producer], BinaryFn::Sub) &&
        graph[producer].inputs[1] == other)
      return other;
  }
  return std::nullopt;
}

// Exporters leave detach() out. Of most of its uses the file has no trace.
void note_detours(Model& model) {
  std::string first;
  int more = -1;
  for (const Op& op : model.graph.ops)
    if (const auto added = added_in_detour(model.graph, op); added && ++more == 0)
      first = fmt::format("\"{}\" is a + (b - a) with \"{}\" as a", model.graph[op.outputs[0]].name,
                          model.graph[*added].name);
  if (more < 0) return;
  model.notes.push_back(fmt::format(
      "{}{}, as straight-through estimators have it: PyTorch's detach() is not in ONNX files, so "
      "that gradients go to b here, where PyTorch lets them pass to a",
      first, more > 0 ? fmt::format(", and so are {} others", more) : ""));
}

WeightLocation in_memory(const std::vector<double>& values) {
  WeightLocation location{
      "", 0, static_cast<int64_t>(values.size() * sizeof(float)), DType::F32, {}};
  location.value.resize(values.size() * sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    std::memcpy(location.value.data() + i * sizeof(float), &value, sizeof(float));
  }
  return location;
}

// Where a stored tensor lies, as elements of its type in the graph: unsigned integers of 16 and 32
// bits are stored narrower than the signed ones that stand for them.
WeightLocation location_of(const OnnxFile& file, const OnnxTensor& tensor) {
  const DType dtype = tensor.type.dtype;
  if (stored_bytes(tensor.onnx_type) == element_bytes(dtype)) return locate(file, tensor);
  WeightLocation location{"", 0, byte_size(tensor.type).value, dtype, {}};
  const auto width = static_cast<size_t>(element_bytes(dtype));
  for (double value : read_values(file, tensor)) {
    const auto whole = static_cast<int64_t>(value);  // little-endian: the low bytes come first
    const auto* bytes = reinterpret_cast<const std::byte*>(&whole);
    location.value.insert(location.value.end(), bytes, bytes + width);
  }
  return location;
}

Model import_file(const OnnxFile& file, const ModelOptions& options) {
  Model model;
  model.source = "onnx";
  OnnxImporter importer(file, options);
  model.graph = importer.run();
  model.notes = importer.notes();
  if (!file.unchecked.empty())
    model.notes.insert(model.notes.begin(),
                       fmt::format("ONNX's checker was skipped: {}", file.unchecked));
  note_detours(model);
  simplify(model.graph);
  if (options.fuse) {
    const std::string fused = describe(fuse(model.graph));
    if (!fused.empty()) model.notes.push_back(fmt::format("recognised and fused: {}", fused));
  }
  check_graph(model.graph);

  std::unordered_map<std::string, const OnnxTensor*> initializers;
  for (const OnnxTensor& tensor : file.graph.initializers)
    initializers.emplace(tensor.name, &tensor);
  for (size_t t = 0; t < model.graph.tensors.size(); ++t) {
    const Tensor& tensor = model.graph.tensors[t];
    if (tensor.role != TensorRole::Weight && tensor.role != TensorRole::Buffer) continue;
    const auto stored = initializers.find(tensor.name);
    const auto copied = importer.copies().find(tensor.name);
    const auto restored = importer.restored_values().find(tensor.name);
    if (restored != importer.restored_values().end())
      model.weights.emplace(TensorId(t), in_memory(restored->second));
    else if (copied != importer.copies().end())
      model.weights.emplace(TensorId(t), location_of(file, *copied->second));
    else if (stored != initializers.end())
      model.weights.emplace(TensorId(t), location_of(file, *stored->second));
  }
  return model;
}

}  // namespace

// Whether an output of one element, [1] or [1, 1], cannot be a prediction: inputs have more
// samples.
bool OnnxImporter::is_one_number(TensorId output) const {
  const Graph& graph = builder_.graph();
  const TensorType& type = graph[output].type;
  if (options_.loss || !is_float(type.dtype) || type.shape.empty() ||
      element_count(type.shape) != 1 || !graph[output].producer.valid())
    return false;
  return std::ranges::all_of(graph.inputs, [&](TensorId id) {
    const Shape& shape = graph[id].type.shape;
    return shape.empty() || shape[0] > 1;
  });
}

// Of several numbers the first that can be trained: an accuracy beside the loss cannot.
bool OnnxImporter::choose_own_loss(const std::vector<TensorId>& outputs) {
  std::vector<TensorId> numbers;
  std::vector<std::string> trained;  // names
  TensorId loss;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const TensorId id = outputs[i];
    if ((!is_loss(builder_.type(id)) && !is_one_number(id)) ||
        std::ranges::find(numbers, id) != numbers.end())
      continue;
    numbers.push_back(id);
    if (!gradient_reaches_weight(builder_.graph(), id)) continue;
    if (trained.empty()) loss = id;
    trained.push_back(file_.graph.outputs[i].name);
  }
  if (numbers.empty()) return false;
  if (trained.empty()) loss = numbers[0];
  if (options_.loss) note_once("the model has a loss of its own; --loss is not used");
  for (size_t i = 1; i < trained.size(); ++i)
    note_once(
        fmt::format("the loss is output \"{}\"; \"{}\" is a single number as well and not trained "
                    "on: if both count, let the module return their sum",
                    trained[0], trained[i]));
  if (!is_loss(builder_.type(loss))) {
    if (!trained.empty())
      note_once(
          fmt::format("output \"{}\" is one number for all samples: it is the loss", trained[0]));
    loss = builder_.op(OpKind::Reshape, ShapeAttrs{{}}, {loss}, "loss");
  }
  builder_.set_loss(loss);
  return true;
}

void OnnxImporter::attach_outputs_and_loss() {
  std::vector<TensorId> outputs;
  for (const OnnxValue& output : file_.graph.outputs) {
    const TensorId id = lookup(output.name);
    outputs.push_back(id);
    builder_.set_output(id);
  }
  if (options_.without_loss) return;
  if (choose_own_loss(outputs)) return;
  const auto first = std::find_if(outputs.begin(), outputs.end(), [&](TensorId id) {
    return is_float(builder_.type(id).dtype) && builder_.graph()[id].producer.valid();
  });
  if (first == outputs.end())
    fail_input("no output is a floating-point tensor that the model computes: nothing to train");

  const size_t rank = builder_.shape(*first).size();
  LossSpec spec =
      options_.loss.value_or(rank >= 2 ? LossKind::CrossEntropy : LossKind::MeanSquaredError);
  if (spec.kind == LossKind::CrossEntropy && rank >= 2 && !spec.axis)
    spec.axis = class_axis(builder_.graph(), *first);
  // Auxiliary classifiers look like the main output and are trained with it. Two outputs that an
  // Identity makes one tensor are two terms of the loss all the same, and one whose value turned
  // out to be known is a term that stays what it is.
  const auto predicts = [&](TensorId id) {
    const Tensor& tensor = builder_.graph()[id];
    return tensor.type == builder_.type(*first) &&
           (tensor.producer.valid() || tensor.role == TensorRole::Constant);
  };
  std::vector<TensorId> predictions;
  std::ranges::copy_if(outputs, std::back_inserter(predictions), predicts);
  TensorId total;
  std::string classes;
  for (TensorId prediction : predictions) {
    // A model that ends in a softmax over its classes or a sigmoid is trained on what goes into it.
    const OpId producer = builder_.graph()[prediction].producer;
    const Op* op = producer.valid() ? &builder_.graph()[producer] : nullptr;
    if (op != nullptr && spec.axis && op->kind == OpKind::Softmax &&
        static_cast<int64_t>(normalize_axis(*spec.axis, rank)) ==
            std::get<SoftmaxAttrs>(op->attrs).axis) {
      prediction = op->inputs[0];
      note_once("the loss is attached before the final softmax");
    } else if (op != nullptr && spec.kind == LossKind::BinaryCrossEntropy && is_sigmoid(*op)) {
      prediction = op->inputs[0];
      note_once("the loss is attached before the final sigmoid");
    }
    const TensorId loss = attach_loss(builder_, prediction, spec);
    const Op& attached = builder_.graph()[builder_.graph()[loss].producer];
    if (const auto* attrs = std::get_if<CrossEntropyAttrs>(&attached.attrs); attrs && rank > 2)
      classes = fmt::format(", classes along axis {} of {} (--loss cross-entropy:axis=N)",
                            attrs->axis, format_shape(builder_.shape(prediction)));
    total = total.valid()
                ? builder_.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {total, loss}, "loss_sum")
                : loss;
  }
  builder_.set_loss(total);
  for (const Tensor& tensor : builder_.graph().tensors)
    if (tensor.role == TensorRole::Label && tensor.name.starts_with("loss_"))
      note_once(fmt::format(
          "the labels of the loss are \"{}\" in the data: the model has an input \"{}\" of its own",
          tensor.name, tensor.name.substr(5)));
  note_once(fmt::format("{} loss attached to {}{}", loss_title(spec.kind),
                        predictions.size() == 1
                            ? fmt::format("output \"{}\"", builder_.graph()[predictions[0]].name)
                            : fmt::format("{} outputs of the same shape", predictions.size()),
                        classes));
}

Model import_onnx(std::string_view bytes, const std::string& where, const std::string& folder,
                  const ModelOptions& options) {
  try {
    const auto data = std::as_bytes(std::span(bytes));
    return import_file(parse_onnx(data, "", folder), options);
  } catch (const Error& error) {
    throw error.within(where);
  }
}

Model load_onnx(const std::string& path, const ModelOptions& options) {
  try {
    const MappedFile mapped(path);
    const std::string folder = fs::path(path).parent_path().string();
    return import_file(parse_onnx(mapped.bytes(), path, folder), options);
  } catch (const Error& error) {
    throw error.within(path);
  }
}

}  // namespace windlass

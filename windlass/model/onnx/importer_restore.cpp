// Undoing what exporters do to parameters: one stored value under several names, transposed copies
// of tied tables, folded batch normalisation, unfolded position tables.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"
#include "windlass/model/onnx/parameters.h"

namespace windlass {

TensorId OnnxImporter::restore_relative_bias(const OnnxTensor& tensor, const RelativeBias& bias) {
  note_once("relative position tables that the exporter had unfolded are restored");
  const int64_t span = 2 * bias.side - 1, places = bias.side * bias.side;
  const std::string& name = tensor.name;
  const TensorId table =
      restored_weight(name + ".table", {tensor.type.dtype, {span * span, bias.heads}}, bias.table);
  const TensorId index =
      builder_.constant(name + ".index", {DType::I64, {places * places}}, bias.index);
  const TensorId rows = builder_.op(OpKind::Gather, AxisAttrs{0}, {table, index}, name + ".rows");
  const TensorId square = builder_.op(OpKind::Reshape, ShapeAttrs{{places, places, bias.heads}},
                                      {rows}, name + ".square");
  const TensorId moved =
      builder_.op(OpKind::Transpose, TransposeAttrs{{2, 0, 1}}, {square}, name + ".heads");
  return builder_.op(OpKind::Reshape, ShapeAttrs{tensor.type.shape}, {moved}, name);
}

TensorId OnnxImporter::restored_weight(const std::string& name, TensorType type,
                                       std::vector<double> values) {
  const TensorId id = builder_.weight(name, std::move(type));
  restored_values_[name] = values;
  read_[id] = std::move(values);
  return id;
}

bool OnnxImporter::is_computed_again(const OnnxTensor& stored, const std::string& name) {
  if (readers_.empty())
    for (const OnnxNode& node : file_.graph.nodes)
      for (const std::string& input : node.inputs)
        if (is_anonymous_name(input)) readers_[input].push_back(&node);
  Kinship closest = Kinship::None;
  for (const OnnxNode* first : readers_[stored.name])
    for (const OnnxNode* second : readers_[name])
      closest = std::max(closest, kinship(first->name, second->name));
  if (closest != Kinship::Module) return closest == Kinship::Again;
  // Several parameters of one module may begin with zeros.
  const int64_t count = element_count(stored.type.shape);
  std::vector<int64_t> places;
  for (int64_t k = 0; k < std::min<int64_t>(count, 64); ++k) places.push_back(k * 7919 % count);
  const auto values = sample_values(file_, stored, places);
  return values && !is_uniform(*values);
}

TensorId OnnxImporter::computed_before(const OnnxTensor& tensor) {
  if (!restores() || !tensor.name.starts_with("onnx::") || !file_.producer.starts_with("pytorch"))
    return {};
  constexpr int64_t kSamples = 64;
  const int64_t count = element_count(tensor.type.shape);
  std::vector<int64_t> places;
  for (int64_t k = 0; k < std::min(kSamples, count); ++k) places.push_back(k * 7919 % count);
  int attempts = 256;  // of the same shape
  for (TensorId weight : computed_) {
    const OnnxTensor& stored = *source_.at(weight);
    if (stored.type != tensor.type) continue;
    if (--attempts < 0) break;
    const auto a = sample_values(file_, stored, places), b = sample_values(file_, tensor, places);
    if (!a || !b || *a != *b || !is_computed_again(stored, tensor.name)) continue;
    note_once("equal values that the exporter computed for one module are tied");
    return weight;
  }
  return {};
}

TensorId OnnxImporter::alias(const std::string& name, TensorId id) {
  // Only values that were stored get names of their own; "onnx::" is how PyTorch calls folded ones.
  const bool stored_name = !is_anonymous_name(name) || name.starts_with("onnx::");
  const auto source = source_.find(id);
  const bool deduplicates = file_.producer.starts_with("pytorch");
  if (source == source_.end() || !stored_name || !deduplicates || !restores()) return id;
  if (for_training_) {
    note_once("weights that are stored once under several names are tied");
    return id;
  }
  const OnnxTensor& tensor = *source->second;
  if (is_anonymous_name(name) && is_anonymous_name(tensor.name) &&
      is_computed_again(tensor, name)) {
    note_once("equal values that the exporter computed for one module are tied");
    return id;
  }
  const TensorId copy = is_buffer_name(name) && !trains(name) ? builder_.buffer(name, tensor.type)
                                                              : builder_.weight(name, tensor.type);
  source_.emplace(copy, &tensor);
  copies_[name] = &tensor;
  return copy;
}

TensorId OnnxImporter::tied_transpose(TensorId operand, const std::string& name) {
  if (!restores() || !is_anonymous_initializer(operand)) return operand;
  const Shape shape = builder_.shape(operand);
  if (shape.size() != 2) return operand;
  // Places spread over the matrix; equal random numbers at all of them are no accident.
  constexpr int64_t kSamples = 64;
  const int64_t count = element_count(shape);
  std::vector<int64_t> here, there;
  for (int64_t k = 0; k < std::min(kSamples, count); ++k) {
    const int64_t row = (k * 7919) % shape[0], column = (k * 104729 + k / 3) % shape[1];
    here.push_back(row * shape[1] + column);
    there.push_back(column * shape[0] + row);
  }
  const auto own = sample_values(file_, *source_.at(operand), here);
  if (!own || is_uniform(*own)) return operand;
  int attempts = 256;  // of the shape
  for (const OnnxTensor& stored : file_.graph.initializers) {
    if (stored.type.shape != Shape{shape[1], shape[0]} || !is_float(stored.type.dtype)) continue;
    if (is_anonymous_name(stored.name)) continue;
    if (--attempts < 0) break;
    const auto values = sample_values(file_, stored, there);
    if (!values || *values != *own) continue;
    note_once("a transposed copy of a weight is taken as the weight itself (tied weights)");
    return builder_.op(OpKind::Transpose, TransposeAttrs{{1, 0}}, {lookup(stored.name)},
                       name + ".table");
  }
  return operand;
}

bool OnnxImporter::restores_batch_norm(TensorId weight, TensorId bias) const {
  return restores() && is_anonymous_initializer(weight) && is_anonymous_initializer(bias) &&
         is_folded_convolution(file_, builder_.graph()[weight].name, builder_.graph()[bias].name);
}

TensorId OnnxImporter::restore_convolution_bias(TensorId bias, const std::string& name) {
  if (!folded_biases_) return {};
  const TensorType type = builder_.type(bias);
  const auto count = static_cast<size_t>(element_count(type.shape));
  return restored_weight(name + ".conv.bias", type, std::vector<double>(count, 0));
}

TensorId OnnxImporter::restore_batch_norm(TensorId x, TensorId bias, const std::string& name) {
  note_once(
      "exported for inference: batch normalisation that was folded into convolutions is restored "
      "with "
      "scale 1; see --as-exported");
  const TensorType type = builder_.type(bias);
  const auto count = static_cast<size_t>(element_count(type.shape));
  const std::vector<double>* shifts = value_of(bias);
  if (!shifts || !builder_.spend(4 * static_cast<int64_t>(count), 0))
    fail_unsupported("a bias of {} values is too large for batch normalisation", count);
  const TensorId scale = restored_weight(name + ".bn.weight", type, std::vector<double>(count, 1));
  const TensorId shift = restored_weight(name + ".bn.bias", type, *shifts);
  const TensorId mean = builder_.buffer(name + ".bn.running_mean", type);
  const TensorId variance = builder_.buffer(name + ".bn.running_var", type);
  restored_values_[name + ".bn.running_mean"] = std::vector<double>(count, 0);
  restored_values_[name + ".bn.running_var"] = std::vector<double>(count, 1);
  return builder_.op(OpKind::BatchNorm, BatchNormAttrs{}, {x, scale, shift, mean, variance},
                     name + ".bn");
}

}  // namespace windlass

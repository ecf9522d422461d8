// What stored tensors become: weights, buffers, or constants whose values are known.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/model/onnx/importer.h"
#include "windlass/model/onnx/parameters.h"

namespace windlass {
namespace {

// Values of stored tensors up to this size are looked at; larger ones are data without a doubt.
constexpr int64_t kLookLimit = int64_t{1} << 22;

}  // namespace

bool OnnxImporter::can_look_at(const OnnxTensor& tensor, bool once) {
  const int64_t count = element_count(tensor.type.shape);
  if (count > kLookLimit) return false;
  // Many tensors may name the same bytes of another file.
  return (once && !tensor.external) || builder_.spend(count, static_cast<double>(count));
}

TensorId OnnxImporter::initializer(const OnnxTensor& tensor, bool once) {
  const int64_t count = element_count(tensor.type.shape);
  if (tensor.type.dtype == DType::None)
    fail_unsupported("initializer \"{}\" has an element type windlass does not know (ONNX type {})",
                     tensor.name, tensor.onnx_type);
  const bool anonymous = is_anonymous_name(tensor.name);
  const bool floating = is_float(tensor.type.dtype);
  const bool wanted = floating && trains(tensor.name);
  const bool number = count == 1 && (anonymous || tensor.type.shape.empty()) &&
                      !is_parameter_number(file_, tensor) && !wanted;
  if (number && floating && may_be_folded_parameter(tensor.name))
    demoted_by_name_.push_back({tensor.name, "a number without a name"});
  if (floating ? number : can_look_at(tensor, once))
    return builder_.constant(tensor.name, tensor.type, read_values(file_, tensor));
  locate(file_, tensor);
  const std::string name = once ? tensor.name : name_in_branch(tensor);
  if (!floating || (is_buffer_name(tensor.name) && !wanted)) {
    const TensorId id = builder_.buffer(name, tensor.type);
    if (floating && !is_statistic_name(tensor.name))
      demoted_by_name_.push_back({name, "by its name"});
    source_.emplace(id, &tensor);
    return id;
  }
  // Masks and position biases are square and wider than any kernel.
  constexpr int64_t kWiderThanKernels = 16;
  const Shape& shape = tensor.type.shape;
  const bool square = shape.size() >= 3 && shape.back() == shape[shape.size() - 2] &&
                      shape.back() >= kWiderThanKernels;
  if (anonymous && square && !wanted && can_look_at(tensor, once)) {
    std::vector<double> values = read_values(file_, tensor);
    if (is_additive_mask(values))
      return builder_.constant(tensor.name, tensor.type, std::move(values));
    if (const auto bias = find_relative_bias(shape, values); bias && restores())
      return restore_relative_bias(tensor, *bias);
  }
  if (const TensorId before = computed_before(tensor); before.valid()) return before;
  const TensorId id = builder_.weight(name, tensor.type);
  source_.emplace(id, &tensor);
  if (anonymous) computed_.push_back(id);
  return id;
}

std::string OnnxImporter::name_in_branch(const OnnxTensor& tensor) {
  std::string name = tensor.name;
  while (initializers_.contains(name) || copies_.contains(name))
    name = fmt::format("{}.branch_{}", tensor.name, ++branch_weights_);
  copies_[name] = &tensor;
  return name;
}

TensorId OnnxImporter::constant_tensor(const OnnxTensor& tensor, const std::string& name) {
  const int64_t count = element_count(tensor.type.shape);
  if (!builder_.spend(count, static_cast<double>(count)))
    fail_unsupported("the file has too many known values: {} more", count);
  return builder_.constant(name, tensor.type, read_values(file_, tensor));
}

const std::vector<double>* OnnxImporter::value_of(TensorId id) {
  if (const auto* values = builder_.value(id)) return values;
  const auto source = source_.find(id);
  if (source == source_.end()) return nullptr;
  auto known = read_.find(id);
  if (known == read_.end()) {
    if (!can_look_at(*source->second, false)) return nullptr;
    known = read_.emplace(id, read_values(file_, *source->second)).first;
  }
  return &known->second;
}

std::optional<std::vector<double>> OnnxImporter::stored_values(const Tensor& tensor) {
  if (const auto restored = restored_values_.find(tensor.name); restored != restored_values_.end())
    return restored->second;
  const auto copied = copies_.find(tensor.name);
  const auto stored = initializers_.find(tensor.name);
  const OnnxTensor* source = copied != copies_.end()         ? copied->second
                             : stored != initializers_.end() ? stored->second
                                                             : nullptr;
  if (!source || !can_look_at(*source, true)) return std::nullopt;
  return read_values(file_, *source);
}

std::vector<StoredName> OnnxImporter::names_in_order() const {
  std::vector<StoredName> names;
  if (!file_.producer.starts_with("pytorch")) return names;
  for (const OnnxTensor& tensor : file_.graph.initializers)
    names.push_back(
        {tensor.name, !is_anonymous_name(tensor.name) &&
                          (!is_float(tensor.type.dtype) || is_statistic_name(tensor.name))});
  return names;
}

bool OnnxImporter::trains(const std::string& name) const {
  return std::any_of(options_.train.begin(), options_.train.end(),
                     [&](const std::string& glob) { return matches_glob(name, glob); });
}

void OnnxImporter::make_buffer(TensorId id) {
  Tensor& tensor = builder_.tensor(id);
  if (tensor.role != TensorRole::Weight) return;
  tensor.role = TensorRole::Buffer;
  tensor.trainable = false;
}

bool OnnxImporter::is_anonymous_initializer(TensorId id) const {
  return source_.contains(id) && is_anonymous_name(builder_.graph()[id].name);
}

bool OnnxImporter::is_only_added_by_pytorch(const std::string& value) {
  if (!file_.producer.starts_with("pytorch")) return false;
  if (!only_added_) {
    std::set<std::string> added, otherwise;
    for (const OnnxNode& node : file_.graph.nodes)
      (node.op_type == "Add" ? added : otherwise).insert(node.inputs.begin(), node.inputs.end());
    for (const OnnxValue& output : file_.graph.outputs) otherwise.insert(output.name);
    for (const std::string& name : otherwise) added.erase(name);
    only_added_ = std::move(added);
  }
  return only_added_->contains(value);
}

}  // namespace windlass

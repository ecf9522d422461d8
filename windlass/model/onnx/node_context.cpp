#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {

const ImportTable& import_table() {
  static const ImportTable table = [] {
    ImportTable result;
    add_math_rules(result);
    add_product_rules(result);
    add_reduction_rules(result);
    add_window_rules(result);
    add_resize_rules(result);
    add_network_rules(result);
    add_recurrent_rules(result);
    add_loss_rules(result);
    add_attention_rules(result);
    add_layout_rules(result);
    add_indexing_rules(result);
    add_constant_rules(result);
    return result;
  }();
  return table;
}

GraphBuilder& NodeContext::builder() { return importer_.builder(); }
int64_t NodeContext::opset() const { return importer_.opset(); }

TensorId NodeContext::in(size_t i) {
  return has(i) ? importer_.lookup(node_.inputs[i]) : TensorId();
}

TensorId NodeContext::required(size_t i) {
  if (!has(i)) fail_input("input {} is missing", i);
  return in(i);
}

TensorType NodeContext::type(size_t i) { return builder().type(required(i)); }

std::optional<std::vector<double>> NodeContext::constant(size_t i) {
  if (!has(i)) return std::nullopt;
  const auto* values = importer_.value_of(in(i));
  if (!values) return std::nullopt;
  claim_work(static_cast<int64_t>(values->size()));
  return *values;
}

std::vector<double> NodeContext::required_constant(size_t i, std::string_view what) {
  if (!has(i)) fail_input("input {} ({}) is missing", i, what);
  auto values = constant(i);
  if (!values)
    fail_unsupported("{} depends on the data; windlass needs it to be fixed when the model is read",
                     what);
  return *std::move(values);
}

Ints NodeContext::required_ints(size_t i, std::string_view what) {
  Ints result;
  for (double value : required_constant(i, what)) result.push_back(checked_int(value));
  return result;
}

const OnnxAttribute* NodeContext::attr(const std::string& name) const {
  const auto found = node_.attributes.find(name);
  return found == node_.attributes.end() ? nullptr : &found->second;
}

int64_t NodeContext::int_attr(const std::string& name, int64_t otherwise) const {
  const OnnxAttribute* found = attr(name);
  return found ? found->i : otherwise;
}

double NodeContext::float_attr(const std::string& name, double otherwise) const {
  const OnnxAttribute* found = attr(name);
  return found ? found->f : otherwise;
}

std::string NodeContext::string_attr(const std::string& name, std::string otherwise) const {
  const OnnxAttribute* found = attr(name);
  return found ? found->s : otherwise;
}

Ints NodeContext::ints_attr(const std::string& name, Ints otherwise) const {
  const OnnxAttribute* found = attr(name);
  return found ? found->ints : otherwise;
}

std::string NodeContext::part_name(std::string_view part) const {
  return part.empty() ? name_ : fmt::format("{}.{}", name_, part);
}

TensorId NodeContext::emit(OpKind kind, Attrs attrs, std::vector<TensorId> inputs,
                           std::string_view part) {
  return builder().op(kind, std::move(attrs), std::move(inputs), part_name(part));
}

std::vector<TensorId> NodeContext::emit_all(OpKind kind, Attrs attrs, std::vector<TensorId> inputs,
                                            std::string_view part) {
  return builder().add(kind, std::move(attrs), std::move(inputs), part_name(part));
}

TensorId NodeContext::unary(UnaryFn fn, TensorId x, double alpha, double beta,
                            std::string_view part) {
  return emit(OpKind::Unary, UnaryAttrs{fn, alpha, beta}, {x}, part);
}

TensorId NodeContext::binary(BinaryFn fn, TensorId a, TensorId b, std::string_view part) {
  // ONNX converts nothing by itself, and the fusions count on that.
  if (a.valid() && b.valid() && fn != BinaryFn::Pow) {
    const TensorType &left = builder().type(a), &right = builder().type(b);
    if (left.dtype != right.dtype)
      fail_input("operands are {} and {}, expected one type", format_type(left),
                 format_type(right));
  }
  return emit(OpKind::Binary, BinaryAttrs{fn}, {a, b}, part);
}

TensorId NodeContext::reshape(TensorId x, Shape shape, std::string_view part) {
  return emit(OpKind::Reshape, ShapeAttrs{std::move(shape)}, {x}, part);
}

TensorId NodeContext::constant_like(TensorType type, std::vector<double> values) {
  claim(static_cast<int64_t>(values.size()));
  return builder().constant(name_, std::move(type), std::move(values));
}

void NodeContext::claim(int64_t count) {
  if (!builder().spend(count, static_cast<double>(count)))
    fail_unsupported("the file has too many known values: {} more", count);
}

void NodeContext::claim_work(int64_t count) {
  if (!builder().spend(0, static_cast<double>(count)))
    fail_unsupported("the file computes too much with known values before there is any data");
}

void NodeContext::out(size_t i, TensorId id) {
  if (wants(i)) importer_.define(node_.outputs[i], id);
}

}  // namespace windlass

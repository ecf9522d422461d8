// One pass forward finds which tensors depend on data and the fan in behind each result; one pass
// backward carries to each stored tensor what its first user makes of it. Both are linear in the
// size of the graph.

#include "windlass/model/initialise.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "windlass/base/rng.h"

namespace windlass {
namespace {

using Kind = InitialValue::Kind;

constexpr double kTransformerDeviation = 0.02;

InitialValue constant(double value) { return {Kind::Constant, value, 0}; }
InitialValue normal(double deviation) { return {Kind::Normal, 0, deviation}; }
InitialValue within(double bound) { return {Kind::Uniform, -bound, bound}; }

// Whether the values of an operand are passed on as they are, or nearly so.
bool passes_values_on(const Op& op, size_t input) {
  switch (op.kind) {
    case OpKind::Reshape:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Split:
    case OpKind::Expand:
    case OpKind::Pad:
    case OpKind::Cast:
    case OpKind::Concat: return true;
    case OpKind::Dropout: return input == 0;
    case OpKind::Unary: {
      const UnaryFn fn = std::get<UnaryAttrs>(op.attrs).fn;
      return fn == UnaryFn::Identity || fn == UnaryFn::Affine;
    }
    default: return false;
  }
}

// What the forward pass knows of a tensor.
struct Origin {
  bool data = false;   // depends on an input of the step
  int64_t fan_in = 0;  // of the layer that made it; 0: no layer did
};

class Initialiser {
 public:
  explicit Initialiser(const Graph& graph)
      : graph_(graph), origins_(graph.tensors.size()), uses_(graph.tensors.size()) {}

  std::map<TensorId, InitialValue> run() {
    for (const Op& op : graph_.ops)
      if (op.pass == Pass::Forward) follow(op);
    transformer_ = looks_up_ && attends_ && !recurs_;
    for (size_t i = graph_.ops.size(); i-- > 0;)
      if (graph_.ops[i].pass == Pass::Forward) carry_back(graph_.ops[i]);
    std::map<TensorId, InitialValue> values;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (tensor.role == TensorRole::Weight)
        values[TensorId(t)] = uses_[t].value_or(guess(tensor.type.shape));
      else if (tensor.role == TensorRole::Buffer)
        values[TensorId(t)] =
            uses_[t] && is_float(tensor.type.dtype) && uses_[t]->kind == Kind::Constant
                ? *uses_[t]
                : constant(0);
    }
    return values;
  }

 private:
  bool depends_on_data(const Op& op, size_t input) const {
    return input < op.inputs.size() && op.inputs[input].valid() &&
           origins_[op.inputs[input].index()].data;
  }

  // Elements of an operand that go into one element of the result; at least 1.
  int64_t fan_in(const Op& op) const {
    const Shape& weight = graph_.type_of(op.inputs[1]).shape;
    switch (op.kind) {
      case OpKind::Linear: return weight[std::get<LinearAttrs>(op.attrs).input_major ? 0 : 1];
      case OpKind::GroupedLinear:
      case OpKind::SlotLinear: return weight[2];
      case OpKind::MatMul: {
        const Shape& left = graph_.type_of(op.inputs[0]).shape;
        const bool transposed = std::get<MatMulAttrs>(op.attrs).transpose_a && left.size() > 1;
        return left.empty() ? 1 : left[left.size() - (transposed ? 2 : 1)];
      }
      case OpKind::Conv: {
        int64_t count = 1;  // a part of the weight's elements, whose product fits
        for (size_t axis = 1; axis < weight.size(); ++axis) count *= weight[axis];
        return count;
      }
      default: return 0;
    }
  }

  void follow(const Op& op) {
    Origin made;
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (!op.inputs[i].valid()) continue;
      const TensorRole role = graph_[op.inputs[i]].role;
      Origin& origin = origins_[op.inputs[i].index()];
      origin.data = origin.data || role == TensorRole::Input || role == TensorRole::Label;
      made.data = made.data || origin.data;
      if (passes_values_on(op, i)) made.fan_in = std::max(made.fan_in, origin.fan_in);
    }
    const bool both = depends_on_data(op, 0) && depends_on_data(op, 1);
    switch (op.kind) {
      case OpKind::Linear:
      case OpKind::GroupedLinear:
      case OpKind::SlotLinear:
      case OpKind::MatMul:
      case OpKind::Conv:
        made.fan_in = std::max<int64_t>(1, fan_in(op));
        products_ = products_ || (op.kind == OpKind::MatMul && both);
        break;
      case OpKind::Softmax: softmax_ = true; break;
      case OpKind::Attention: attends_ = true; break;
      case OpKind::Embedding: looks_up_ = looks_up_ || depends_on_data(op, 0); break;
      case OpKind::Gather:
        looks_up_ = looks_up_ || (depends_on_data(op, 1) && !depends_on_data(op, 0));
        break;
      case OpKind::Lstm:
      case OpKind::Gru: recurs_ = true; break;
      default: break;
    }
    attends_ = attends_ || (softmax_ && products_);
    for (TensorId id : op.outputs)
      if (id.valid()) origins_[id.index()] = made;
  }

  void carry_back(const Op& op) {
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      if (!op.inputs[i].valid()) continue;
      std::optional<InitialValue> use = use_of(op, i);
      if (!use && passes_values_on(op, i))
        for (size_t k = op.outputs.size(); k-- > 0;)
          if (op.outputs[k].valid() && uses_[op.outputs[k].index()])
            use = uses_[op.outputs[k].index()];
      // Ops are visited from the last to the first: the first user has the last word.
      if (use) uses_[op.inputs[i].index()] = use;
    }
  }

  InitialValue matrix(int64_t fan) const {
    return transformer_ ? normal(kTransformerDeviation)
                        : within(1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, fan))));
  }
  InitialValue bias(int64_t fan) const { return transformer_ ? constant(0) : matrix(fan); }
  InitialValue table(bool by_data) const {
    return by_data && !transformer_ ? normal(1) : normal(kTransformerDeviation);
  }
  static InitialValue kernel(int64_t fan) {
    return within(1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, fan))));
  }
  static InitialValue guess(const Shape& shape) {
    const auto wide = std::count_if(shape.begin(), shape.end(), [](int64_t n) { return n > 1; });
    return wide <= 1 ? constant(0) : normal(kTransformerDeviation);
  }

  // What operand `input` must be, if the op says.
  std::optional<InitialValue> use_of(const Op& op, size_t input) const {
    const bool norm = op.kind == OpKind::BatchNorm || op.kind == OpKind::LayerNorm ||
                      op.kind == OpKind::RmsNorm || op.kind == OpKind::GroupNorm;
    if (norm && input == 0) return std::nullopt;
    switch (op.kind) {
      case OpKind::Linear: return input == 2 ? bias(fan_in(op)) : std::optional(matrix(fan_in(op)));
      case OpKind::GroupedLinear:
      case OpKind::SlotLinear: return matrix(fan_in(op));
      case OpKind::MatMul: return matrix(fan_in(op));
      case OpKind::Conv: return kernel(fan_in(op));
      case OpKind::BatchNorm: return constant(input == 1 || input == 4 ? 1 : 0);
      case OpKind::LayerNorm:
      case OpKind::RmsNorm: {
        const double offset = std::get<LayerNormAttrs>(op.attrs).scale_offset;
        return constant(input == 1 ? 1 - offset : 0);
      }
      case OpKind::GroupNorm: return constant(input == 1 ? 1 : 0);
      case OpKind::Lstm:
      case OpKind::Gru: {
        const auto hidden = static_cast<double>(std::get<RecurrentAttrs>(op.attrs).hidden);
        return input <= 3 ? within(1 / std::sqrt(std::max(1.0, hidden))) : constant(0);
      }
      case OpKind::Embedding: return table(depends_on_data(op, 0));
      case OpKind::Gather: return table(depends_on_data(op, 1));
      case OpKind::Attention: return input == 3 ? std::optional(table(false)) : std::nullopt;
      case OpKind::Concat:
        // Put beside data: a class token.
        for (TensorId other : op.inputs)
          if (other.valid() && origins_[other.index()].data) return table(false);
        return std::nullopt;
      case OpKind::Binary: return combined(op, input);
      default: return std::nullopt;
    }
  }

  std::optional<InitialValue> combined(const Op& op, size_t input) const {
    const BinaryFn fn = std::get<BinaryAttrs>(op.attrs).fn;
    if (fn == BinaryFn::Mul || fn == BinaryFn::Div) return constant(1);
    if (fn != BinaryFn::Add && fn != BinaryFn::Sub) return std::nullopt;
    const TensorId other = op.inputs[1 - input];
    const InitialValue added = guess(graph_.type_of(op.inputs[input]).shape);
    const int64_t fan = other.valid() ? origins_[other.index()].fan_in : 0;
    return fan > 0 && added.kind == Kind::Constant ? bias(fan) : added;
  }

  const Graph& graph_;
  std::vector<Origin> origins_;
  std::vector<std::optional<InitialValue>> uses_;
  bool looks_up_ = false, attends_ = false, recurs_ = false, softmax_ = false, products_ = false;
  bool transformer_ = false;
};

}  // namespace

std::map<TensorId, InitialValue> initial_values(const Graph& graph) {
  return Initialiser(graph).run();
}

void fill_initial(const InitialValue& value, uint64_t seed, TensorId id, std::span<float> out,
                  int64_t first) {
  const auto stream = static_cast<uint64_t>(id.value) + 1;
  const auto begin = static_cast<uint64_t>(first);
  switch (value.kind) {
    case Kind::Constant: std::ranges::fill(out, static_cast<float>(value.a)); return;
    case Kind::Uniform:
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<float>(value.a +
                                    (value.b - value.a) * random_uniform(seed, stream, begin + i));
      return;
    case Kind::Normal:
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<float>(value.a + value.b * random_normal(seed, stream, begin + i));
      return;
  }
}

}  // namespace windlass

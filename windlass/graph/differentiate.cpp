#include "windlass/graph/differentiate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"

namespace windlass {
namespace {

// Tensors whose gradient is worth computing: trainable weights and what depends on them.
std::vector<bool> find_needed(const Graph& graph) {
  std::vector<bool> needed(graph.tensors.size());
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    needed[t] =
        tensor.role == TensorRole::Weight && tensor.trainable && is_float(tensor.type.dtype);
  }
  for (const Op& op : graph.ops) {
    const OpInfo& info = op_info(op.kind);
    if (!info.gradient) continue;
    std::vector<bool> wanted;
    for (TensorId id : op.inputs) wanted.push_back(id.valid() && needed[id.index()]);
    const GradientRule rule = info.gradient(signature_of(graph, op), wanted);
    bool differentiable = false;
    for (size_t i = 0; i < wanted.size(); ++i)
      differentiable = differentiable || (wanted[i] && rule.inputs[i] != GradientSource::None);
    if (!differentiable) continue;
    for (TensorId id : op.outputs) needed[id.index()] = is_float(graph[id].type.dtype);
  }
  return needed;
}

class Differentiator {
 public:
  Differentiator(const Graph& graph, const TrainingOptions& options) {
    result_.graph = graph;
    result_.options = options;
    result_.forward_ops = graph.ops.size();
    needed_ = find_needed(graph);
    result_.gradient_of.resize(graph.tensors.size());
  }

  TrainingGraph run() {
    if (!g().loss.valid()) fail_input("the model has no loss to differentiate; attach one");
    if (!needed_[g().loss.index()])
      fail_input("no trainable weight reaches the loss: nothing can be trained");
    seed();
    for (size_t i = result_.forward_ops; i-- > 0;) backward_of(OpId(i));
    result_.backward_ops = g().ops.size() - result_.forward_ops;
    add_updates();
    collect_saved();
    result_.gradient_of.resize(g().tensors.size());
    return std::move(result_);
  }

 private:
  Graph& g() { return result_.graph; }

  TensorId add_tensor(Tensor tensor) {
    g().tensors.push_back(std::move(tensor));
    return TensorId(g().tensors.size() - 1);
  }

  TensorType gradient_type(TensorId id) {
    TensorType type = g()[id].type;
    if (g()[id].role == TensorRole::Weight && result_.options.gradient_dtype)
      type.dtype = *result_.options.gradient_dtype;
    return type;
  }

  TensorId new_gradient(TensorId of, OpId producer, std::string_view suffix) {
    const bool weight = g()[of].role == TensorRole::Weight;
    return add_tensor({.name = fmt::format("{}{}", g()[of].name, suffix),
                       .type = gradient_type(of),
                       .role = weight ? TensorRole::WeightGradient : TensorRole::Gradient,
                       .producer = producer});
  }

  void seed() {
    g().constants.push_back({{1.0}});
    result_.loss_gradient =
        add_tensor({.name = "loss.gradient",
                    .type = g()[g().loss].type,
                    .role = TensorRole::Constant,
                    .producer = {},
                    .constant = static_cast<int32_t>(g().constants.size()) - 1});
    result_.gradient_of[g().loss.index()] = result_.loss_gradient;
  }

  // A contribution to the gradient of `of`: the first is taken as it is, later ones are added.
  void contribute(TensorId of, TensorId gradient) {
    TensorId& current = result_.gradient_of[of.index()];
    if (!current.valid()) {
      current = gradient;
      return;
    }
    const OpId id(g().ops.size());
    Op op{.kind = OpKind::Accumulate,
          .pass = Pass::Backward,
          .inputs = {current, gradient},
          .name = fmt::format("{}.accumulate", g()[of].name)};
    const TensorId sum = new_gradient(of, id, ".gradient_sum");
    op.outputs = {sum};
    g().ops.push_back(std::move(op));
    result_.gradient_of[of.index()] = sum;
  }

  void backward_of(OpId forward_id) {
    const OpInfo& info = op_info(g()[forward_id].kind);
    if (!info.gradient) return;
    const std::vector<TensorId> inputs = g()[forward_id].inputs;
    const std::vector<TensorId> outputs = g()[forward_id].outputs;
    std::vector<TensorId> output_gradients;
    for (TensorId id : outputs) output_gradients.push_back(result_.gradient_of[id.index()]);
    if (std::none_of(output_gradients.begin(), output_gradients.end(),
                     [](TensorId id) { return id.valid(); }))
      return;

    std::vector<bool> wanted;
    for (TensorId id : inputs) wanted.push_back(id.valid() && needed_[id.index()]);
    const Signature signature = signature_of(g(), g()[forward_id]);
    const GradientRule shape_rule = info.gradient(signature, wanted);
    // A weight that is a term of the loss has a gradient of its own: that of the loss is no op's.
    const bool of_loss = output_gradients[0] == result_.loss_gradient;
    std::vector<bool> computed(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      computed[i] = wanted[i] && (shape_rule.inputs[i] == GradientSource::Computed ||
                                  (of_loss && g()[inputs[i]].role == TensorRole::Weight));

    if (std::any_of(computed.begin(), computed.end(), [](bool c) { return c; })) {
      const GradientRule rule = info.gradient(signature, computed);
      emit(forward_id, rule, computed, std::move(output_gradients));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!wanted[i] || computed[i] || shape_rule.inputs[i] != GradientSource::PassThrough)
        continue;
      contribute(inputs[i], result_.gradient_of[outputs[0].index()]);
    }
  }

  void emit(OpId forward_id, const GradientRule& rule, const std::vector<bool>& computed,
            std::vector<TensorId> output_gradients) {
    make_auxiliaries(forward_id, rule);
    const OpId id(g().ops.size());
    Op op{.kind = g()[forward_id].kind,
          .pass = Pass::Backward,
          .attrs = g()[forward_id].attrs,
          .inputs = std::move(output_gradients),
          .forward = forward_id,
          .saved = rule.saved,
          .name = fmt::format("{}.backward", g()[forward_id].name)};
    for (const SavedRef& ref : rule.saved) {
      const Op& forward = g()[forward_id];
      const auto index = static_cast<size_t>(ref.index);
      switch (ref.source) {
        case SavedRef::Source::Input: op.inputs.push_back(forward.inputs[index]); break;
        case SavedRef::Source::Output: op.inputs.push_back(forward.outputs[index]); break;
        case SavedRef::Source::Auxiliary: op.inputs.push_back(forward.auxiliaries[index]); break;
      }
    }
    const std::vector<TensorId> inputs = g()[forward_id].inputs;
    op.outputs.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i)
      if (computed[i]) op.outputs[i] = new_gradient(inputs[i], id, ".gradient");
    const std::vector<TensorId> gradients = op.outputs;
    g().ops.push_back(std::move(op));
    for (size_t i = 0; i < inputs.size(); ++i)
      if (computed[i]) contribute(inputs[i], gradients[i]);
  }

  void make_auxiliaries(OpId forward_id, const GradientRule& rule) {
    const bool uses = std::any_of(rule.saved.begin(), rule.saved.end(), [](const SavedRef& ref) {
      return ref.source == SavedRef::Source::Auxiliary;
    });
    if (!uses) return;
    const std::vector<TensorType> types = signature_of(g(), g()[forward_id]).auxiliaries;
    for (size_t k = 0; k < types.size(); ++k) {
      const TensorId id = add_tensor({.name = fmt::format("{}.aux{}", g()[forward_id].name, k),
                                      .type = types[k],
                                      .role = TensorRole::Auxiliary,
                                      .producer = forward_id});
      g()[forward_id].auxiliaries.push_back(id);
    }
  }

  void add_updates() {
    const size_t tensors = result_.gradient_of.size();
    for (size_t t = 0; t < tensors; ++t) {
      const TensorId weight(t);
      const TensorId gradient = result_.gradient_of[t];
      if (g()[weight].role != TensorRole::Weight || !g()[weight].trainable || !gradient.valid())
        continue;
      const TensorType type = g()[weight].type;
      const std::string name = g()[weight].name;
      const TensorType wide = {type.dtype == DType::F64 ? DType::F64 : DType::F32, type.shape};
      TensorId master;
      if (result_.options.master_weights && element_bytes(type.dtype) < 4)
        master = add_tensor(
            {.name = name + ".master", .type = wide, .role = TensorRole::Master, .producer = {}});
      Op op{.kind = OpKind::Update,
            .pass = Pass::Update,
            .attrs = UpdateAttrs{result_.options.optimizer},
            .inputs = {weight, gradient, master},
            .name = name + ".update"};
      for (int k = 0; k < optimizer_state_count(result_.options.optimizer); ++k)
        op.inputs.push_back(add_tensor({.name = fmt::format("{}.state{}", name, k),
                                        .type = wide,
                                        .role = TensorRole::State,
                                        .producer = {}}));
      g().ops.push_back(std::move(op));
    }
    if (result_.options.clip_norm > 0)
      result_.squares = add_tensor({.name = "gradient squares",
                                    .type = {DType::F64, {}},
                                    .role = TensorRole::Gradient,
                                    .producer = {}});
  }

  void collect_saved() {
    const std::vector<TensorId> roots = storage_roots(g());
    std::map<TensorId, std::vector<OpId>> readers;
    const size_t end = result_.forward_ops + result_.backward_ops;
    for (size_t i = result_.forward_ops; i < end; ++i) {
      const Op& op = g().ops[i];
      const size_t first = op.inputs.size() - op.saved.size();
      for (size_t k = first; k < op.inputs.size(); ++k) {
        const TensorId root = roots[op.inputs[k].index()];
        const TensorRole role = g()[root].role;
        const bool counts = role == TensorRole::Activation || role == TensorRole::Auxiliary ||
                            role == TensorRole::Input || role == TensorRole::Label;
        if (!counts) continue;
        auto& list = readers[root];
        if (list.empty() || list.back() != OpId(i)) list.push_back(OpId(i));
      }
    }
    for (auto& [tensor, consumers] : readers)
      result_.saved.push_back(
          {tensor, g()[tensor].producer, std::move(consumers), byte_size(g()[tensor].type)});
  }

  TrainingGraph result_;
  std::vector<bool> needed_;
};

Bytes add_bytes(Bytes total, Bytes more) { return Bytes(checked_add(total.value, more.value)); }

}  // namespace

double clip_scale(double clip_norm, double squares) {
  constexpr double kEpsilon = 1e-6;
  return std::min(1.0, clip_norm / (std::sqrt(squares) + kEpsilon));
}

int optimizer_state_count(OptimizerKind optimizer) {
  switch (optimizer) {
    case OptimizerKind::Sgd: return 0;
    case OptimizerKind::Momentum: return 1;
    case OptimizerKind::Adam:
    case OptimizerKind::AdamW: return 2;
  }
  return 0;
}

std::optional<OptimizerKind> optimizer_from_name(std::string_view name) {
  for (OptimizerKind kind :
       {OptimizerKind::Sgd, OptimizerKind::Momentum, OptimizerKind::Adam, OptimizerKind::AdamW})
    if (enum_name(kind) == name) return kind;
  return std::nullopt;
}

TrainingGraph differentiate(const Graph& graph, const TrainingOptions& options) {
  return Differentiator(graph, options).run();
}

TrainingTotals totals_of(const TrainingGraph& training) {
  TrainingTotals totals;
  const Graph& graph = training.graph;
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i)
    (i < training.forward_ops ? totals.forward : totals.backward) +=
        arithmetic_of(graph, graph.ops[i]);
  for (const Tensor& tensor : graph.tensors) {
    const Bytes bytes = byte_size(tensor.type);
    switch (tensor.role) {
      case TensorRole::Weight: totals.weights = add_bytes(totals.weights, bytes); break;
      case TensorRole::Buffer: totals.buffers = add_bytes(totals.buffers, bytes); break;
      case TensorRole::Master:
      case TensorRole::State: totals.optimizer = add_bytes(totals.optimizer, bytes); break;
      case TensorRole::Input:
      case TensorRole::Label: totals.inputs = add_bytes(totals.inputs, bytes); break;
      default: break;
    }
    const bool final_gradient = tensor.role == TensorRole::Weight && tensor.trainable;
    if (!final_gradient) continue;
    const auto index = static_cast<size_t>(&tensor - graph.tensors.data());
    const TensorId gradient = training.gradient_of[index];
    if (gradient.valid())
      totals.weight_gradients = add_bytes(totals.weight_gradients, byte_size(graph[gradient].type));
  }
  for (const SavedTensor& saved : training.saved)
    totals.saved = add_bytes(totals.saved, saved.bytes);
  return totals;
}

}  // namespace windlass

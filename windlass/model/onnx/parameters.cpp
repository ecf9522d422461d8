#include "windlass/model/onnx/parameters.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/graph/op_info.h"
#include "windlass/model/onnx/restore.h"
#include "windlass/model/onnx/value_tables.h"

namespace windlass {
namespace {

// Tensors that a gradient of those that are `reached` could reach.
std::vector<bool> follow_gradients(const Graph& graph, std::vector<bool> reached) {
  for (size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    const OpInfo& info = op_info(op.kind);
    const bool any = std::any_of(op.outputs.begin(), op.outputs.end(),
                                 [&](TensorId id) { return reached[id.index()]; });
    if (!any || !info.gradient) continue;
    const GradientRule rule =
        info.gradient(signature_of(graph, op), std::vector<bool>(op.inputs.size(), true));
    for (size_t k = 0; k < op.inputs.size(); ++k)
      if (op.inputs[k].valid() && rule.inputs[k] != GradientSource::None)
        reached[op.inputs[k].index()] = true;
  }
  return reached;
}

// Tensors that a gradient of an output or of the loss could reach.
std::vector<bool> find_differentiable(const Graph& graph) {
  std::vector<bool> from(graph.tensors.size());
  for (TensorId id : graph.outputs) from[id.index()] = is_float(graph[id].type.dtype);
  if (graph.loss.valid()) from[graph.loss.index()] = true;
  return follow_gradients(graph, std::move(from));
}

// Tensors made of constants and whole numbers only: positions, masks, indices.
std::vector<bool> find_positional(const Graph& graph) {
  std::vector<bool> positional(graph.tensors.size());
  for (size_t t = 0; t < positional.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    positional[t] = !tensor.producer.valid() &&
                    (tensor.role == TensorRole::Constant || !is_float(tensor.type.dtype));
  }
  for (const Op& op : graph.ops) {
    const bool all = std::all_of(op.inputs.begin(), op.inputs.end(), [&](TensorId id) {
      return !id.valid() || positional[id.index()];
    });
    for (TensorId id : op.outputs) positional[id.index()] = all;
  }
  return positional;
}

bool may_carry_frequencies(OpKind kind) {
  switch (kind) {
    case OpKind::Unary:
    case OpKind::Binary:
    case OpKind::MatMul:
    case OpKind::Cast:
    case OpKind::Reshape:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Concat:
    case OpKind::Expand:
    case OpKind::Gather: return true;
    default: return false;
  }
}

bool is_wave(const Op& op) {
  const auto* unary = std::get_if<UnaryAttrs>(&op.attrs);
  return op.kind == OpKind::Unary && (unary->fn == UnaryFn::Sin || unary->fn == UnaryFn::Cos);
}

// Whether everything that becomes of `weight` ends in sines and cosines, having met only positions.
bool is_frequency(const Graph& graph, const std::vector<std::vector<OpId>>& consumers,
                  const std::vector<bool>& positional, TensorId weight) {
  // Real ones are a few ops away from their sines; many weights may lead into one long chain.
  constexpr size_t kMaxDerived = 1000;
  std::set<TensorId> derived = {weight};
  std::vector<TensorId> open = {weight};
  bool waves = false;
  while (!open.empty()) {
    const TensorId id = open.back();
    open.pop_back();
    if (derived.size() > kMaxDerived) return false;
    if (std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end())
      return false;
    for (OpId consumer : consumers[id.index()]) {
      const Op& op = graph[consumer];
      if (is_wave(op)) {
        waves = true;
        continue;
      }
      if (!may_carry_frequencies(op.kind)) return false;
      for (TensorId input : op.inputs)
        if (input.valid() && !derived.contains(input) && !positional[input.index()]) return false;
      for (TensorId output : op.outputs)
        if (derived.insert(output).second) open.push_back(output);
    }
  }
  return waves;
}

// Ops that hand a table on as it is, or parts of it.
bool hands_on(const Op& op, size_t input) {
  switch (op.kind) {
    case OpKind::Cast:
    case OpKind::Reshape:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Concat:
    case OpKind::Split:
    case OpKind::Expand: return true;
    case OpKind::Gather: return input == 0;
    case OpKind::Embedding: return input == 1;
    default: return false;
  }
}

// Tensors that no input reaches.
std::vector<bool> find_stored(const Graph& graph) {
  std::vector<bool> stored(graph.tensors.size());
  for (size_t t = 0; t < stored.size(); ++t) {
    const TensorRole role = graph.tensors[t].role;
    stored[t] = !graph.tensors[t].producer.valid() && role != TensorRole::Input &&
                role != TensorRole::Label;
  }
  for (const Op& op : graph.ops) {
    const bool all = std::all_of(op.inputs.begin(), op.inputs.end(),
                                 [&](TensorId id) { return !id.valid() || stored[id.index()]; });
    for (TensorId id : op.outputs) stored[id.index()] = all;
  }
  return stored;
}

// Whether all that becomes of a stored tensor is elementwise: it is combined with other values or,
// if `functions`, a function is taken of it before. Weights of products, convolutions and norms are
// none of these, whatever their values; if `stored` is given, a product with another stored tensor
// will do.
bool is_only_combined(const Graph& graph, const std::vector<std::vector<OpId>>& consumers,
                      TensorId weight, bool functions, const std::vector<bool>* stored = nullptr) {
  constexpr size_t kMaxSteps = 100;
  std::vector<TensorId> open = {weight};
  for (size_t next = 0; next < open.size(); ++next) {
    if (open.size() > kMaxSteps) return false;
    const TensorId id = open[next];
    if (std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end())
      return false;
    for (OpId consumer : consumers[id.index()]) {
      const Op& op = graph[consumer];
      if (op.kind == OpKind::Binary || op.kind == OpKind::Where) continue;
      if (functions && (op.kind == OpKind::Unary || op.kind == OpKind::Softmax)) continue;
      if (stored && (op.kind == OpKind::MatMul || op.kind == OpKind::Linear) &&
          (*stored)[op.inputs[0].index()] && (*stored)[op.inputs[1].index()])
        continue;
      for (size_t k = 0; k < op.inputs.size(); ++k) {
        if (op.inputs[k] != id) continue;
        if (!hands_on(op, k)) return false;
      }
      open.insert(open.end(), op.outputs.begin(), op.outputs.end());
    }
  }
  return true;
}

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of('.') + 1);  // npos + 1 is 0
}

// Whether a name is one that people give to parameters; those without a name come from them.
bool is_name_of_parameter(std::string_view name) {
  constexpr std::string_view kWords[] = {"weight", "bias",  "scale", "gamma", "beta",
                                         "alpha",  "shift", "embed", "token", "pos"};
  const std::string_view last = last_part(name);
  return is_anonymous_name(name) ||
         std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view word) {
           return last.find(word) != std::string_view::npos;
         });
}

// Names of constants that a tool moved out of the graph: "/block/Constant_3_output_0",
// "_Constant_5_output_0".
bool is_constant_name(std::string_view name) {
  const size_t begin = name.find_last_of('/');
  std::string_view last = name.substr(begin == std::string_view::npos ? 0 : begin + 1);
  if (begin == std::string_view::npos) {
    if (!last.starts_with("_")) return false;
    const size_t word = last.rfind("_Constant_");
    if (word == std::string_view::npos) return false;
    last = last.substr(word + 1);
  }
  constexpr std::string_view kConstant = "Constant";
  if (!last.starts_with(kConstant)) return false;
  last.remove_prefix(kConstant.size());
  const size_t output = last.find("_output_");
  if (output == std::string_view::npos) return false;
  const std::string_view number = last.substr(0, output);
  return std::all_of(number.begin(), number.end(),
                     [](char c) { return c == '_' || (c >= '0' && c <= '9'); });
}

// Why the values of a tensor that is only combined with others are no weight's; empty if they may
// be one's.
std::string_view told_by_values(const Tensor& tensor, const std::vector<double>& values) {
  // A row of zeros and ones may be a weight that begins so, but for one that is called a mask.
  if (last_part(tensor.name).find("mask") != std::string_view::npos && is_zeros_and_ones(values))
    return "a mask of zeros and ones";
  if (tensor.type.shape.size() < 2) return "";
  if (is_additive_mask(values)) return "an additive mask";
  if (is_zero_one_mask(tensor.type.shape, values)) return "a mask of zeros and ones";
  if (is_wave_table(tensor.type.shape, values, tensor.type.dtype))
    return "sines and cosines of positions";
  if (is_distance_table(tensor.type.shape, values)) return "distances";
  if (is_grid(tensor.type.shape, values)) return "coordinates of a grid";
  return "";
}

// Whether convolutions read a stored tensor as their weight, and nothing else does.
bool is_only_filter(const Graph& graph, const std::vector<std::vector<OpId>>& consumers,
                    TensorId weight) {
  const std::vector<OpId>& all = consumers[weight.index()];
  return !all.empty() && std::all_of(all.begin(), all.end(), [&](OpId id) {
    return graph[id].kind == OpKind::Conv && graph[id].inputs[1] == weight;
  });
}

// Whether a name ends as those of the mean and the deviation of data do.
bool is_name_of_data(std::string_view name) {
  const size_t end = name.find_last_of("._");
  const std::string_view last = name.substr(end == std::string_view::npos ? 0 : end + 1);
  return last == "mean" || last == "std";
}

// Stored tensors with the name of a mean or deviation that is subtracted from the data or that they
// are divided by: no weight has touched these before.
std::vector<bool> find_standardised(const Graph& graph) {
  std::vector<bool> data(graph.tensors.size()), named(graph.tensors.size()), found(named);
  for (size_t t = 0; t < data.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    data[t] = tensor.role == TensorRole::Input;
    named[t] = tensor.role == TensorRole::Weight && is_name_of_data(tensor.name);
  }
  std::vector<TensorId> origin(graph.tensors.size());
  for (const Op& op : graph.ops) {
    if (op.outputs.size() != 1) continue;
    const size_t result = op.outputs[0].index();
    if (op.kind == OpKind::Reshape || op.kind == OpKind::Cast || op.kind == OpKind::Expand ||
        op.kind == OpKind::Transpose) {
      const size_t given = op.inputs[0].index();
      data[result] = data[given];
      named[result] = named[given];
      origin[result] = origin[given].valid() ? origin[given] : op.inputs[0];
      continue;
    }
    const auto* binary = std::get_if<BinaryAttrs>(&op.attrs);
    if (op.kind != OpKind::Binary || !binary || !data[op.inputs[0].index()]) continue;
    if (binary->fn != BinaryFn::Sub && binary->fn != BinaryFn::Div) continue;
    const size_t by = op.inputs[1].index();
    // Bytes are divided by 255 before.
    if (graph.tensors[by].role == TensorRole::Constant) data[result] = true;
    if (!named[by]) continue;
    found[origin[by].valid() ? origin[by].index() : by] = true;
    data[result] = true;
  }
  return found;
}

// Names of all stored tensors, and what those of one module say of each other.
class Siblings {
 public:
  explicit Siblings(const Graph& graph) {
    for (const Tensor& tensor : graph.tensors)
      if (!tensor.producer.valid()) names_.insert(tensor.name);
  }

  // PyTorch's spectral norm keeps two vectors beside each weight that it divides:
  // "a.weight_u" and "a.weight_v" beside "a.weight_orig", or
  // "a.parametrizations.weight.0._u" beside "a.parametrizations.weight.original".
  bool is_spectral_vector(std::string_view name) const {
    if (!name.ends_with("_u") && !name.ends_with("_v")) return false;
    const std::string_view stem = name.substr(0, name.size() - 2);
    if (has(stem, "_orig")) return true;
    if (!stem.ends_with('.')) return false;
    const size_t number = stem.substr(0, stem.size() - 1).rfind('.');
    return number != std::string_view::npos && has(stem.substr(0, number), ".original");
  }

  // "bn.weight" or "bn.bias" beside running statistics.
  bool is_beside_statistics(std::string_view name) const {
    const size_t point = name.rfind('.');
    const size_t begin = point == std::string_view::npos ? 0 : point + 1;
    const std::string_view last = name.substr(begin);
    return (last == "weight" || last == "bias") && has(name.substr(0, begin), "running_mean") &&
           has(name.substr(0, begin), "running_var");
  }

 private:
  bool has(std::string_view stem, std::string_view ending) const {
    return names_.contains(std::string(stem) + std::string(ending));
  }

  std::set<std::string> names_;
};

}  // namespace

bool gradient_reaches_weight(const Graph& graph, TensorId from) {
  std::vector<bool> start(graph.tensors.size());
  start[from.index()] = true;
  const std::vector<bool> reached = follow_gradients(graph, std::move(start));
  for (size_t t = 0; t < reached.size(); ++t)
    if (reached[t] && graph.tensors[t].role == TensorRole::Weight) return true;
  return false;
}

std::vector<Demotion> demote_buffers(Graph& graph, const WeightValues& values,
                                     const std::vector<std::string>& train) {
  const std::vector<bool> differentiable = find_differentiable(graph);
  const std::vector<bool> positional = find_positional(graph);
  const auto consumers = consumers_of(graph);
  const bool waves = std::any_of(graph.ops.begin(), graph.ops.end(), is_wave);
  const std::vector<bool> stored = find_stored(graph);
  const std::vector<bool> standardised = find_standardised(graph);
  const Siblings siblings(graph);
  const auto feeds_a_norm = [&](size_t t) {
    return std::any_of(consumers[t].begin(), consumers[t].end(),
                       [&](OpId id) { return graph[id].kind == OpKind::BatchNorm; });
  };
  const auto reason = [&](size_t t) -> std::string_view {
    const Tensor& tensor = graph.tensors[t];
    if (!differentiable[t]) return "no gradient reaches it";
    if (is_constant_name(tensor.name)) return "a constant of the graph";
    if (siblings.is_spectral_vector(tensor.name)) return "a vector of spectral norm";
    if (siblings.is_beside_statistics(tensor.name) && !feeds_a_norm(t))
      return "of a frozen batch norm";
    if (standardised[t]) return "mean or deviation of the data";
    // Frequencies are vectors; walking from every matrix of a large model would be slow for
    // nothing.
    const bool small = element_count(tensor.type.shape) <= 4096;
    if (waves && small && is_frequency(graph, consumers, positional, TensorId(t)))
      return "frequencies of sines and cosines";
    const Shape& shape = tensor.type.shape;
    if (shape.size() >= 3 && shape[1] == 1 && is_only_filter(graph, consumers, TensorId(t))) {
      const auto filters = values(tensor);
      return filters && is_repeated_filter(shape, *filters) ? "one filter for all channels" : "";
    }
    if (!is_only_combined(graph, consumers, TensorId(t), true)) {
      // Tables of positions go through a layer of their own in some networks.
      if (shape.size() < 2 || !is_only_combined(graph, consumers, TensorId(t), false, &stored))
        return "";
      const auto table = values(tensor);
      return table && is_wave_table(shape, *table, tensor.type.dtype)
                 ? "sines and cosines of positions"
                 : "";
    }
    const auto known = values(tensor);
    if (!known) return "";
    if (has_infinities(*known)) return "infinities";
    return is_only_combined(graph, consumers, TensorId(t), false) ? told_by_values(tensor, *known)
                                                                  : "";
  };
  std::vector<Demotion> demotions;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    Tensor& tensor = graph.tensors[t];
    if (tensor.role != TensorRole::Weight) continue;
    if (std::any_of(train.begin(), train.end(),
                    [&](const std::string& glob) { return matches_glob(tensor.name, glob); }))
      continue;
    const std::string_view why = reason(t);
    if (why.empty()) continue;
    tensor.role = TensorRole::Buffer;
    tensor.trainable = false;
    demotions.push_back({tensor.name, std::string(why)});
  }
  return demotions;
}

std::vector<std::string> doubtful_weights(const Graph& graph,
                                          const std::vector<std::string>& train) {
  const auto consumers = consumers_of(graph);
  std::vector<std::string> names;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.role != TensorRole::Weight || is_name_of_parameter(tensor.name)) continue;
    if (std::any_of(train.begin(), train.end(),
                    [&](const std::string& glob) { return matches_glob(tensor.name, glob); }))
      continue;
    if (is_only_combined(graph, consumers, TensorId(t), true)) names.push_back(tensor.name);
  }
  return names;
}

std::string describe(const std::vector<Demotion>& demotions) {
  constexpr size_t kMaxNames = 6;
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  for (const Demotion& demotion : demotions) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& entry) {
      return entry.first == demotion.reason;
    });
    if (group == groups.end())
      groups.push_back({demotion.reason, {demotion.name}});
    else
      group->second.push_back(demotion.name);
  }
  std::string text;
  for (const auto& [why, names] : groups) {
    text += text.empty() ? "" : "; ";
    for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", names[i]);
    if (names.size() > kMaxNames) text += fmt::format(" and {} more", names.size() - kMaxNames);
    text += fmt::format(" ({})", why);
  }
  return text;
}

}  // namespace windlass

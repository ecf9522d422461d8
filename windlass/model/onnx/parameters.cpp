#include "windlass/model/onnx/parameters.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/model/onnx/parameter_names.h"
#include "windlass/model/onnx/restore.h"
#include "windlass/model/onnx/stored_uses.h"
#include "windlass/model/onnx/value_tables.h"

namespace windlass {
namespace {

// Why the values of a tensor that is only combined with others are no weight's; empty if they may
// be one's.
std::string_view told_by_values(const Tensor& tensor, const std::vector<double>& values) {
  // A row of zeros and ones may be a weight that begins so, but for one that is called a mask.
  if (last_part(tensor.name).find("mask") != std::string_view::npos && is_zeros_and_ones(values))
    return "a mask of zeros and ones";
  if (tensor.type.shape.size() < 2) return "";
  if (is_additive_mask(values)) return "an additive mask";
  if (is_zero_one_mask(tensor.type.shape, values)) return "a mask of zeros and ones";
  if (is_wave_table(tensor.type.shape, values, tensor.type.dtype) ||
      is_circle_table(tensor.type.shape, values, tensor.type.dtype))
    return "sines and cosines of positions";
  if (is_distance_table(tensor.type.shape, values)) return "distances";
  if (is_grid(tensor.type.shape, values)) return "coordinates of a grid";
  return "";
}

bool matches_any(const std::string& name, const std::vector<std::string>& globs) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return matches_glob(name, glob); });
}

// What is known of the stored tensors of a graph: why some are no weights.
class Inference {
 public:
  Inference(const Graph& graph, const WeightValues& values)
      : graph_(graph), values_(values), uses_(graph), siblings_(graph) {}

  // Why a weight is none; empty if it may be one.
  std::string_view reason(TensorId id) const {
    const Tensor& tensor = graph_[id];
    if (element_count(tensor.type.shape) == 0) return "without elements";
    if (!uses_.is_reached(id)) return "no gradient reaches it";
    if (is_constant_name(tensor.name)) return "a constant of the graph";
    if (siblings_.is_spectral_vector(tensor.name)) return "a vector of spectral norm";
    if (siblings_.is_noise(tensor.name)) return "the noise of a noisy layer";
    if (siblings_.is_beside_statistics(tensor.name) && !uses_.feeds(id, OpKind::BatchNorm))
      return "of a frozen batch norm";
    if (uses_.is_standardised(id)) return "mean or deviation of the data";
    const bool unusual = !is_name_of_parameter(tensor.name);
    if (uses_.is_frequency(id) || (unusual && uses_.is_frequency_of_data(id)))
      return "frequencies of sines and cosines";
    const std::string_view told = by_values(id);
    return told.empty() && unusual ? by_formula(id) : told;
  }

 private:
  // Values that no parameter has in such a place, whatever its name.
  std::string_view by_values(TensorId id) const {
    const Tensor& tensor = graph_[id];
    const Shape& shape = tensor.type.shape;
    if (shape.size() >= 3 && shape[1] == 1 && uses_.is_only_filter(id)) {
      const auto filters = values_(tensor);
      return filters && is_repeated_filter(shape, *filters) ? "one filter for all channels" : "";
    }
    if (!uses_.is_only_combined(id, true)) {
      // Tables of positions go through a layer of their own in some networks.
      if (shape.size() < 2 || !uses_.is_combined_or_layered(id)) return "";
      const auto table = values_(tensor);
      return table && is_wave_table(shape, *table, tensor.type.dtype)
                 ? "sines and cosines of positions"
                 : "";
    }
    const auto known = values_(tensor);
    if (!known) return "";
    if (has_infinities(*known)) return "infinities";
    return uses_.is_only_combined(id, false) ? told_by_values(tensor, *known) : "";
  }

  // Values of a formula, where a parameter may begin so that is called one.
  std::string_view by_formula(TensorId id) const {
    const Tensor& tensor = graph_[id];
    const bool table = !uses_.is_only_combined(id, false) && uses_.is_operand(id);
    const bool vector = uses_.is_only_looked_up(id);
    if (!table && !vector) return "";
    const auto known = values_(tensor);
    if (!known) return "";
    if (vector) return is_schedule(*known) ? "a schedule" : "";
    return is_computed_table(tensor.type.shape, *known, tensor.type.dtype) ? "values of a formula"
                                                                           : "";
  }

  const Graph& graph_;
  const WeightValues& values_;
  StoredUses uses_;
  Siblings siblings_;
};

// Whether a reason is a fact, not an inference that may be wrong.
bool is_certain(std::string_view reason) {
  return reason == "infinities" || reason == "an additive mask" ||
         reason == "a mask of zeros and ones";
}

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
                                     const std::vector<std::string>& train,
                                     const std::vector<StoredName>& in_order) {
  std::map<std::string_view, std::string_view> reasons;
  {
    const Inference inference(graph, values);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const Tensor& tensor = graph.tensors[t];
      if (tensor.role != TensorRole::Weight || matches_any(tensor.name, train)) continue;
      if (const std::string_view why = inference.reason(TensorId(t)); !why.empty())
        reasons.emplace(tensor.name, why);
    }
  }
  // Modules of which a buffer has been met.
  std::set<std::string_view> met;
  for (const StoredName& stored : in_order) {
    const std::string_view module = module_part(stored.name);
    const auto known = reasons.find(stored.name);
    const bool certain = known != reasons.end() && is_certain(known->second);
    if (stored.is_buffer || certain)
      met.insert(module);
    else if (met.contains(module) && !is_anonymous_name(stored.name))
      reasons.emplace(stored.name, "stored after buffers of its module");
  }
  std::vector<Demotion> demotions;
  for (Tensor& tensor : graph.tensors) {
    const auto why = reasons.find(tensor.name);
    if (tensor.role != TensorRole::Weight || why == reasons.end()) continue;
    if (matches_any(tensor.name, train)) continue;
    tensor.role = TensorRole::Buffer;
    tensor.trainable = false;
    demotions.push_back({tensor.name, std::string(why->second)});
  }
  return demotions;
}

std::vector<std::string> doubtful_weights(const Graph& graph,
                                          const std::vector<std::string>& train) {
  std::vector<std::string> names;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.role != TensorRole::Weight || is_module_parameter(tensor.name)) continue;
    if (matches_any(tensor.name, train)) continue;
    // Single numbers are called the same whether they are learned or set.
    if (element_count(tensor.type.shape) == 1 || !is_name_of_parameter(tensor.name))
      names.push_back(tensor.name);
  }
  return names;
}

std::vector<std::string> computed_weights(const Graph& graph,
                                          const std::vector<std::string>& train) {
  const StoredUses uses(graph);
  std::vector<std::string> names;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.role == TensorRole::Weight && is_anonymous_name(tensor.name) &&
        !matches_any(tensor.name, train) && uses.is_only_combined(TensorId(t), true))
      names.push_back(tensor.name);
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

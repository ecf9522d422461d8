#include "windlass/model/onnx/parameter_names.h"

#include <algorithm>

#include "windlass/model/onnx/restore.h"

namespace windlass {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

template <size_t count>
bool is_one_of(std::string_view word, const std::string_view (&words)[count]) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

// "ws" of "model.ws.0": numbers count the members of a list.
std::string_view last_name(std::string_view name) {
  std::string_view last = last_part(name);
  while (std::all_of(last.begin(), last.end(), is_digit) && last.size() < name.size()) {
    name.remove_suffix(last.size() + 1);
    last = last_part(name);
  }
  return last;
}

// "scale" of "layer_scale_1".
std::string_view last_word(std::string_view name) {
  std::string_view last = last_name(name);
  while (!last.empty() && (is_digit(last.back()) || last.back() == '_')) last.remove_suffix(1);
  return last.substr(last.find_last_of('_') + 1);  // npos + 1 is 0
}

}  // namespace

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of('.') + 1);
}

std::string_view module_part(std::string_view name) {
  return name.substr(0, name.find_last_of('.') + 1);
}

bool is_module_parameter(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "weight",        "bias",          "in_proj_weight", "in_proj_bias",
      "q_proj_weight", "k_proj_weight", "v_proj_weight",  "bias_k",
      "bias_v",        "weight_g",      "weight_v",       "weight_orig",
      "bias_orig",     "original",      "original0",      "original1"};
  static constexpr std::string_view kRecurrent[] = {"weight_ih", "weight_hh", "weight_hr",
                                                    "bias_ih", "bias_hh"};
  const std::string_view last = last_part(name);
  return is_anonymous_name(name) || is_one_of(last, kNames) ||
         std::any_of(std::begin(kRecurrent), std::end(kRecurrent),
                     [&](std::string_view begin) { return last.starts_with(begin); });
}

bool is_name_of_parameter(std::string_view name) {
  static constexpr std::string_view kWords[] = {"weight", "bias",  "scale",    "gamma",
                                                "beta",   "alpha", "shift",    "embed",
                                                "token",  "pos",   "embedding"};
  if (is_module_parameter(name) || is_one_of(last_word(name), kWords)) return true;
  // "W", "w1", "Wq", "w_out".
  const std::string_view last = last_name(name);
  return (last.starts_with('w') || last.starts_with('W')) &&
         (last.size() <= 2 || last[1] == '_' || is_digit(last[1]));
}

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
  return std::all_of(number.begin(), number.end(), [](char c) { return c == '_' || is_digit(c); });
}

bool is_name_of_data(std::string_view name) {
  const size_t end = name.find_last_of("._");
  const std::string_view last = name.substr(end == std::string_view::npos ? 0 : end + 1);
  return last == "mean" || last == "std";
}

Siblings::Siblings(const Graph& graph) {
  for (const Tensor& tensor : graph.tensors)
    if (!tensor.producer.valid()) names_.insert(tensor.name);
}

bool Siblings::is_spectral_vector(std::string_view name) const {
  if (!name.ends_with("_u") && !name.ends_with("_v")) return false;
  const std::string_view stem = name.substr(0, name.size() - 2);
  if (has(stem, "_orig")) return true;
  if (!stem.ends_with('.')) return false;
  const size_t number = stem.substr(0, stem.size() - 1).rfind('.');
  return number != std::string_view::npos && has(stem.substr(0, number), ".original");
}

bool Siblings::is_beside_statistics(std::string_view name) const {
  const std::string_view last = last_part(name), module = module_part(name);
  return (last == "weight" || last == "bias") && has(module, "running_mean") &&
         has(module, "running_var");
}

bool Siblings::is_noise(std::string_view name) const {
  for (const std::string_view ending : {"_epsilon", "_eps"})
    if (name.ends_with(ending)) return has(name.substr(0, name.size() - ending.size()), "_sigma");
  return false;
}

bool Siblings::has(std::string_view stem, std::string_view ending) const {
  return names_.contains(std::string(stem) + std::string(ending));
}

}  // namespace windlass

#include "windlass/model/onnx/restore.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <set>
#include <span>

namespace windlass {
namespace {

constexpr std::string_view kMadeByPyTorch = "onnx::";

// The number in "onnx::Conv_123".
std::optional<int64_t> number_in(std::string_view name) {
  const size_t begin = name.rfind('_');
  if (!name.starts_with(kMadeByPyTorch) || begin == std::string_view::npos) return std::nullopt;
  int64_t number = 0;
  const auto [end, failed] =
      std::from_chars(name.data() + begin + 1, name.data() + name.size(), number);
  if (failed != std::errc() || end != name.data() + name.size() || number < 0) return std::nullopt;
  return number;
}

// Whether the last part of a dotted name is one of `endings`.
bool has_ending(std::string_view name, std::span<const std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) {
    return name.ends_with(ending) &&
           (name.size() == ending.size() || name[name.size() - ending.size() - 1] == '.');
  });
}

}  // namespace

bool is_anonymous_name(std::string_view name) {
  if (name.starts_with("onnx::") || name.starts_with("/") || name.starts_with("_")) return true;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
}

bool is_parameter_number(const OnnxFile& file, const OnnxTensor& tensor) {
  if (!file.producer.starts_with("pytorch")) return false;
  if (is_anonymous_name(tensor.name)) {
    static constexpr std::string_view kReaders[] = {"onnx::Conv_", "onnx::ConvTranspose_",
                                                    "onnx::Gemm_", "onnx::MatMul_", "onnx::PRelu_"};
    return std::any_of(std::begin(kReaders), std::end(kReaders),
                       [&](std::string_view reader) { return tensor.name.starts_with(reader); });
  }
  constexpr int64_t kNamesEverything = 10;
  return file.ir_version < kNamesEverything || tensor.name.find('.') != std::string::npos;
}

bool may_be_folded_parameter(std::string_view name) {
  static constexpr std::string_view kReaders[] = {
      "onnx::Abs_",     "onnx::Add_",        "onnx::Div_",  "onnx::Exp_",
      "onnx::Expand_",  "onnx::Max_",        "onnx::Min_",  "onnx::Mul_",
      "onnx::Neg_",     "onnx::Reciprocal_", "onnx::Relu_", "onnx::Sqrt_",
      "onnx::Sigmoid_", "onnx::Softplus_",   "onnx::Sub_",  "onnx::Tanh_"};
  return std::any_of(std::begin(kReaders), std::end(kReaders),
                     [&](std::string_view reader) { return name.starts_with(reader); });
}

Kinship kinship(std::string_view first, std::string_view second) {
  if (!first.starts_with('/') || !second.starts_with('/')) return Kinship::None;
  bool again = false;
  while (true) {
    const size_t a = first.find('/', 1), b = second.find('/', 1);
    if ((a == std::string_view::npos) != (b == std::string_view::npos)) return Kinship::None;
    if (a == std::string_view::npos) break;
    const std::string_view module = first.substr(0, a);
    std::string_view used = second.substr(0, b);
    first.remove_prefix(a);
    second.remove_prefix(b);
    if (module == used) continue;
    if (!used.starts_with(module)) return Kinship::None;
    used.remove_prefix(module.size());
    if (used.size() < 2 || used[0] != '_' ||
        used.find_first_not_of("0123456789", 1) != std::string_view::npos)
      return Kinship::None;
    again = true;
  }
  if (again && first == second) return Kinship::Again;
  const auto operation = [](std::string_view name) {
    const size_t digits = name.find_last_not_of("0123456789");
    return digits + 1 < name.size() && name[digits] == '_' ? name.substr(0, digits) : name;
  };
  return operation(first) == operation(second) ? Kinship::Module : Kinship::None;
}

bool is_folded_convolution(const OnnxFile& file, std::string_view weight, std::string_view bias) {
  if (!file.producer.starts_with("pytorch")) return false;
  if (weight.starts_with("onnx::Conv_") && bias.starts_with("onnx::Conv_")) return true;
  // Before PyTorch 1.12 the names are plain numbers; long before that all names were.
  const auto& stored = file.graph.initializers;
  return is_anonymous_name(weight) && is_anonymous_name(bias) &&
         std::any_of(stored.begin(), stored.end(),
                     [](const OnnxTensor& t) { return !is_anonymous_name(t.name); });
}

namespace {

// Whether a dropout drops anything: functions that are called with a ratio of 0 stay in exports for
// inference. The ratio is an attribute or, from opset 12 on, a small constant.
bool drops(const OnnxFile& file, const OnnxNode& dropout) {
  if (const auto ratio = dropout.attributes.find("ratio"); ratio != dropout.attributes.end())
    return ratio->second.f != 0;
  if (dropout.inputs.size() < 2 || dropout.inputs[1].empty()) return true;  // a half
  const auto is_zero = [&](const OnnxTensor& tensor) {
    const std::vector<double> values =
        element_count(tensor.type.shape) == 1 ? read_values(file, tensor) : std::vector<double>{};
    return values.size() == 1 && values[0] == 0;
  };
  for (const OnnxTensor& tensor : file.graph.initializers)
    if (tensor.name == dropout.inputs[1]) return !is_zero(tensor);
  for (const OnnxNode& node : file.graph.nodes) {
    if (node.op_type != "Constant" || node.outputs.empty() || node.outputs[0] != dropout.inputs[1])
      continue;
    const auto value = node.attributes.find("value");
    return value == node.attributes.end() || !value->second.tensor ||
           !is_zero(*value->second.tensor);
  }
  return true;
}

}  // namespace

bool is_exported_for_training(const OnnxFile& file) {
  std::set<std::string_view> stored;
  for (const OnnxTensor& tensor : file.graph.initializers) stored.insert(tensor.name);
  for (const OnnxNode& node : file.graph.nodes)  // other names of stored values come first
    if (node.op_type == "Identity" && node.inputs.size() == 1 && node.outputs.size() == 1 &&
        stored.contains(node.inputs[0]))
      stored.insert(node.outputs[0]);
  return std::any_of(file.graph.nodes.begin(), file.graph.nodes.end(), [&](const OnnxNode& node) {
    if (node.op_type == "Dropout") return drops(file, node);
    if (node.op_type == "Transpose") return !node.inputs.empty() && stored.contains(node.inputs[0]);
    return node.op_type == "BatchNormalization" && is_training_norm(node);
  });
}

bool is_training_norm(const OnnxNode& node) {
  const auto mode = node.attributes.find("training_mode");
  // Before opset 14 further outputs tell.
  return (mode != node.attributes.end() && mode->second.i != 0) || node.outputs.size() > 1;
}

bool had_folded_biases(const OnnxFile& file) {
  constexpr int64_t kMoreThanAFew = 4;
  if (!file.producer.starts_with("pytorch")) return false;
  std::set<std::string_view> stored;
  for (const OnnxTensor& tensor : file.graph.initializers) stored.insert(tensor.name);
  int64_t inputs = 0, norms = 0, values = 0, folded = 0, first = INT64_MAX;
  for (const OnnxValue& input : file.graph.inputs) inputs += stored.contains(input.name) ? 0 : 1;
  for (const OnnxNode& node : file.graph.nodes) {
    // Stored values that were equal to others have names of their own still.
    const bool plain = node.inputs.size() == 1 && node.outputs.size() == 1;
    if (node.op_type == "Identity" && plain && stored.contains(node.inputs[0])) {
      stored.insert(node.outputs[0]);
      continue;
    }
    values += static_cast<int64_t>(node.outputs.size());
    if (node.op_type == "BatchNormalization") ++norms;
    if (node.op_type != "Conv" || node.inputs.size() < 3) continue;
    const auto weight = number_in(node.inputs[1]), bias = number_in(node.inputs[2]);
    if (!weight || !bias) continue;
    first = std::min({first, *weight, *bias});
    ++folded;
  }
  const auto named = std::count_if(stored.begin(), stored.end(), [](std::string_view name) {
    return !name.starts_with(kMadeByPyTorch);
  });
  if (folded < kMoreThanAFew) return false;
  constexpr int64_t kOfEachFolded = 7;
  return first - 1 - inputs - named - norms - values - kOfEachFolded * folded == folded;
}

bool is_statistic_name(std::string_view name) {
  static constexpr std::string_view kEndings[] = {"running_mean", "running_var",
                                                  "num_batches_tracked"};
  return has_ending(name, kEndings);
}

bool is_buffer_name(std::string_view name) {
  static constexpr std::string_view kEndings[] = {"inv_freq",
                                                  "embed_scale",
                                                  "cos_cached",
                                                  "sin_cached",
                                                  "cos",
                                                  "sin",
                                                  "freqs_cos",
                                                  "freqs_sin",
                                                  "causal_mask",
                                                  "tril",
                                                  "triu",
                                                  "position_ids",
                                                  "masked_bias",
                                                  "attn_mask",
                                                  "relative_position_index",
                                                  "token_type_ids",
                                                  "alibi",
                                                  "alibi_bias",
                                                  "relative_coords_table",
                                                  "anchors",
                                                  "anchor_grid",
                                                  "pos_weight"};
  return is_statistic_name(name) || has_ending(name, kEndings);
}

bool is_uniform(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == values.front(); });
}

bool is_additive_mask(const std::vector<double>& values) {
  constexpr double kLargest = -50;  // Swin hides with -100
  double hidden = 0;
  bool shown = false;
  for (double value : values) {
    if (value == 0) {
      shown = true;
    } else if (value <= kLargest && (hidden == 0 || value == hidden)) {
      hidden = value;
    } else {
      return false;
    }
  }
  return shown && hidden != 0;
}

std::optional<RelativeBias> find_relative_bias(const Shape& shape,
                                               const std::vector<double>& values) {
  constexpr int64_t kMaxSide = 64;
  if (shape.size() < 3 || shape.size() > 4 || (shape.size() == 4 && shape[0] != 1))
    return std::nullopt;
  const int64_t heads = shape[shape.size() - 3], n = shape.back();
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(n))));
  if (shape[shape.size() - 2] != n || side * side != n || side < 2 || side > kMaxSide || heads < 1)
    return std::nullopt;
  const int64_t span = 2 * side - 1;
  RelativeBias result{side, heads, std::vector<double>(static_cast<size_t>(span * span * heads)),
                      std::vector<double>(static_cast<size_t>(n * n))};
  std::vector<bool> known(result.table.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t dy = i / side - j / side + side - 1, dx = i % side - j % side + side - 1;
      const int64_t row = dy * span + dx;
      result.index[static_cast<size_t>(i * n + j)] = static_cast<double>(row);
      for (int64_t h = 0; h < heads; ++h) {
        const double value = values[static_cast<size_t>((h * n + i) * n + j)];
        const auto place = static_cast<size_t>(row * heads + h);
        if (known[place] && result.table[place] != value) return std::nullopt;
        known[place] = true;
        result.table[place] = value;
      }
    }
  }
  if (is_uniform(result.table)) return std::nullopt;
  return result;
}

}  // namespace windlass

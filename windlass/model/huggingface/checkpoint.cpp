// Which tensor of a Hugging Face checkpoint is which weight. Weights carry the names of the
// checkpoints already; what is here are the ways in which checkpoints differ among themselves.

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/model/weights.h"

namespace windlass {
namespace {

// Names of the network inside a model with a head.
constexpr std::array<std::string_view, 7> kNetworks = {
    "transformer.", "model.", "bert.", "roberta.", "distilbert.", "gpt_neox.", "vit."};

// Tensors that are one and the same in many models: whichever is stored counts for all.
constexpr std::array<std::string_view, 13> kTiedTables = {"wte.weight",
                                                          "embed_tokens.weight",
                                                          "decoder.embed_tokens.weight",
                                                          "encoder.embed_tokens.weight",
                                                          "shared.weight",
                                                          "embed_in.weight",
                                                          "word_embeddings.weight",
                                                          "embeddings.word_embeddings.weight",
                                                          "lm_head.weight",
                                                          "embed_out.weight",
                                                          "cls.predictions.decoder.weight",
                                                          "vocab_projector.weight",
                                                          "lm_head.decoder.weight"};
constexpr std::array<std::array<std::string_view, 2>, 2> kTiedBiases = {
    {{"cls.predictions.bias", "cls.predictions.decoder.bias"},
     {"lm_head.bias", "lm_head.decoder.bias"}}};

// Heads for a new task, which begin with random values.
constexpr std::array<std::string_view, 4> kNewHeads = {"score.", "classifier.", "qa_outputs.",
                                                       "pre_classifier."};
// Heads of any kind: a checkpoint may have more than the graph.
constexpr std::array<std::string_view, 8> kHeads = {"score.",          "classifier.", "qa_outputs.",
                                                    "pre_classifier.", "cls.",        "pooler.",
                                                    "lm_head.",        "vocab_"};
// Values that follow from the config: masks, angles, numbers of positions.
constexpr std::array<std::string_view, 7> kDerived = {
    ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
    ".rotary_emb.inv_freq", "position_ids",
    // Left over in the published T5; nothing reads it.
    ".EncDecAttention.relative_attention_bias.weight"};

constexpr size_t kListed = 5;

bool starts_with_any(std::string_view name, std::span<const std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return name.starts_with(beginning); });
}

// The name without that of the network.
std::string_view inner_name(std::string_view name) {
  for (std::string_view network : kNetworks)
    if (name.starts_with(network)) return name.substr(network.size());
  return name;
}

// "h" of "transformer.h.0.ln_1.weight": a list of layers, a table, a head.
std::string first_part(std::string_view name) {
  const std::string_view inner = inner_name(name);
  return std::string(inner.substr(0, inner.find('.')));
}

bool is_tied_table(std::string_view name) {
  return std::find(kTiedTables.begin(), kTiedTables.end(), inner_name(name)) != kTiedTables.end();
}

std::string list_some(const std::vector<std::string>& lines, std::string_view separator) {
  std::vector<std::string> some(
      lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(std::min(lines.size(), kListed)));
  if (lines.size() > kListed) some.push_back(fmt::format("and {} more", lines.size() - kListed));
  return join(some, separator);
}

class Matcher {
 public:
  Matcher(const Graph& graph, const Safetensors& checkpoint)
      : graph_(graph), checkpoint_(checkpoint), used_(checkpoint.tensors.size()) {
    for (size_t i = 0; i < checkpoint.tensors.size(); ++i)
      stored_.emplace(checkpoint.tensors[i].name, i);
    for (const Tensor& tensor : graph.tensors)
      if (is_stored(tensor)) {
        tables_ += is_tied_table(tensor.name) ? 1 : 0;
        parts_.insert(first_part(tensor.name));
      }
  }

  std::map<TensorId, WeightLocation> run(std::vector<std::string>& notes) {
    std::map<TensorId, WeightLocation> locations;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      if (!is_stored(tensor)) continue;
      if (auto location = locate(tensor)) locations.emplace(TensorId(t), std::move(*location));
    }
    if (!problems_.empty())
      fail_input("{} of the model's weights do not fit the checkpoint:\n  {}", problems_.size(),
                 list_some(problems_, "\n  "));
    check_rest(notes);
    if (!fresh_.empty())
      notes.push_back(fmt::format("not in the checkpoint, so it begins with random values: {}",
                                  list_some(fresh_, ", ")));
    return locations;
  }

 private:
  static bool is_stored(const Tensor& tensor) {
    return tensor.role == TensorRole::Weight || tensor.role == TensorRole::Buffer;
  }

  std::optional<size_t> find_exactly(const std::string& name) const {
    const auto found = stored_.find(name);
    return found == stored_.end() ? std::nullopt : std::optional(found->second);
  }

  // With the name of any network before it, or none.
  std::optional<size_t> find(const std::string& name) const {
    if (const auto found = find_exactly(name)) return found;
    const std::string inner(inner_name(name));
    if (const auto found = find_exactly(inner)) return found;
    for (std::string_view network : kNetworks)
      for (const std::string& rest : {inner, name})
        if (const auto found = find_exactly(std::string(network) + rest)) return found;
    return std::nullopt;
  }

  std::optional<size_t> find_by_any_name(const std::string& name) const {
    if (const auto found = find(name)) return found;
    for (const auto& [now, before] : {std::pair("LayerNorm.weight", "LayerNorm.gamma"),
                                      std::pair("LayerNorm.bias", "LayerNorm.beta")})
      if (name.ends_with(now)) {
        const size_t end = name.size() - std::string_view(now).size();
        if (const auto found = find(name.substr(0, end) + before)) return found;
      }
    for (const auto& pair : kTiedBiases)
      for (size_t i : {0u, 1u})
        if (name == pair[i])
          if (const auto found = find(std::string(pair[1 - i]))) return found;
    // Only if the graph has a single table: otherwise they are not tied.
    if (tables_ == 1 && is_tied_table(name))
      for (std::string_view other : kTiedTables)
        if (const auto found = find(std::string(other))) return found;
    return std::nullopt;
  }

  bool fits(const StoredTensor& stored, const TensorType& type) {
    if (stored.type.shape == type.shape && is_float(stored.type.dtype) == is_float(type.dtype))
      return true;
    problems_.push_back(fmt::format("{} is {} in the checkpoint, {} in the model",
                                    printable(stored.name, 200), format_type(stored.type),
                                    format_type(type)));
    return false;
  }

  std::optional<WeightLocation> locate(const Tensor& tensor) {
    if (const auto found = find_by_any_name(tensor.name)) {
      used_[*found] = true;
      const StoredTensor& stored = checkpoint_.tensors[*found];
      if (!fits(stored, tensor.type)) return std::nullopt;
      return stored.location;
    }
    if (tensor.name.find(".experts.") != std::string::npos) return locate_experts(tensor);
    if (starts_with_any(tensor.name, kNewHeads))
      fresh_.push_back(tensor.name);
    else
      problems_.push_back(fmt::format("{} is missing", tensor.name));
    return std::nullopt;
  }

  // "experts.w1.weight" [expert, out, in] is stored as "experts.0.w1.weight" [out, in] and so on.
  std::optional<WeightLocation> locate_experts(const Tensor& tensor) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t cut = tensor.name.find(kExperts) + kExperts.size();
    if (tensor.type.shape.empty()) return std::nullopt;
    TensorType type = tensor.type;
    type.shape.erase(type.shape.begin());
    WeightLocation whole;
    for (int64_t expert = 0; expert < tensor.type.shape[0]; ++expert) {
      const std::string name =
          fmt::format("{}{}.{}", tensor.name.substr(0, cut), expert, tensor.name.substr(cut));
      const auto found = find(name);
      if (!found) {
        problems_.push_back(fmt::format("{} is missing", name));
        return std::nullopt;
      }
      used_[*found] = true;
      const StoredTensor& stored = checkpoint_.tensors[*found];
      if (!fits(stored, type)) return std::nullopt;
      if (whole.parts.empty()) whole.dtype = stored.type.dtype;
      if (stored.type.dtype != whole.dtype) {
        problems_.push_back(fmt::format("{} is {}, expert 0 is {}", name,
                                        dtype_name(stored.type.dtype), dtype_name(whole.dtype)));
        return std::nullopt;
      }
      whole.bytes = checked_add(whole.bytes, stored.location.bytes);
      whole.parts.push_back(stored.location);
    }
    return whole;
  }

  // What the checkpoint has beyond the graph.
  void check_rest(std::vector<std::string>& notes) const {
    std::vector<std::string> heads, unknown;
    for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
      const std::string& name = checkpoint_.tensors[i].name;
      if (used_[i] || is_derived(name)) continue;
      // Stored twice: the graph has one weight for both.
      if (tables_ == 1 && is_tied_table(name)) continue;
      // A part of which the graph has nothing is another head, or a decoder; one more layer of a
      // part that it has would be a mistake.
      if (starts_with_any(inner_name(name), kHeads) || !parts_.contains(first_part(name)))
        heads.push_back(printable(name, 200));
      else
        unknown.push_back(printable(name, 200));
    }
    if (!unknown.empty())
      fail_input("{} tensors of the checkpoint have no place in the model:\n  {}", unknown.size(),
                 list_some(unknown, "\n  "));
    if (!heads.empty())
      notes.push_back(fmt::format("the checkpoint has parts that the model has not: {}",
                                  list_some(heads, ", ")));
  }

  static bool is_derived(std::string_view name) {
    return std::any_of(kDerived.begin(), kDerived.end(),
                       [&](std::string_view ending) { return name.ends_with(ending); });
  }

  const Graph& graph_;
  const Safetensors& checkpoint_;
  std::unordered_map<std::string, size_t> stored_;
  std::vector<bool> used_;
  std::vector<std::string> problems_, fresh_;
  std::set<std::string> parts_;  // of the graph
  int tables_ = 0;               // weights that could be tied to one another
};

}  // namespace

std::map<TensorId, WeightLocation> hf_weights(const Graph& graph, const Safetensors& checkpoint,
                                              std::vector<std::string>& notes) {
  return Matcher(graph, checkpoint).run(notes);
}

}  // namespace windlass

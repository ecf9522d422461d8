// Falcon. Three generations in one config class: 7B (one key head, attention and feed-forward part
// in parallel behind one norm), 40B and 180B (`new_decoder_architecture`: groups of heads share a
// key head, two norms) and RW (one key head per head, parts in sequence, ALiBi instead of rotary
// positions).

#include <algorithm>
#include <bit>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

// Fields and defaults of FalconConfig.
struct FalconConfig {
  int64_t vocabulary, positions, hidden, layers, heads, key_heads, inner;
  Activation activation;
  double theta, dropout, attention_dropout, epsilon;
  bool grouped;      // new_decoder_architecture
  bool multi_query;  // one key head for all
  bool parallel, bias, alibi, tied;
  bool two_norms;  // of the parallel parts
};

// Linear biases of Press et al. 2022: head i of a power of two n has slope 2^(-8 i / n); further
// heads take every other slope of twice as many. Falcon scales them with the scores.
TensorId alibi_bias(Layers& net, const FalconConfig& config, int64_t sequence) {
  const auto heads = static_cast<uint64_t>(config.heads);
  const uint64_t power = std::bit_floor(heads);
  std::vector<double> slopes;
  for (uint64_t i = 1; i <= power; ++i)
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(power)));
  for (uint64_t i = 1; slopes.size() < heads; i += 2)
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(i) / static_cast<double>(power)));
  const double scale = 1 / std::sqrt(static_cast<double>(config.hidden / config.heads));
  for (double& slope : slopes) slope *= scale;
  std::vector<double> positions(static_cast<size_t>(sequence));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<double>(i);
  GraphBuilder& builder = net.builder();
  const TensorId slope =
      builder.constant("alibi.slopes", {DType::F32, {1, config.heads, 1, 1}}, std::move(slopes));
  const TensorId position =
      builder.constant("alibi.positions", {DType::F32, {1, 1, 1, sequence}}, std::move(positions));
  return net.mul(slope, position, "alibi");
}

TensorId attention(Layers& net, TensorId x, const FalconConfig& config, TensorId bias,
                   const std::string& name) {
  const int64_t width = config.hidden / config.heads;
  const int64_t group = config.heads / config.key_heads;
  const int64_t batch = net.dim(x, 0), sequence = net.dim(x, 1);
  const int64_t fused_width =
      checked_add(config.hidden, checked_mul(2, checked_mul(config.key_heads, width)));
  TensorId fused = net.linear(x, fused_width, name + ".query_key_value", config.bias);
  // Each group's queries, key and value lie side by side: [b, s, key heads, (group + 2) d].
  fused = net.reshape(fused, {batch, sequence, config.key_heads, (group + 2) * width},
                      name + ".groups");
  const auto parts = net.split(fused, {group * width, width, width}, 3, name + ".qkv");
  TensorId q = net.reshape(parts[0], {batch, sequence, config.heads, width}, name + ".query");
  q = net.transpose(q, {0, 2, 1, 3}, name + ".query.heads_first");
  TensorId k = net.transpose(parts[1], {0, 2, 1, 3}, name + ".key.heads_first");
  const TensorId v = net.transpose(parts[2], {0, 2, 1, 3}, name + ".value.heads_first");
  if (!config.alibi) {
    const RotaryAttrs rotary{.theta = config.theta, .dims = width};
    q = net.rotary(q, rotary, name + ".rotary_q");
    k = net.rotary(k, rotary, name + ".rotary_k");
  }
  const TensorId mixed =
      attend(net, q, k, v, {.causal = true, .dropout = config.attention_dropout}, name, bias);
  return net.linear(mixed, config.hidden, name + ".dense", config.bias);
}

TensorId feed_forward(Layers& net, TensorId x, const FalconConfig& config,
                      const std::string& name) {
  TensorId y = net.linear(x, config.inner, name + ".dense_h_to_4h", config.bias);
  y = activate(net, y, config.activation, name + ".act");
  return net.linear(y, config.hidden, name + ".dense_4h_to_h", config.bias);
}

TensorId block(Layers& net, TensorId x, const FalconConfig& config, TensorId bias,
               const std::string& name) {
  const auto norm = [&](TensorId input, const char* part) {
    return net.layer_norm(input, name + part, config.epsilon);
  };
  const TensorId first = norm(x, config.two_norms ? ".ln_attn" : ".input_layernorm");
  const TensorId second = config.two_norms ? norm(x, ".ln_mlp") : first;
  const TensorId attended = attention(net, first, config, bias, name + ".self_attention");
  TensorId y;
  if (config.parallel) {
    y = net.add(feed_forward(net, second, config, name + ".mlp"), attended, name + ".add_1");
  } else {
    x = net.add(x, net.dropout(attended, config.attention_dropout, name + ".dropout_1"),
                name + ".add_1");
    y = feed_forward(net, norm(x, ".post_attention_layernorm"), config, name + ".mlp");
  }
  return net.add(x, net.dropout(y, config.dropout, name + ".dropout_2"), name + ".add_2");
}

}  // namespace

Graph import_falcon(const ConfigReader& reader, ImportRequest& request) {
  FalconConfig config{
      .vocabulary = reader.size({"vocab_size"}, 65024),
      .positions = reader.size({"max_position_embeddings"}, 2048),
      .hidden = reader.size({"hidden_size", "n_embed"}, 4544),
      .layers = reader.layers({"num_hidden_layers", "n_layer"}, 32),
      .heads = reader.heads({"num_attention_heads", "n_head"}, 71),
      .key_heads = 1,
      .inner = 0,
      .activation = reader.activation({"activation"}, "gelu"),
      .theta = rotary_theta(reader, 10000),
      .dropout = reader.dropout({"hidden_dropout"}, 0),
      .attention_dropout = reader.dropout({"attention_dropout"}, 0),
      .epsilon = reader.epsilon({"layer_norm_epsilon"}, 1e-5),
      .grouped = reader.boolean({"new_decoder_architecture"}, false),
      .multi_query = reader.boolean({"multi_query"}, true),
      .parallel = reader.boolean({"parallel_attn"}, true),
      .bias = reader.boolean({"bias"}, false),
      .alibi = reader.boolean({"alibi"}, false),
      .tied = reader.boolean({"tie_word_embeddings"}, true),
      .two_norms = false,
  };
  if (config.grouped && !config.parallel)
    fail_unsupported(
        "key \"parallel_attn\" is false with new_decoder_architecture; no Falcon is "
        "built that way");
  config.two_norms = config.grouped && reader.integer({"num_ln_in_parallel_attn"}, 2, 1, 2) == 2;
  config.inner = reader.size({"ffn_hidden_size"}, 4 * config.hidden);
  if (config.grouped)
    config.key_heads = reader.heads({"num_kv_heads", "n_head_kv"}, config.heads);
  else if (!config.multi_query)
    config.key_heads = config.heads;
  check_key_heads(config.heads, config.key_heads);
  const int64_t width = head_size(config.hidden, config.heads);
  if (!config.alibi && width % 2 != 0)
    fail_input("a head size of {} cannot be rotated in pairs", width);
  const TextSize size = request.text_size(config.positions, kDecoderTokens, false);

  Layers net(request.name);
  const std::string prefix = module_prefix(request.task, "transformer");
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.hidden, prefix + "word_embeddings");
  const TensorId bias = config.alibi ? alibi_bias(net, config, size.sequence) : TensorId();
  for (int64_t i = 0; i < config.layers; ++i)
    x = block(net, x, config, bias, fmt::format("{}h.{}", prefix, i));
  x = net.layer_norm(x, prefix + "ln_f", config.epsilon);
  DecoderHead head{
      .vocabulary = config.vocabulary,
      .token_classifier = "classifier",
      .classifier_dropout = reader.dropout({"classifier_dropout", "hidden_dropout"}, 0)};
  if (config.tied)
    head.table = net.weight(prefix + "word_embeddings.weight", {config.vocabulary, config.hidden});
  return finish_decoder(net, x, request.task, head);
}

}  // namespace windlass

// GPT-NeoX (Pythia) and Phi: decoders with partly rotated heads whose attention and feed-forward
// part read the same input and are added together.

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

// Fields that GPTNeoXConfig and PhiConfig have in common.
struct NeoxConfig {
  int64_t vocabulary, positions, hidden, layers, heads, key_heads, inner;
  Activation activation;
  RotaryAttrs rotary;
  double embedding_dropout, residual_dropout, attention_dropout, epsilon;
  bool tied;
};

TensorId gpt_neox_attention(Layers& net, TensorId x, const NeoxConfig& config, bool bias,
                            const std::string& name) {
  const int64_t width = config.hidden / config.heads;
  // Each head's query, key and value lie side by side.
  TensorId fused = net.linear(x, checked_mul(3, config.hidden), name + ".query_key_value", bias);
  fused = net.split_heads(fused, config.heads, name + ".query_key_value");
  const auto parts = net.split(fused, {width, width, width}, 3, name + ".qkv");
  const TensorId q = net.rotary(parts[0], config.rotary, name + ".rotary_q");
  const TensorId k = net.rotary(parts[1], config.rotary, name + ".rotary_k");
  const TensorId mixed =
      attend(net, q, k, parts[2], {.causal = true, .dropout = config.attention_dropout}, name);
  const TensorId y = net.linear(mixed, config.hidden, name + ".dense", bias);
  return net.dropout(y, config.residual_dropout, name + ".dropout");
}

TensorId phi_attention(Layers& net, TensorId x, const NeoxConfig& config, bool normalize,
                       const std::string& name) {
  const int64_t width = config.hidden / config.heads;
  const auto heads = [&](int64_t count, const std::string& part) {
    return net.split_heads(net.linear(x, checked_mul(count, width), name + part), count,
                           name + part);
  };
  TensorId q = heads(config.heads, ".q_proj"), k = heads(config.key_heads, ".k_proj");
  const TensorId v = heads(config.key_heads, ".v_proj");
  if (normalize) {
    q = net.layer_norm(q, name + ".q_layernorm", config.epsilon);
    k = net.layer_norm(k, name + ".k_layernorm", config.epsilon);
  }
  q = net.rotary(q, config.rotary, name + ".rotary_q");
  k = net.rotary(k, config.rotary, name + ".rotary_k");
  const TensorId mixed =
      attend(net, q, k, v, {.causal = true, .dropout = config.attention_dropout}, name);
  const TensorId y = net.linear(mixed, config.hidden, name + ".dense");
  return net.dropout(y, config.residual_dropout, name + ".dropout");
}

TensorId feed_forward(Layers& net, TensorId x, const NeoxConfig& config, const std::string& name,
                      const std::string& up, const std::string& down) {
  TensorId y = net.linear(x, config.inner, name + up);
  y = activate(net, y, config.activation, name + ".act");
  y = net.linear(y, config.hidden, name + down);
  return net.dropout(y, config.residual_dropout, name + ".dropout");
}

}  // namespace

Graph import_gpt_neox(const ConfigReader& reader, ImportRequest& request) {
  NeoxConfig config{
      .vocabulary = reader.size({"vocab_size"}, 50432),
      .positions = reader.size({"max_position_embeddings"}, 2048),
      .hidden = reader.size({"hidden_size"}, 6144),
      .layers = reader.layers({"num_hidden_layers"}, 44),
      .heads = reader.heads({"num_attention_heads"}, 64),
      .key_heads = 0,
      .inner = reader.size({"intermediate_size"}, 24576),
      .activation = reader.activation({"hidden_act"}, "gelu"),
      .rotary = {.theta = rotary_theta(reader, 10000)},
      .embedding_dropout = reader.dropout({"hidden_dropout"}, 0),
      .residual_dropout = reader.dropout({"hidden_dropout"}, 0),
      .attention_dropout = reader.dropout({"attention_dropout"}, 0),
      .epsilon = reader.epsilon({"layer_norm_eps"}, 1e-5),
      .tied = reader.boolean({"tie_word_embeddings"}, false),
  };
  const bool parallel = reader.boolean({"use_parallel_residual"}, true);
  const bool bias = reader.boolean({"attention_bias"}, true);
  config.rotary.dims = rotary_dims(reader, head_size(config.hidden, config.heads), 0.25);
  const TextSize size = request.text_size(config.positions, kDecoderTokens, false);

  Layers net(request.name);
  const std::string prefix = module_prefix(request.task, "gpt_neox");
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.hidden, prefix + "embed_in");
  x = net.dropout(x, config.embedding_dropout, prefix + "emb_dropout");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}", prefix, i);
    TensorId y = net.layer_norm(x, layer + ".input_layernorm", config.epsilon);
    y = gpt_neox_attention(net, y, config, bias, layer + ".attention");
    const TensorId attended = net.add(x, y, layer + ".add_1");
    y = net.layer_norm(parallel ? x : attended, layer + ".post_attention_layernorm",
                       config.epsilon);
    y = feed_forward(net, y, config, layer + ".mlp", ".dense_h_to_4h", ".dense_4h_to_h");
    x = net.add(attended, y, layer + ".add_2");
  }
  x = net.layer_norm(x, prefix + "final_layer_norm", config.epsilon);
  DecoderHead head{.vocabulary = config.vocabulary,
                   .output = "embed_out",
                   .token_classifier = "classifier",
                   .classifier_dropout = reader.dropout({"classifier_dropout"}, 0.1)};
  if (config.tied)
    head.table = net.weight(prefix + "embed_in.weight", {config.vocabulary, config.hidden});
  return finish_decoder(net, x, request.task, head);
}

Graph import_phi(const ConfigReader& reader, ImportRequest& request) {
  NeoxConfig config{
      .vocabulary = reader.size({"vocab_size"}, 51200),
      .positions = reader.size({"max_position_embeddings"}, 2048),
      .hidden = reader.size({"hidden_size"}, 2048),
      .layers = reader.layers({"num_hidden_layers"}, 24),
      .heads = reader.heads({"num_attention_heads"}, 32),
      .key_heads = 0,
      .inner = reader.size({"intermediate_size"}, 8192),
      .activation = reader.activation({"hidden_act"}, "gelu_new"),
      .rotary = {.theta = rotary_theta(reader, 10000)},
      .embedding_dropout = reader.dropout({"embd_pdrop"}, 0),
      .residual_dropout = reader.dropout({"resid_pdrop"}, 0),
      .attention_dropout = reader.dropout({"attention_dropout"}, 0),
      .epsilon = reader.epsilon({"layer_norm_eps"}, 1e-5),
      .tied = reader.boolean({"tie_word_embeddings"}, false),
  };
  const bool normalize = reader.boolean({"qk_layernorm"}, false);
  config.key_heads = reader.heads({"num_key_value_heads"}, config.heads);
  check_key_heads(config.heads, config.key_heads);
  config.rotary.dims = rotary_dims(reader, head_size(config.hidden, config.heads), 0.5);
  const TextSize size = request.text_size(config.positions, kDecoderTokens, false);

  Layers net(request.name);
  const std::string prefix = module_prefix(request.task, "model");
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.hidden, prefix + "embed_tokens");
  x = net.dropout(x, config.embedding_dropout, prefix + "embed_dropout");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}", prefix, i);
    const TensorId y = net.layer_norm(x, layer + ".input_layernorm", config.epsilon);
    const TensorId attended = phi_attention(net, y, config, normalize, layer + ".self_attn");
    const TensorId fed = feed_forward(net, y, config, layer + ".mlp", ".fc1", ".fc2");
    x = net.add(x, net.add(attended, fed, layer + ".add_1"), layer + ".add_2");
  }
  x = net.layer_norm(x, prefix + "final_layernorm", config.epsilon);
  DecoderHead head{
      .vocabulary = config.vocabulary, .output_bias = true, .token_classifier = "classifier"};
  if (config.tied)
    head.table = net.weight(prefix + "embed_tokens.weight", {config.vocabulary, config.hidden});
  return finish_decoder(net, x, request.task, head);
}

}  // namespace windlass

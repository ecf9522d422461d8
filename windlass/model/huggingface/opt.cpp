// OPT: decoder with learned positions (two rows of the table are never used), norms before each
// part, or after it in the 350M model, whose embedding is also narrower than the network.

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

constexpr int64_t kUnusedPositions = 2;

// Fields and defaults of OPTConfig.
struct OptConfig {
  int64_t vocabulary, positions, hidden, embedding, layers, heads, inner;
  Activation activation;
  double dropout, attention_dropout;
  bool norm_first, final_norm, bias, affine, tied;
};

TensorId norm(Layers& net, TensorId x, const OptConfig& config, const std::string& name) {
  constexpr double kEpsilon = 1e-5;
  if (config.affine) return net.layer_norm(x, name, kEpsilon);
  return net.builder().op(OpKind::LayerNorm, LayerNormAttrs{.axis = 2, .epsilon = kEpsilon}, {x},
                          name);
}

TensorId attention(Layers& net, TensorId x, const OptConfig& config, const std::string& name) {
  const auto heads = [&](const std::string& part) {
    return net.split_heads(net.linear(x, config.hidden, name + part, config.bias), config.heads,
                           name + part);
  };
  const TensorId q = heads(".q_proj"), k = heads(".k_proj"), v = heads(".v_proj");
  const TensorId mixed =
      attend(net, q, k, v, {.causal = true, .dropout = config.attention_dropout}, name);
  const TensorId y = net.linear(mixed, config.hidden, name + ".out_proj", config.bias);
  return net.dropout(y, config.dropout, name + ".dropout");
}

TensorId feed_forward(Layers& net, TensorId x, const OptConfig& config, const std::string& name) {
  TensorId y = net.linear(x, config.inner, name + ".fc1", config.bias);
  y = activate(net, y, config.activation, name + ".act");
  y = net.linear(y, config.hidden, name + ".fc2", config.bias);
  return net.dropout(y, config.dropout, name + ".dropout");
}

TensorId block(Layers& net, TensorId x, const OptConfig& config, const std::string& name) {
  const std::string first = name + ".self_attn_layer_norm", second = name + ".final_layer_norm";
  TensorId y = config.norm_first ? norm(net, x, config, first) : x;
  x = net.add(x, attention(net, y, config, name + ".self_attn"), name + ".add_1");
  if (!config.norm_first) x = norm(net, x, config, first);
  y = config.norm_first ? norm(net, x, config, second) : x;
  x = net.add(x, feed_forward(net, y, config, name), name + ".add_2");
  return config.norm_first ? x : norm(net, x, config, second);
}

}  // namespace

Graph import_opt(const ConfigReader& reader, ImportRequest& request) {
  OptConfig config{
      .vocabulary = reader.size({"vocab_size"}, 50272),
      .positions = reader.size({"max_position_embeddings"}, 2048),
      .hidden = reader.size({"hidden_size", "d_model"}, 768),
      .embedding = 0,
      .layers = reader.layers({"num_hidden_layers"}, 12),
      .heads = reader.heads({"num_attention_heads"}, 12),
      .inner = reader.size({"ffn_dim"}, 3072),
      .activation = reader.activation({"activation_function"}, "relu"),
      .dropout = reader.dropout({"dropout"}, 0.1),
      .attention_dropout = reader.dropout({"attention_dropout"}, 0),
      .norm_first = reader.boolean({"do_layer_norm_before"}, true),
      .final_norm = !reader.boolean({"_remove_final_layer_norm"}, false),
      .bias = reader.boolean({"enable_bias"}, true),
      .affine = reader.boolean({"layer_norm_elementwise_affine"}, true),
      .tied = reader.boolean({"tie_word_embeddings"}, true),
  };
  config.embedding = reader.size({"word_embed_proj_dim"}, config.hidden);
  head_size(config.hidden, config.heads);
  const TextSize size = request.text_size(config.positions, kDecoderTokens, true);

  Layers net(request.name);
  const std::string prefix = module_prefix(request.task, "model") + "decoder.";
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.embedding, prefix + "embed_tokens");
  if (config.embedding != config.hidden)
    x = net.linear(x, config.hidden, prefix + "project_in", false);
  x = net.add(x,
              position_rows(net, prefix + "embed_positions",
                            checked_add(config.positions, kUnusedPositions), config.hidden,
                            kUnusedPositions, size.sequence),
              prefix + "embed_positions.add");
  for (int64_t i = 0; i < config.layers; ++i)
    x = block(net, x, config, fmt::format("{}layers.{}", prefix, i));
  if (config.norm_first && config.final_norm) x = norm(net, x, config, prefix + "final_layer_norm");
  if (config.embedding != config.hidden)
    x = net.linear(x, config.embedding, prefix + "project_out", false);
  DecoderHead head{.vocabulary = config.vocabulary};
  if (config.tied)
    head.table = net.weight(prefix + "embed_tokens.weight", {config.vocabulary, config.embedding});
  return finish_decoder(net, x, request.task, head);
}

}  // namespace windlass

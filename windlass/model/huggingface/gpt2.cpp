#include "windlass/model/huggingface/gpt2.h"

#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

TensorId attention(Layers& net, TensorId x, const Gpt2Config& config, int64_t layer,
                   const std::string& name) {
  const int64_t width = config.hidden;
  const TensorId fused = net.linear_input_major(x, checked_mul(3, width), name + ".c_attn");
  const auto parts = net.split(fused, {width, width, width}, 2, name + ".qkv");
  AttentionAttrs attrs{.causal = true, .dropout = config.attention_dropout};
  if (!config.scale_by_width)
    attrs.scale = std::sqrt(static_cast<double>(head_size(width, config.heads)));
  if (config.scale_by_layer) attrs.scale /= static_cast<double>(layer + 1);
  const TensorId q = net.split_heads(parts[0], config.heads, name + ".query");
  const TensorId k = net.split_heads(parts[1], config.heads, name + ".key");
  const TensorId v = net.split_heads(parts[2], config.heads, name + ".value");
  const TensorId mixed = attend(net, q, k, v, attrs, name + ".attention");
  const TensorId y = net.linear_input_major(mixed, width, name + ".c_proj");
  return net.dropout(y, config.residual_dropout, name + ".resid_dropout");
}

TensorId feed_forward(Layers& net, TensorId x, const Gpt2Config& config, const std::string& name) {
  TensorId y = net.linear_input_major(x, config.inner, name + ".c_fc");
  y = activate(net, y, config.activation, name + ".act");
  y = net.linear_input_major(y, config.hidden, name + ".c_proj");
  return net.dropout(y, config.residual_dropout, name + ".dropout");
}

}  // namespace

Graph build_gpt2(const std::string& name, const Gpt2Config& config, const ModelTask& task,
                 const TextSize& size) {
  head_size(config.hidden, config.heads);  // refuses heads that do not fit
  Layers net(name);
  const std::string prefix = module_prefix(task, "transformer");
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.hidden, prefix + "wte");
  x = net.add(x,
              position_rows(net, prefix + "wpe", config.positions, config.hidden, 0, size.sequence),
              prefix + "wpe.add");
  x = net.dropout(x, config.embedding_dropout, prefix + "drop");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("{}h.{}", prefix, i);
    TensorId y = net.layer_norm(x, layer + ".ln_1", config.epsilon);
    x = net.add(x, attention(net, y, config, i, layer + ".attn"), layer + ".add_1");
    y = net.layer_norm(x, layer + ".ln_2", config.epsilon);
    x = net.add(x, feed_forward(net, y, config, layer + ".mlp"), layer + ".add_2");
  }
  x = net.layer_norm(x, prefix + "ln_f", config.epsilon);
  DecoderHead head{.vocabulary = config.vocabulary,
                   .token_classifier = "classifier",
                   .classifier_dropout = config.classifier_dropout};
  if (config.tied)
    head.table = net.weight(prefix + "wte.weight", {config.vocabulary, config.hidden});
  return finish_decoder(net, x, task, head);
}

Graph import_gpt2(const ConfigReader& reader, ImportRequest& request) {
  if (reader.boolean({"add_cross_attention"}, false))
    fail_unsupported(
        "key \"add_cross_attention\" is true; GPT-2 as a decoder of another model is "
        "not known");
  const Gpt2Config d;
  Gpt2Config config{
      .vocabulary = reader.size({"vocab_size"}, d.vocabulary),
      .positions = reader.size({"n_positions", "max_position_embeddings"}, d.positions),
      .hidden = reader.size({"n_embd", "hidden_size"}, d.hidden),
      .layers = reader.layers({"n_layer", "num_hidden_layers"}, d.layers),
      .heads = reader.heads({"n_head", "num_attention_heads"}, d.heads),
      .activation = reader.activation({"activation_function"}, "gelu_new"),
      .embedding_dropout = reader.dropout({"embd_pdrop"}, d.embedding_dropout),
      .attention_dropout = reader.dropout({"attn_pdrop"}, d.attention_dropout),
      .residual_dropout = reader.dropout({"resid_pdrop"}, d.residual_dropout),
      .classifier_dropout = reader.dropout({"classifier_dropout", "hidden_dropout"}, 0.1),
      .epsilon = reader.epsilon({"layer_norm_epsilon"}, d.epsilon),
      .scale_by_width = reader.boolean({"scale_attn_weights"}, true),
      .scale_by_layer = reader.boolean({"scale_attn_by_inverse_layer_idx"}, false),
      .tied = reader.boolean({"tie_word_embeddings"}, true),
  };
  config.inner = reader.size({"n_inner"}, 4 * config.hidden);
  const TextSize size = request.text_size(config.positions, kDecoderTokens, true);
  return build_gpt2(request.name, config, request.task, size);
}

}  // namespace windlass

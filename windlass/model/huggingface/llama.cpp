#include "windlass/model/huggingface/llama.h"

#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

TensorId attention(Layers& net, TensorId x, const LlamaConfig& config, int64_t layer,
                   const std::string& name) {
  const auto heads = [&](int64_t count, const std::string& part) {
    const int64_t width = checked_mul(count, config.head_size);
    return net.split_heads(net.linear(x, width, name + part, config.query_bias), count,
                           name + part);
  };
  const RotaryAttrs rotary{.theta = config.theta, .dims = config.head_size};
  const TensorId q = net.rotary(heads(config.heads, ".q_proj"), rotary, name + ".rotary_q");
  const TensorId k = net.rotary(heads(config.key_heads, ".k_proj"), rotary, name + ".rotary_k");
  const TensorId v = heads(config.key_heads, ".v_proj");
  const AttentionAttrs attrs{.causal = true,
                             .window = layer >= config.first_window_layer ? config.window : 0,
                             .dropout = config.attention_dropout};
  return net.linear(attend(net, q, k, v, attrs, name), config.hidden, name + ".o_proj",
                    config.output_bias);
}

TensorId feed_forward(Layers& net, TensorId x, const LlamaConfig& config, const std::string& name) {
  const bool bias = config.feed_forward_bias;
  const TensorId gate = activate(net, net.linear(x, config.inner, name + ".gate_proj", bias),
                                 config.activation, name + ".act");
  const TensorId up = net.linear(x, config.inner, name + ".up_proj", bias);
  return net.linear(net.mul(gate, up, name + ".gated"), config.hidden, name + ".down_proj", bias);
}

// The checkpoint has one matrix per expert; here those of one kind are stacked [expert, out, in].
TensorId mixture(Layers& net, TensorId x, const LlamaConfig& config, const std::string& name) {
  GraphBuilder& builder = net.builder();
  const Shape sizes = net.shape(x);
  const TensorId tokens =
      net.reshape(x, {checked_mul(sizes[0], sizes[1]), config.hidden}, name + ".tokens");
  const TensorId logits = net.linear(tokens, config.experts, name + ".gate", false);
  const auto routed = builder.add(OpKind::Route, RouteAttrs{.top_k = config.chosen_experts},
                                  {logits}, name + ".route");
  const TensorId weights = routed[0], chosen = routed[1];
  const auto expert_linear = [&](TensorId input, int64_t out, const std::string& part) {
    const std::string path = name + ".experts." + part;
    const TensorId matrix =
        net.weight(path + ".weight", {config.experts, out, net.shape(input).back()});
    return builder.op(OpKind::GroupedLinear, NoAttrs{}, {input, matrix, chosen}, path);
  };
  const TensorId gate = activate(net, expert_linear(tokens, config.inner, "w1"), config.activation,
                                 name + ".experts.act");
  const TensorId up = expert_linear(tokens, config.inner, "w3");
  const TensorId down =
      expert_linear(net.mul(gate, up, name + ".experts.gated"), config.hidden, "w2");
  const TensorId mixed = builder.op(OpKind::Combine, NoAttrs{}, {down, weights}, name + ".combine");
  return net.reshape(mixed, sizes, name + ".join");
}

LlamaConfig read_config(const ConfigReader& reader, LlamaConfig d) {
  LlamaConfig config = d;
  config.vocabulary = reader.size({"vocab_size"}, d.vocabulary);
  config.positions = reader.size({"max_position_embeddings"}, d.positions);
  config.hidden = reader.size({"hidden_size"}, d.hidden);
  config.inner = reader.size({"intermediate_size"}, d.inner);
  config.layers = reader.layers({"num_hidden_layers"}, d.layers);
  config.heads = reader.heads({"num_attention_heads"}, d.heads);
  config.theta = rotary_theta(reader, d.theta);
  config.epsilon = reader.epsilon({"rms_norm_eps"}, d.epsilon);
  config.attention_dropout = reader.dropout({"attention_dropout"}, 0);
  config.classifier_dropout = reader.dropout({"classifier_dropout", "hidden_dropout"}, 0.1);
  config.tied = reader.boolean({"tie_word_embeddings"}, d.tied);
  return config;
}

// Key heads default to `key_heads`, or to one for each query head if that is 0 or the key is null;
// the size of a head to `width`, or to its share of the hidden size if that is 0.
void read_heads(const ConfigReader& reader, LlamaConfig& config, int64_t key_heads,
                int64_t width = 0) {
  if (key_heads == 0 || reader.is_null("num_key_value_heads")) key_heads = config.heads;
  config.key_heads = reader.heads({"num_key_value_heads"}, key_heads);
  check_key_heads(config.heads, config.key_heads);
  const bool is_share = width == 0 && !reader.has({"head_dim"});
  config.head_size =
      is_share ? head_size(config.hidden, config.heads) : reader.size({"head_dim"}, width);
  if (config.head_size % 2 != 0)
    fail_input("a head size of {} cannot be rotated in pairs", config.head_size);
}

Graph build(const LlamaConfig& config, ImportRequest& request) {
  const TextSize size = request.text_size(config.positions, kDecoderTokens, false);
  return build_llama(request.name, config, request.task, size);
}

}  // namespace

Graph build_llama(const std::string& name, const LlamaConfig& config, const ModelTask& task,
                  const TextSize& size) {
  Layers net(name);
  const bool is_answering = task.head == Head::QuestionAnswering;
  const std::string prefix = module_prefix(task, is_answering ? "transformer" : "model");
  const auto norm = [&](TensorId x, const std::string& path) {
    return net.rms_norm(x, path, config.epsilon, config.norm_offset);
  };
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.hidden, prefix + "embed_tokens");
  if (config.scale_embedding)
    x = net.scale(x, std::sqrt(static_cast<double>(config.hidden)), prefix + "embed_tokens.scale");
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string layer = fmt::format("{}layers.{}", prefix, i);
    TensorId y = norm(x, layer + ".input_layernorm");
    x = net.add(x, attention(net, y, config, i, layer + ".self_attn"), layer + ".add_1");
    y = norm(x, layer + ".post_attention_layernorm");
    y = config.experts > 0 ? mixture(net, y, config, layer + ".block_sparse_moe")
                           : feed_forward(net, y, config, layer + ".mlp");
    x = net.add(x, y, layer + ".add_2");
  }
  x = norm(x, prefix + "norm");
  DecoderHead head{.vocabulary = config.vocabulary,
                   .classifier_dropout = config.classifier_dropout};
  if (config.tied)
    head.table = net.weight(prefix + "embed_tokens.weight", {config.vocabulary, config.hidden});
  return finish_decoder(net, x, task, head);
}

Graph import_llama(const ConfigReader& reader, ImportRequest& request) {
  LlamaConfig config = read_config(reader, {});
  config.activation = reader.activation({"hidden_act"}, "silu");
  config.query_bias = config.output_bias = reader.boolean({"attention_bias"}, false);
  config.feed_forward_bias = reader.boolean({"mlp_bias"}, false);
  read_heads(reader, config, 0);
  return build(config, request);
}

Graph import_mistral(const ConfigReader& reader, ImportRequest& request) {
  LlamaConfig config = read_config(reader, {.positions = 131072, .inner = 14336});
  config.activation = reader.activation({"hidden_act"}, "silu");
  if (!reader.is_null("sliding_window")) config.window = reader.size({"sliding_window"}, 4096);
  read_heads(reader, config, 8);
  return build(config, request);
}

Graph import_qwen2(const ConfigReader& reader, ImportRequest& request) {
  LlamaConfig config =
      read_config(reader, {.vocabulary = 151936, .positions = 32768, .inner = 22016});
  config.activation = reader.activation({"hidden_act"}, "silu");
  config.query_bias = true;
  if (reader.boolean({"use_sliding_window"}, false) && !reader.is_null("sliding_window")) {
    config.window = reader.size({"sliding_window"}, 4096);
    config.first_window_layer = reader.integer({"max_window_layers"}, 28, 0, INT32_MAX);
  }
  read_heads(reader, config, 32);
  return build(config, request);
}

Graph import_gemma(const ConfigReader& reader, ImportRequest& request) {
  LlamaConfig config = read_config(reader, {.vocabulary = 256000,
                                            .positions = 8192,
                                            .hidden = 3072,
                                            .inner = 24576,
                                            .layers = 28,
                                            .heads = 16,
                                            .tied = true});
  // Early configs say "gelu" in hidden_act where the tanh approximation is meant.
  config.activation = reader.activation({"hidden_activation"}, "gelu_pytorch_tanh");
  config.query_bias = config.output_bias = reader.boolean({"attention_bias"}, false);
  config.norm_offset = 1;
  config.scale_embedding = true;
  read_heads(reader, config, 16, 256);
  return build(config, request);
}

Graph import_mixtral(const ConfigReader& reader, ImportRequest& request) {
  LlamaConfig config =
      read_config(reader, {.positions = 131072, .inner = 14336, .theta = 1e6, .epsilon = 1e-5});
  config.activation = reader.activation({"hidden_act"}, "silu");
  if (const auto window = reader.optional_size({"sliding_window"})) config.window = *window;
  config.experts = reader.integer({"num_local_experts"}, 8, 1, 65536);
  config.chosen_experts = reader.integer({"num_experts_per_tok"}, 2, 1, config.experts);
  read_heads(reader, config, 8);
  return build(config, request);
}

}  // namespace windlass

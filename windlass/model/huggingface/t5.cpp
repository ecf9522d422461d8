// T5: encoder and decoder with a learned bias by relative position instead of position embeddings,
// RMS norms, no biases elsewhere, and attention scores that are not scaled. Encoder and decoder
// have the same sequence length here.

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

// Fields and defaults of T5Config.
struct T5Config {
  int64_t vocabulary, hidden, head_size, heads, inner, layers, decoder_layers, buckets, reach;
  Activation activation;
  double dropout, epsilon;
  bool gated, tied;
};

// One of the two stacks under construction.
struct Stack {
  std::string name;
  bool decoder = false;
  TensorId bias = {};     // of self-attention, [heads, s, s]
  TensorId encoded = {};  // what cross-attention reads
};

// Bucket of key position minus query position: half of the buckets (of one sign, for the encoder)
// are exact, the others grow logarithmically up to `reach`.
int64_t bucket_of(int64_t distance, int64_t buckets, int64_t reach, bool both_signs) {
  int64_t first = 0;
  if (both_signs) {
    buckets /= 2;
    if (distance > 0) first = buckets;
    distance = std::abs(distance);
  } else {
    distance = std::max<int64_t>(-distance, 0);
  }
  const int64_t exact = buckets / 2;
  if (distance < exact) return first + distance;
  const auto ratio = [&](int64_t n) {
    return std::log(static_cast<double>(n) / static_cast<double>(exact));
  };
  const auto grown =
      static_cast<int64_t>(ratio(distance) / ratio(reach) * static_cast<double>(buckets - exact));
  return first + std::min(exact + grown, buckets - 1);
}

// The learned bias [heads, s, s]. It depends on key minus query position only, so each of the 2 s -
// 1 differences is looked up once, and then spread.
TensorId relative_bias(Layers& net, const T5Config& config, const Stack& stack, int64_t sequence,
                       TensorId differences) {
  const std::string name = stack.name + ".block.0.layer.0.SelfAttention.relative_attention_bias";
  std::vector<double> buckets;
  for (int64_t d = 1 - sequence; d < sequence; ++d)
    buckets.push_back(
        static_cast<double>(bucket_of(d, config.buckets, config.reach, !stack.decoder)));
  const TensorId ids = net.builder().constant(name + ".buckets", {DType::I64, {2 * sequence - 1}},
                                              std::move(buckets));
  const TensorId rows = net.embedding(ids, config.buckets, config.heads, name);
  const TensorId spread = net.gather(rows, differences, 0, name + ".spread");
  return net.transpose(spread, {2, 0, 1}, name + ".heads_first");
}

// Key minus query position, counted from the most negative one: [s, s].
TensorId position_differences(Layers& net, int64_t sequence) {
  std::vector<double> keys, queries;
  for (int64_t i = 0; i < sequence; ++i) {
    keys.push_back(static_cast<double>(i + sequence - 1));
    queries.push_back(static_cast<double>(i));
  }
  const TensorId key =
      net.builder().constant("positions.key", {DType::I64, {1, sequence}}, std::move(keys));
  const TensorId query =
      net.builder().constant("positions.query", {DType::I64, {sequence, 1}}, std::move(queries));
  return net.binary(BinaryFn::Sub, key, query, "positions.difference");
}

TensorId attention(Layers& net, TensorId x, const T5Config& config, TensorId source, bool causal,
                   TensorId bias, const std::string& name) {
  const int64_t width = checked_mul(config.heads, config.head_size);
  const auto heads = [&](TensorId input, const char* part) {
    return net.split_heads(net.linear(input, width, name + part, false), config.heads, name + part);
  };
  const TensorId q = heads(x, ".q"), k = heads(source, ".k"), v = heads(source, ".v");
  const AttentionAttrs attrs{.causal = causal, .dropout = config.dropout};
  const TensorId mixed = net.merge_heads(net.attention(q, k, v, attrs, name, bias), name);
  return net.linear(mixed, config.hidden, name + ".o", false);
}

TensorId feed_forward(Layers& net, TensorId x, const T5Config& config, const std::string& name) {
  TensorId y = net.linear(x, config.inner, name + (config.gated ? ".wi_0" : ".wi"), false);
  y = activate(net, y, config.activation, name + ".act");
  if (config.gated)
    y = net.mul(y, net.linear(x, config.inner, name + ".wi_1", false), name + ".gated");
  y = net.dropout(y, config.dropout, name + ".dropout");
  return net.linear(y, config.hidden, name + ".wo", false);
}

TensorId block(Layers& net, TensorId x, const T5Config& config, const Stack& stack,
               const std::string& name) {
  int part = 0;
  // x + dropout(f(norm(x))), with f given the path of its modules.
  const auto residual = [&](auto&& f) {
    const std::string path = fmt::format("{}.layer.{}", name, part++);
    const TensorId y = f(net.rms_norm(x, path + ".layer_norm", config.epsilon), path);
    x = net.add(x, net.dropout(y, config.dropout, path + ".dropout"), path + ".add");
  };
  residual([&](TensorId y, const std::string& path) {
    return attention(net, y, config, y, stack.decoder, stack.bias, path + ".SelfAttention");
  });
  if (stack.decoder) {
    residual([&](TensorId y, const std::string& path) {
      return attention(net, y, config, stack.encoded, false, {}, path + ".EncDecAttention");
    });
  }
  residual([&](TensorId y, const std::string& path) {
    return feed_forward(net, y, config, path + ".DenseReluDense");
  });
  return x;
}

TensorId run(Layers& net, TensorId ids, const T5Config& config, const Stack& stack) {
  const TensorId table = net.weight("shared.weight", {config.vocabulary, config.hidden});
  TensorId x = net.embedding_with(ids, table, stack.name + ".embed_tokens");
  x = net.dropout(x, config.dropout, stack.name + ".dropout");
  const int64_t layers = stack.decoder ? config.decoder_layers : config.layers;
  for (int64_t i = 0; i < layers; ++i)
    x = block(net, x, config, stack, fmt::format("{}.block.{}", stack.name, i));
  x = net.rms_norm(x, stack.name + ".final_layer_norm", config.epsilon);
  return net.dropout(x, config.dropout, stack.name + ".final_dropout");
}

T5Config read_config(const ConfigReader& reader) {
  T5Config config{
      .vocabulary = reader.size({"vocab_size"}, 32128),
      .hidden = reader.size({"d_model", "hidden_size"}, 512),
      .head_size = reader.size({"d_kv"}, 64),
      .heads = reader.heads({"num_heads", "num_attention_heads"}, 8),
      .inner = reader.size({"d_ff"}, 2048),
      .layers = reader.layers({"num_layers", "num_hidden_layers"}, 6),
      .decoder_layers = 0,
      .buckets = reader.integer({"relative_attention_num_buckets"}, 32, 4, 65536),
      .reach = reader.size({"relative_attention_max_distance"}, 128),
      .activation = {},
      .dropout = reader.dropout({"dropout_rate"}, 0.1),
      .epsilon = reader.epsilon({"layer_norm_epsilon"}, 1e-6),
      .gated = false,
      .tied = reader.boolean({"tie_word_embeddings"}, true),
  };
  if (config.reach <= config.buckets / 2)
    fail_input(
        "key \"relative_attention_max_distance\" is {}, expected more than half of the {} "
        "buckets",
        config.reach, config.buckets);
  config.decoder_layers = reader.layers({"num_decoder_layers"}, config.layers);
  std::string kind = reader.text({"feed_forward_proj"}, "relu");
  config.gated = kind.starts_with("gated-");
  if (config.gated) kind.erase(0, 6);
  if (config.gated && kind == "gelu") kind = "gelu_new";
  try {
    config.activation = activation_by_name(kind);
  } catch (const Error& error) {
    throw error.within("key \"feed_forward_proj\"");
  }
  return config;
}

}  // namespace

Graph import_t5(const ConfigReader& reader, ImportRequest& request) {
  const T5Config config = read_config(reader);
  const int64_t positions = reader.size({"n_positions"}, 512);
  const TextSize size = request.text_size(positions, kEncoderTokens, false);

  Layers net(request.name);
  const TensorId differences = position_differences(net, size.sequence);
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  Stack encoder{.name = "encoder"};
  encoder.bias = relative_bias(net, config, encoder, size.sequence, differences);
  const TensorId encoded = run(net, ids, config, encoder);
  if (request.task.head == Head::Encoder) return finish(net, {{encoded, true}});

  const TensorId decoder_ids = net.token_input("decoder_input_ids", size.batch, size.sequence);
  Stack decoder{.name = "decoder", .decoder = true, .encoded = encoded};
  decoder.bias = relative_bias(net, config, decoder, size.sequence, differences);
  TensorId x = run(net, decoder_ids, config, decoder);
  if (request.task.head == Head::Base) return finish(net, {{x, true}});
  if (config.tied)
    x = net.scale(x, 1 / std::sqrt(static_cast<double>(config.hidden)), "lm_head.scale");
  const TensorId matrix = net.weight(config.tied ? "shared.weight" : "lm_head.weight",
                                     {config.vocabulary, config.hidden});
  return finish(net, {{net.linear_with(x, matrix, {}, "lm_head")}});
}

}  // namespace windlass

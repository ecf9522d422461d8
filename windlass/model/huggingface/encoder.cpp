#include "windlass/model/huggingface/encoder.h"

#include "windlass/base/error.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

// Module paths: of a layer's parts below the layer, of the masked language model's below the root.
struct Names {
  const char *root, *layers;
  const char *query, *key, *value, *output, *attention_norm, *up, *down, *output_norm;
  const char *transform, *transform_norm, *output_matrix, *output_bias;
};

constexpr Names kBert = {"bert",
                         "encoder.layer.",
                         ".attention.self.query",
                         ".attention.self.key",
                         ".attention.self.value",
                         ".attention.output.dense",
                         ".attention.output.LayerNorm",
                         ".intermediate.dense",
                         ".output.dense",
                         ".output.LayerNorm",
                         "cls.predictions.transform.dense",
                         "cls.predictions.transform.LayerNorm",
                         "cls.predictions.decoder.weight",
                         "cls.predictions.bias"};
constexpr Names kRoberta = {"roberta",
                            "encoder.layer.",
                            ".attention.self.query",
                            ".attention.self.key",
                            ".attention.self.value",
                            ".attention.output.dense",
                            ".attention.output.LayerNorm",
                            ".intermediate.dense",
                            ".output.dense",
                            ".output.LayerNorm",
                            "lm_head.dense",
                            "lm_head.layer_norm",
                            "lm_head.decoder.weight",
                            "lm_head.bias"};
constexpr Names kDistilBert = {"distilbert",
                               "transformer.layer.",
                               ".attention.q_lin",
                               ".attention.k_lin",
                               ".attention.v_lin",
                               ".attention.out_lin",
                               ".sa_layer_norm",
                               ".ffn.lin1",
                               ".ffn.lin2",
                               ".output_layer_norm",
                               "vocab_transform",
                               "vocab_layer_norm",
                               "vocab_projector.weight",
                               "vocab_projector.bias"};

const Names& names_of(EncoderFamily family) {
  switch (family) {
    case EncoderFamily::Bert: return kBert;
    case EncoderFamily::Roberta: return kRoberta;
    case EncoderFamily::DistilBert: return kDistilBert;
  }
  return kBert;
}

TensorId embeddings(Layers& net, const EncoderConfig& config, const TextSize& size,
                    const std::string& name) {
  const TensorId ids = net.token_input("input_ids", size.batch, size.sequence);
  TensorId x = net.embedding(ids, config.vocabulary, config.hidden, name + ".word_embeddings");
  const std::string table = name + ".position_embeddings";
  const TensorId positions = position_rows(net, table, config.positions, config.hidden,
                                           config.first_position, size.sequence);
  if (config.fixed_positions) {
    const TensorId weight = net.weight(table + ".weight", {config.positions, config.hidden});
    net.builder().tensor(weight).trainable = false;
  }
  x = net.add(x, positions, table + ".add");
  if (config.types > 0) {
    const TensorId types = net.token_input("token_type_ids", size.batch, size.sequence);
    const std::string path = name + ".token_type_embeddings";
    x = net.add(x, net.embedding(types, config.types, config.hidden, path), path + ".add");
  }
  x = net.layer_norm(x, name + ".LayerNorm", config.epsilon);
  return net.dropout(x, config.dropout, name + ".dropout");
}

TensorId layer(Layers& net, TensorId x, const EncoderConfig& config, const std::string& name) {
  const Names& names = names_of(config.family);
  const auto heads = [&](const char* part) {
    return net.split_heads(net.linear(x, config.hidden, name + part), config.heads, name + part);
  };
  const TensorId q = heads(names.query), k = heads(names.key), v = heads(names.value);
  TensorId y = attend(net, q, k, v, {.causal = config.causal, .dropout = config.attention_dropout},
                      name + ".attention");
  y = net.linear(y, config.hidden, name + names.output);
  if (config.family != EncoderFamily::DistilBert)
    y = net.dropout(y, config.dropout, name + names.output + ".dropout");
  x = net.layer_norm(net.add(x, y, name + ".add_1"), name + names.attention_norm, config.epsilon);
  y = net.linear(x, config.inner, name + names.up);
  y = activate(net, y, config.activation, name + ".act");
  y = net.linear(y, config.hidden, name + names.down);
  y = net.dropout(y, config.dropout, name + names.down + ".dropout");
  return net.layer_norm(net.add(x, y, name + ".add_2"), name + names.output_norm, config.epsilon);
}

TensorId pooler(Layers& net, TensorId hidden, const std::string& name) {
  const TensorId first = token_at(net, hidden, 0, name + ".first_token");
  return net.unary(net.linear(first, net.dim(hidden, -1), name + ".dense"), UnaryFn::Tanh,
                   name + ".activation");
}

TensorId word_logits(Layers& net, TensorId hidden, const EncoderConfig& config,
                     const std::string& prefix) {
  const Names& names = names_of(config.family);
  TensorId x = net.linear(hidden, config.hidden, names.transform);
  // RoBERTa's head has its own activation, whatever the config says.
  const bool is_roberta = config.family == EncoderFamily::Roberta;
  x = activate(net, x, is_roberta ? Activation{UnaryFn::Gelu} : config.activation,
               std::string(names.transform) + ".act");
  x = net.layer_norm(x, names.transform_norm, config.epsilon);
  const TensorId matrix =
      net.weight(config.tied ? prefix + "embeddings.word_embeddings.weight" : names.output_matrix,
                 {config.vocabulary, config.hidden});
  return net.linear_with(x, matrix, net.weight(names.output_bias, {config.vocabulary}), "logits");
}

TensorId sequence_logits(Layers& net, TensorId hidden, const EncoderConfig& config,
                         const ModelTask& task, const std::string& prefix) {
  const double ratio = config.classifier_dropout;
  switch (config.family) {
    case EncoderFamily::Bert: {
      const TensorId x =
          net.dropout(pooler(net, hidden, prefix + "pooler"), ratio, "classifier.dropout");
      return net.linear(x, task.labels, "classifier");
    }
    case EncoderFamily::Roberta: {
      TensorId x = token_at(net, hidden, 0, "classifier.first_token");
      x = net.dropout(x, ratio, "classifier.dropout_1");
      x = net.linear(x, config.hidden, "classifier.dense");
      x = net.unary(x, UnaryFn::Tanh, "classifier.tanh");
      x = net.dropout(x, ratio, "classifier.dropout_2");
      return net.linear(x, task.labels, "classifier.out_proj");
    }
    case EncoderFamily::DistilBert: {
      TensorId x = token_at(net, hidden, 0, "first_token");
      x = net.relu(net.linear(x, config.hidden, "pre_classifier"), "pre_classifier.relu");
      x = net.dropout(x, ratio, "classifier.dropout");
      return net.linear(x, task.labels, "classifier");
    }
  }
  throw Error(ErrorKind::Internal, "internal error: unknown encoder family");
}

}  // namespace

Graph build_encoder(const std::string& name, const EncoderConfig& config, const ModelTask& task,
                    const TextSize& size) {
  head_size(config.hidden, config.heads);  // refuses heads that do not fit
  Layers net(name);
  const Names& names = names_of(config.family);
  const std::string prefix = module_prefix(task, names.root);
  TensorId x = embeddings(net, config, size, prefix + "embeddings");
  for (int64_t i = 0; i < config.layers; ++i)
    x = layer(net, x, config, fmt::format("{}{}{}", prefix, names.layers, i));
  switch (task.head) {
    case Head::Base: {
      std::vector<HeadOutput> predictions = {{x, true}};
      if (config.family != EncoderFamily::DistilBert)
        predictions.push_back({pooler(net, x, prefix + "pooler"), true, "pooler_target"});
      return finish(net, predictions);
    }
    case Head::LanguageModel:
    case Head::MaskedLanguageModel: return finish(net, {{word_logits(net, x, config, prefix)}});
    case Head::PreTraining: {
      const TensorId words = word_logits(net, x, config, prefix);
      const TensorId next =
          net.linear(pooler(net, x, prefix + "pooler"), 2, "cls.seq_relationship");
      return finish(net, {{words}, {next, false, "next_sentence_label"}});
    }
    case Head::SequenceClassification:
      return finish(net, {classes(sequence_logits(net, x, config, task, prefix), task)});
    case Head::TokenClassification: {
      const TensorId y = net.dropout(x, config.classifier_dropout, "classifier.dropout");
      return finish(net, {classes(net.linear(y, task.labels, "classifier"), task)});
    }
    case Head::QuestionAnswering: {
      const TensorId y = net.dropout(x, config.answer_dropout, "qa_outputs.dropout");
      return finish(net, {{answer_span(net, y, "qa_outputs")}});
    }
    default:
      throw Error(ErrorKind::Internal,
                  "internal error: an encoder was asked for another family's head");
  }
}

namespace {

EncoderConfig read_bert(const ConfigReader& reader, const EncoderConfig& d) {
  const std::string kind = reader.text({"position_embedding_type"}, "absolute");
  if (kind != "absolute")
    fail_unsupported("key \"position_embedding_type\" is \"{}\"; only \"absolute\" is known",
                     kind.substr(0, 60));
  if (reader.boolean({"add_cross_attention"}, false))
    fail_unsupported(
        "key \"add_cross_attention\" is true; an encoder as the decoder of another "
        "model is not known");
  EncoderConfig config{
      .family = d.family,
      .vocabulary = reader.size({"vocab_size"}, d.vocabulary),
      .positions = reader.size({"max_position_embeddings"}, d.positions),
      .first_position = d.first_position,
      .types = reader.size({"type_vocab_size"}, d.types),
      .hidden = reader.size({"hidden_size"}, d.hidden),
      .layers = reader.layers({"num_hidden_layers"}, d.layers),
      .heads = reader.heads({"num_attention_heads"}, d.heads),
      .inner = reader.size({"intermediate_size"}, d.inner),
      .activation = reader.activation({"hidden_act"}, "gelu"),
      .dropout = reader.dropout({"hidden_dropout_prob"}, d.dropout),
      .attention_dropout = reader.dropout({"attention_probs_dropout_prob"}, d.attention_dropout),
      .epsilon = reader.epsilon({"layer_norm_eps"}, d.epsilon),
      .causal = reader.boolean({"is_decoder"}, false),
      .tied = reader.boolean({"tie_word_embeddings"}, true),
  };
  config.classifier_dropout = reader.dropout({"classifier_dropout"}, config.dropout);
  return config;
}

Graph build(const EncoderConfig& config, ImportRequest& request) {
  const int64_t usable = config.positions - config.first_position;
  if (usable < 1)
    fail_input("key \"max_position_embeddings\" is {}, of which {} cannot be used",
               config.positions, config.first_position);
  const TextSize size = request.text_size(usable, kEncoderTokens, true);
  return build_encoder(request.name, config, request.task, size);
}

}  // namespace

Graph import_bert(const ConfigReader& reader, ImportRequest& request) {
  return build(read_bert(reader, {}), request);
}

Graph import_roberta(const ConfigReader& reader, ImportRequest& request) {
  const int64_t padding = reader.integer({"pad_token_id"}, 1, 0, INT32_MAX);
  return build(read_bert(reader, {.family = EncoderFamily::Roberta,
                                  .vocabulary = 50265,
                                  .first_position = padding + 1}),
               request);
}

Graph import_distilbert(const ConfigReader& reader, ImportRequest& request) {
  EncoderConfig config{
      .family = EncoderFamily::DistilBert,
      .vocabulary = reader.size({"vocab_size"}, 30522),
      .positions = reader.size({"max_position_embeddings"}, 512),
      .types = 0,
      .hidden = reader.size({"dim", "hidden_size"}, 768),
      .layers = reader.layers({"n_layers", "num_hidden_layers"}, 6),
      .heads = reader.heads({"n_heads", "num_attention_heads"}, 12),
      .inner = reader.size({"hidden_dim"}, 3072),
      .activation = reader.activation({"activation"}, "gelu"),
      .dropout = reader.dropout({"dropout"}, 0.1),
      .attention_dropout = reader.dropout({"attention_dropout"}, 0.1),
      .answer_dropout = reader.dropout({"qa_dropout"}, 0.1),
      .fixed_positions = reader.boolean({"sinusoidal_pos_embds"}, false),
      .tied = reader.boolean({"tie_word_embeddings"}, true),
  };
  // Token classification has the general dropout, sequence classification one of its own.
  const bool is_sequence = request.task.head == Head::SequenceClassification;
  config.classifier_dropout =
      is_sequence ? reader.dropout({"seq_classif_dropout"}, 0.2) : config.dropout;
  return build(config, request);
}

}  // namespace windlass

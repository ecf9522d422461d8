#include "windlass/model/huggingface/vit.h"

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

TensorId embeddings(Layers& net, const VitConfig& config, int64_t batch, const std::string& name) {
  const int64_t side = config.image / config.patch;
  const int64_t patches = checked_mul(side, side);
  const TensorId image = net.image_input(batch, config.channels, config.image, config.image);
  TensorId x =
      net.conv(image, config.hidden, {config.patch, config.patch},
               name + ".patch_embeddings.projection", {.stride = {config.patch, config.patch}});
  x = net.reshape(x, {batch, config.hidden, patches}, name + ".patch_embeddings.flat");
  x = net.transpose(x, {0, 2, 1}, name + ".patch_embeddings.tokens");
  const TensorId token = net.expand(net.weight(name + ".cls_token", {1, 1, config.hidden}),
                                    {batch, 1, config.hidden}, name + ".cls_token.expand");
  x = net.concat({token, x}, 1, name + ".concat");
  x = net.add(x, net.weight(name + ".position_embeddings", {1, patches + 1, config.hidden}),
              name + ".position_embeddings.add");
  return net.dropout(x, config.dropout, name + ".dropout");
}

TensorId layer(Layers& net, TensorId x, const VitConfig& config, const std::string& name) {
  TensorId y = net.layer_norm(x, name + ".layernorm_before", config.epsilon);
  const auto heads = [&](const std::string& part) {
    return net.split_heads(net.linear(y, config.hidden, name + part, config.query_bias),
                           config.heads, name + part);
  };
  const TensorId q = heads(".attention.attention.query"), k = heads(".attention.attention.key"),
                 v = heads(".attention.attention.value");
  y = attend(net, q, k, v, {.dropout = config.attention_dropout}, name + ".attention");
  y = net.linear(y, config.hidden, name + ".attention.output.dense");
  y = net.dropout(y, config.dropout, name + ".attention.output.dropout");
  x = net.add(x, y, name + ".add_1");
  y = net.layer_norm(x, name + ".layernorm_after", config.epsilon);
  y = net.linear(y, config.inner, name + ".intermediate.dense");
  y = activate(net, y, config.activation, name + ".intermediate.act");
  y = net.linear(y, config.hidden, name + ".output.dense");
  y = net.dropout(y, config.dropout, name + ".output.dropout");
  return net.add(x, y, name + ".add_2");
}

}  // namespace

Graph build_vit(const std::string& name, const VitConfig& config, const ModelTask& task,
                int64_t batch) {
  head_size(config.hidden, config.heads);
  if (config.patch > config.image)
    fail_input("patches of {} pixels do not fit an image of {}", config.patch, config.image);
  Layers net(name);
  const std::string prefix = module_prefix(task, "vit");
  TensorId x = embeddings(net, config, batch, prefix + "embeddings");
  for (int64_t i = 0; i < config.layers; ++i)
    x = layer(net, x, config, fmt::format("{}encoder.layer.{}", prefix, i));
  x = net.layer_norm(x, prefix + "layernorm", config.epsilon);
  const TensorId first = token_at(net, x, 0, prefix + "class_token");
  if (task.head == Head::ImageClassification)
    return finish(net, {classes(net.linear(first, task.labels, "classifier"), task)});
  const TensorId pooled =
      activate(net, net.linear(first, config.pooler_width, prefix + "pooler.dense"),
               config.pooler_activation, prefix + "pooler.activation");
  return finish(net, {{x, true}, {pooled, true, "pooler_target"}});
}

Graph import_vit(const ConfigReader& reader, ImportRequest& request) {
  const VitConfig d;
  VitConfig config{
      .image = reader.integer({"image_size"}, d.image, 1, 65536),
      .patch = reader.size({"patch_size"}, d.patch),
      .channels = reader.size({"num_channels"}, d.channels),
      .hidden = reader.size({"hidden_size"}, d.hidden),
      .layers = reader.layers({"num_hidden_layers"}, d.layers),
      .heads = reader.heads({"num_attention_heads"}, d.heads),
      .inner = reader.size({"intermediate_size"}, d.inner),
      .activation = reader.activation({"hidden_act"}, "gelu"),
      .pooler_activation = reader.activation({"pooler_act"}, "tanh"),
      .dropout = reader.dropout({"hidden_dropout_prob"}, d.dropout),
      .attention_dropout = reader.dropout({"attention_probs_dropout_prob"}, d.attention_dropout),
      .epsilon = reader.epsilon({"layer_norm_eps"}, d.epsilon),
      .query_bias = reader.boolean({"qkv_bias"}, true),
  };
  config.pooler_width = reader.size({"pooler_output_size"}, config.hidden);
  if (const auto image = request.options.image; image && *image != config.image) {
    request.notes.push_back(fmt::format(
        "the image size is {} instead of the config's {}; the position table has as many rows as "
        "there are patches",
        *image, config.image));
    config.image = *image;
  }
  return build_vit(request.name, config, request.task, request.options.batch.value_or(1));
}

}  // namespace windlass

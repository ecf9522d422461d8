// Vision Transformer: patches of the image and a class token through a pre-norm encoder.
#pragma once

#include "windlass/model/huggingface/transformer_blocks.h"

namespace windlass {

// Fields and defaults of ViTConfig.
struct VitConfig {
  int64_t image = 224;
  int64_t patch = 16;
  int64_t channels = 3;
  int64_t hidden = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t inner = 3072;
  Activation activation = {UnaryFn::Gelu};
  Activation pooler_activation = {UnaryFn::Tanh};
  int64_t pooler_width = 768;
  double dropout = 0;
  double attention_dropout = 0;
  double epsilon = 1e-12;
  bool query_bias = true;
};

Graph build_vit(const std::string& name, const VitConfig& config, const ModelTask& task,
                int64_t batch);

}  // namespace windlass

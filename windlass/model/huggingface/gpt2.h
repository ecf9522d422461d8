// GPT-2: pre-norm decoder with learned positions and a fused query-key-value projection.
#pragma once

#include "windlass/model/huggingface/transformer_blocks.h"

namespace windlass {

// Fields and defaults of GPT2Config.
struct Gpt2Config {
  int64_t vocabulary = 50257;
  int64_t positions = 1024;
  int64_t hidden = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t inner = 3072;
  Activation activation = {UnaryFn::GeluTanh};
  double embedding_dropout = 0.1;
  double attention_dropout = 0.1;
  double residual_dropout = 0.1;
  double classifier_dropout = 0.1;
  double epsilon = 1e-5;
  bool scale_by_width = true;   // scores divided by sqrt(head size)
  bool scale_by_layer = false;  // and by the number of the layer
  bool tied = true;
};

Graph build_gpt2(const std::string& name, const Gpt2Config& config, const ModelTask& task,
                 const TextSize& size);

}  // namespace windlass

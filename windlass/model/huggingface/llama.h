// Llama and those built like it (Mistral, Qwen2, Gemma, Mixtral): RMS norms, rotary positions,
// gated feed-forward parts, key heads shared by groups of query heads.
#pragma once

#include "windlass/model/huggingface/transformer_blocks.h"

namespace windlass {

// The union of LlamaConfig and its relatives; defaults are Llama's.
struct LlamaConfig {
  int64_t vocabulary = 32000;
  int64_t positions = 2048;  // trained for; longer sequences are possible
  int64_t hidden = 4096;
  int64_t inner = 11008;
  int64_t layers = 32;
  int64_t heads = 32;
  int64_t key_heads = 32;
  int64_t head_size = 128;
  Activation activation = {UnaryFn::Silu};
  double theta = 10000;
  double epsilon = 1e-6;
  double attention_dropout = 0;
  double classifier_dropout = 0.1;
  bool query_bias = false;  // of the query, key and value projections
  bool output_bias = false;
  bool feed_forward_bias = false;
  bool tied = false;
  int64_t window = 0;              // > 0: keys further back are not seen,
  int64_t first_window_layer = 0;  // from this layer on
  double norm_offset = 0;          // added to the scales of norms
  bool scale_embedding = false;    // by sqrt(hidden)
  int64_t experts = 0;             // > 0: feed-forward parts to choose from,
  int64_t chosen_experts = 2;      // for each token
};

Graph build_llama(const std::string& name, const LlamaConfig& config, const ModelTask& task,
                  const TextSize& size);

}  // namespace windlass

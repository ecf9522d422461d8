// BERT and those built like it (RoBERTa, DistilBERT): post-norm encoders with learned positions.
#pragma once

#include "windlass/model/huggingface/transformer_blocks.h"

namespace windlass {

// Families differ in the names of weights, in the heads and in little else.
enum class EncoderFamily : uint8_t { Bert, Roberta, DistilBert };

// The union of BertConfig and its relatives; defaults are BERT's.
struct EncoderConfig {
  EncoderFamily family = EncoderFamily::Bert;
  int64_t vocabulary = 30522;
  int64_t positions = 512;     // rows of the position table,
  int64_t first_position = 0;  // of which those before are never used
  int64_t types = 2;           // token types; 0: none
  int64_t hidden = 768;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t inner = 3072;
  Activation activation = {UnaryFn::Gelu};
  double dropout = 0.1;
  double attention_dropout = 0.1;
  double classifier_dropout = 0.1;
  double answer_dropout = 0;
  double epsilon = 1e-12;
  bool fixed_positions = false;  // sinusoidal, not trained
  bool causal = false;
  bool tied = true;
};

Graph build_encoder(const std::string& name, const EncoderConfig& config, const ModelTask& task,
                    const TextSize& size);

}  // namespace windlass

// What the Hugging Face families share: heads, position tables, attention with its surroundings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/model/huggingface/config_reader.h"
#include "windlass/model/layers.h"

namespace windlass {

// What sits on top of the network, by the ending of the class name in `architectures`.
enum class Head : uint8_t {
  Base,                 // ...Model: hidden states
  LanguageModel,        // ...ForCausalLM, ...LMHeadModel
  MaskedLanguageModel,  // ...ForMaskedLM
  PreTraining,          // ...ForPreTraining: masked language model and next sentence
  SequenceClassification,
  TokenClassification,
  QuestionAnswering,
  ConditionalGeneration,  // ...ForConditionalGeneration: encoder and decoder
  Encoder,                // ...EncoderModel: the encoder of an encoder-decoder
  ImageClassification,
};

// What the network is trained for.
struct ModelTask {
  Head head = Head::LanguageModel;
  int64_t labels = 2;  // classes of a classification head
};

// Tokens of a step.
struct TextSize {
  int64_t batch = 1;
  int64_t sequence = 1;
};

// One output and the loss on it.
struct HeadOutput {
  TensorId tensor;
  bool regression = false;  // squared error instead of cross-entropy
  std::string label = {};   // name of the target; empty: "labels" or "target"
};

// Marks all predictions as outputs; the loss is the sum of theirs.
Graph finish(Layers& net, const std::vector<HeadOutput>& predictions);

// Head of a decoder-only family on hidden states [b, s, h].
struct DecoderHead {
  int64_t vocabulary = 0;
  TensorId table = {};             // the embedding, if the output matrix is tied to it
  std::string output = "lm_head";  // module of the output matrix otherwise, and of its bias
  bool output_bias = false;
  std::string token_classifier = "score";
  double classifier_dropout = 0.1;
};
Graph finish_decoder(Layers& net, TensorId hidden, const ModelTask& task, const DecoderHead& head);

// Start and end of an answer: [b, s, h] -> logits [b, 2, s] of the two positions.
TensorId answer_span(Layers& net, TensorId hidden, const std::string& name);

// Classes of a classification head: cross-entropy, or squared error if there is only one.
inline HeadOutput classes(TensorId logits, const ModelTask& task) {
  return {logits, task.labels == 1};
}

// "prefix." for a model with a head, nothing for the bare network: as checkpoints name weights.
std::string module_prefix(const ModelTask& task, const std::string& prefix);

// Rows [first, first + sequence) of a learned position table of `rows`.
TensorId position_rows(Layers& net, const std::string& name, int64_t rows, int64_t width,
                       int64_t first, int64_t sequence);

// The vector of token `index` of each sample: [b, s, h] -> [b, h].
TensorId token_at(Layers& net, TensorId hidden, int64_t index, const std::string& name);

TensorId activate(Layers& net, TensorId x, const Activation& activation, const std::string& name);

// softmax(q k' / sqrt(d)) v with heads merged: [b, heads, s, d] -> [b, s, heads d].
TensorId attend(Layers& net, TensorId q, TensorId k, TensorId v, AttentionAttrs attrs,
                const std::string& name, TensorId mask = {});

// hidden / heads; throws Error{Input} if that is not whole.
int64_t head_size(int64_t hidden, int64_t heads);

// Throws Error{Input} unless key heads divide query heads.
void check_key_heads(int64_t heads, int64_t key_heads);

}  // namespace windlass

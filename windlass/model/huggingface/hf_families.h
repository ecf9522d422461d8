// One entry point per Hugging Face family: read its keys, with the defaults `transformers` has, and
// build the graph.
#pragma once

#include <string>
#include <vector>

#include "windlass/model/huggingface/config_reader.h"
#include "windlass/model/huggingface/transformer_blocks.h"
#include "windlass/model/model.h"

namespace windlass {

// How to build what a config describes.
struct ImportRequest {
  std::string name;  // of the graph
  ModelTask task;
  ModelOptions options;
  std::vector<std::string> notes;  // grows

  // Batch and sequence of the options, or one sample of `usual` tokens, fewer if the model has
  // fewer `positions`. More than that is an error if positions are learned, and a note otherwise.
  TextSize text_size(int64_t positions, int64_t usual, bool learned);
};

using FamilyImport = Graph (*)(const ConfigReader&, ImportRequest&);

Graph import_gpt2(const ConfigReader&, ImportRequest&);
Graph import_opt(const ConfigReader&, ImportRequest&);
Graph import_gpt_neox(const ConfigReader&, ImportRequest&);
Graph import_phi(const ConfigReader&, ImportRequest&);
Graph import_falcon(const ConfigReader&, ImportRequest&);
Graph import_llama(const ConfigReader&, ImportRequest&);
Graph import_mistral(const ConfigReader&, ImportRequest&);
Graph import_qwen2(const ConfigReader&, ImportRequest&);
Graph import_gemma(const ConfigReader&, ImportRequest&);
Graph import_mixtral(const ConfigReader&, ImportRequest&);
Graph import_bert(const ConfigReader&, ImportRequest&);
Graph import_roberta(const ConfigReader&, ImportRequest&);
Graph import_distilbert(const ConfigReader&, ImportRequest&);
Graph import_t5(const ConfigReader&, ImportRequest&);
Graph import_vit(const ConfigReader&, ImportRequest&);

// Longest default sequence of decoders and of encoders.
constexpr int64_t kDecoderTokens = 2048;
constexpr int64_t kEncoderTokens = 512;

// Rotary base and the part of a head that is rotated, wherever the config's version keeps them.
double rotary_theta(const ConfigReader& config, double fallback);
int64_t rotary_dims(const ConfigReader& config, int64_t head_size, double fallback_part);

}  // namespace windlass

// What GPT-2 and GPT-3 have in common: everything but the sizes.
#pragma once

#include <string>

#include "windlass/model/huggingface/gpt2.h"
#include "windlass/model/zoo/transformers.h"

namespace windlass {

// `head_width`: the hidden size of a head where `heads` is 0.
inline Graph build_gpt(const std::string& name, const ZooParameters& p, int64_t head_width) {
  check_positions(p);
  const double dropout = dropout_of(p);
  const Gpt2Config config{.vocabulary = p.at("vocab"),
                          .positions = p.at("positions"),
                          .hidden = p.at("hidden"),
                          .layers = p.at("layers"),
                          .heads = heads_of(p, head_width),
                          .inner = parameter_or(p, "inner", 4 * p.at("hidden")),
                          .embedding_dropout = dropout,
                          .attention_dropout = dropout,
                          .residual_dropout = dropout};
  return build_gpt2(name, config, {.head = Head::LanguageModel}, {p.at("batch"), p.at("sequence")});
}

}  // namespace windlass

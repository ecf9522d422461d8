// Llama: Touvron et al., "Llama 2" (2023) and Grattafiori et al., "The Llama 3 herd of models"
// (2024), as in Hugging Face's LlamaForCausalLM. `heads` = 0 means one for each 128 of `hidden`,
// `key_heads` = 0 as many as `heads`, `inner` = 0 Llama's rule: 8/3 of `hidden`, rounded up to a
// multiple of 256.
#include "windlass/model/huggingface/llama.h"

#include "windlass/base/checked.h"
#include "windlass/model/zoo/transformers.h"

namespace windlass {
namespace {

Graph llama_graph(const std::string& name, const ZooParameters& p) {
  const int64_t hidden = p.at("hidden"), heads = heads_of(p, 128);
  const int64_t gated = 256 * ceil_div(8 * hidden / 3, 256);
  const LlamaConfig config{.vocabulary = p.at("vocab"),
                           .hidden = hidden,
                           .inner = parameter_or(p, "inner", gated),
                           .layers = p.at("layers"),
                           .heads = heads,
                           .key_heads = parameter_or(p, "key_heads", heads),
                           .head_size = head_size(hidden, heads),
                           .theta = static_cast<double>(p.at("theta")),
                           .epsilon = 1e-5,
                           .tied = p.at("tied") != 0};
  check_key_heads(config.heads, config.key_heads);
  return build_llama(name, config, {.head = Head::LanguageModel},
                     {p.at("batch"), p.at("sequence")});
}

ZooPreset llama3(const std::string& size, int64_t layers, int64_t hidden, int64_t inner) {
  ZooPreset preset{.name = "llama3-" + size,
                   .parameters = {{"hidden", hidden},
                                  {"inner", inner},
                                  {"key_heads", 8},
                                  {"layers", layers},
                                  {"sequence", 8192},
                                  {"theta", 500000},
                                  {"vocab", 128256}}};
  return preset;
}

}  // namespace

ZooFamily zoo_llama() {
  return {.name = "llama",
          .description = "Llama 2 (Touvron et al. 2023) and Llama 3 (Grattafiori et al. 2024)",
          .defaults = {{"batch", 1},
                       {"heads", 0},
                       {"hidden", 4096},
                       {"inner", 0},
                       {"key_heads", 0},
                       {"layers", 32},
                       {"sequence", 4096},
                       {"theta", 10000},
                       {"tied", 0},
                       {"vocab", 32000}},
          .presets = {{.name = "llama2-7b", .parameters = {}, .aliases = {"llama", "llama2"}},
                      {.name = "llama2-13b", .parameters = {{"hidden", 5120}, {"layers", 40}}},
                      {.name = "llama2-70b",
                       .parameters =
                           {{"hidden", 8192}, {"inner", 28672}, {"key_heads", 8}, {"layers", 80}}},
                      llama3("8b", 32, 4096, 14336),
                      llama3("70b", 80, 8192, 28672),
                      llama3("405b", 126, 16384, 53248)},
          .build = llama_graph};
}

}  // namespace windlass

// GPT-2: Radford et al., "Language models are unsupervised multitask learners" (2019), as in
// Hugging Face's GPT2LMHeadModel: learned positions, tanh GELU, output matrix tied to the
// embedding, dropout of 10 percent throughout. `heads` = 0 means one for each 64 of `hidden`,
// `inner` = 0 four times `hidden`; `dropout` is in percent.
//
// gpt2-10b to gpt2-40b are the sizes that Harmony (Li et al. 2022) trains: hidden 4096, 32 heads
// and 50 layers for each 10 billion parameters.
#include "windlass/model/zoo/gpt.h"

namespace windlass {
namespace {

Graph gpt2_graph(const std::string& name, const ZooParameters& p) { return build_gpt(name, p, 64); }

ZooPreset billions(int64_t count) {
  return {.name = fmt::format("gpt2-{}b", count),
          .parameters = {{"heads", 32}, {"hidden", 4096}, {"layers", 5 * count}}};
}

}  // namespace

ZooFamily zoo_gpt2() {
  return {
      .name = "gpt2",
      .description = "GPT-2 (Radford et al. 2019, Hugging Face); gpt2-10b to gpt2-40b of Harmony",
      .defaults = {{"batch", 1},
                   {"dropout", 10},
                   {"heads", 0},
                   {"hidden", 768},
                   {"inner", 0},
                   {"layers", 12},
                   {"positions", 1024},
                   {"sequence", 1024},
                   {"vocab", 50257}},
      .presets = {{.name = "gpt2-small", .parameters = {}, .aliases = {"gpt2"}},
                  {.name = "gpt2-medium", .parameters = {{"hidden", 1024}, {"layers", 24}}},
                  {.name = "gpt2-large", .parameters = {{"hidden", 1280}, {"layers", 36}}},
                  {.name = "gpt2-xl", .parameters = {{"hidden", 1600}, {"layers", 48}}},
                  billions(10),
                  billions(20),
                  billions(30),
                  billions(40)},
      .build = gpt2_graph};
}

}  // namespace windlass

// GPT-3: Brown et al., "Language models are few-shot learners" (2020), table 2.1: the network of
// GPT-2 with a context of 2048. Attention is dense in every layer here; the paper alternates dense
// and locally banded sparse layers. No dropout is published; `dropout`, in percent, is 0. `heads` =
// 0 means one for each 128 of `hidden`, `inner` = 0 four times `hidden`.
#include "windlass/model/zoo/gpt.h"

namespace windlass {
namespace {

Graph gpt3_graph(const std::string& name, const ZooParameters& p) {
  return build_gpt(name, p, 128);
}

}  // namespace

ZooFamily zoo_gpt3() {
  return {.name = "gpt3",
          .description = "GPT-3 (Brown et al. 2020)",
          .defaults = {{"batch", 1},
                       {"dropout", 0},
                       {"heads", 0},
                       {"hidden", 12288},
                       {"inner", 0},
                       {"layers", 96},
                       {"positions", 2048},
                       {"sequence", 2048},
                       {"vocab", 50257}},
          .presets = {{.name = "gpt3-small",
                       .parameters = {{"heads", 12}, {"hidden", 768}, {"layers", 12}}},
                      {.name = "gpt3-6.7b", .parameters = {{"hidden", 4096}, {"layers", 32}}},
                      {.name = "gpt3-175b", .parameters = {}, .aliases = {"gpt3"}}},
          .build = gpt3_graph};
}

}  // namespace windlass

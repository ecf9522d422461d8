// Vision Transformer: Dosovitskiy et al., "An image is worth 16x16 words" (2021), in the sizes and
// with the details of torchvision (no dropout, norms with epsilon 1e-6). The names of weights are
// Hugging Face's. `heads` = 0 means one for each 64 of `hidden`, `inner` = 0 four times `hidden`;
// `dropout` is in percent.
#include "windlass/model/huggingface/vit.h"

#include "windlass/model/zoo/transformers.h"

namespace windlass {
namespace {

Graph vit_graph(const std::string& name, const ZooParameters& p) {
  const double dropout = dropout_of(p);
  const VitConfig config{.image = p.at("image"),
                         .patch = p.at("patch"),
                         .hidden = p.at("hidden"),
                         .layers = p.at("layers"),
                         .heads = heads_of(p, 64),
                         .inner = parameter_or(p, "inner", 4 * p.at("hidden")),
                         .dropout = dropout,
                         .attention_dropout = dropout,
                         .epsilon = 1e-6};
  return build_vit(name, config, {.head = Head::ImageClassification, .labels = p.at("classes")},
                   p.at("batch"));
}

}  // namespace

ZooFamily zoo_vit() {
  return {.name = "vit",
          .description = "Vision Transformer (Dosovitskiy et al. 2021, torchvision)",
          .defaults = {{"batch", 1},
                       {"classes", 1000},
                       {"dropout", 0},
                       {"heads", 0},
                       {"hidden", 768},
                       {"image", 224},
                       {"inner", 0},
                       {"layers", 12},
                       {"patch", 16}},
          .presets = {{.name = "vit-b-16", .parameters = {}, .aliases = {"vit", "vit-b/16"}},
                      {.name = "vit-b-32", .parameters = {{"patch", 32}}, .aliases = {"vit-b/32"}},
                      {.name = "vit-l-16",
                       .parameters = {{"hidden", 1024}, {"layers", 24}},
                       .aliases = {"vit-l/16"}},
                      {.name = "vit-l-32",
                       .parameters = {{"hidden", 1024}, {"layers", 24}, {"patch", 32}},
                       .aliases = {"vit-l/32"}}},
          .build = vit_graph};
}

}  // namespace windlass

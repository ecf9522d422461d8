// Recurrent language model: Jozefowicz et al., "Exploring the limits of language modeling" (2016),
// in the size that PaSE (Elango 2021) plans: vocabulary of 100,000, two
// LSTM layers of 2048, 256 tokens, an output projection of its own. `dropout`, in percent and off
// by default, precedes each LSTM layer and the projection. `tied` = 1 uses the embedding as the
// projection.
#include "windlass/base/error.h"
#include "windlass/model/layers.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

Graph rnnlm_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  const int64_t hidden = p.at("hidden"), vocab = p.at("vocab");
  const double dropout = static_cast<double>(p.at("dropout")) / 100;

  // Recurrent layers want time first; turning the ids around is cheaper than turning their
  // embeddings.
  TensorId x = net.token_input("tokens", p.at("batch"), p.at("sequence"));
  x = net.transpose(x, {1, 0}, "time_first");
  x = net.embedding(x, vocab, hidden, "embedding");
  for (int64_t layer = 0; layer < p.at("layers"); ++layer) {
    x = net.dropout(x, dropout, fmt::format("dropout.{}", layer));
    x = net.lstm(x, hidden, fmt::format("lstm.{}", layer));
  }
  x = net.dropout(x, dropout, "dropout.out");
  x = net.transpose(x, {1, 0, 2}, "batch_first");

  const TensorId matrix = p.at("tied") != 0 ? net.weight("embedding.weight", {vocab, hidden})
                                            : net.weight("projection.weight", {vocab, hidden});
  const TensorId bias = net.weight("projection.bias", {vocab});
  return net.finish_cross_entropy(net.linear_with(x, matrix, bias, "projection"));
}

}  // namespace

ZooFamily zoo_rnnlm() {
  return {.name = "rnnlm",
          .description = "LSTM language model (Jozefowicz et al. 2016) in the size of PaSE",
          .defaults = {{"batch", 1},
                       {"dropout", 0},
                       {"hidden", 2048},
                       {"layers", 2},
                       {"sequence", 256},
                       {"tied", 0},
                       {"vocab", 100000}},
          .presets = {},
          .build = rnnlm_graph};
}

}  // namespace windlass

// Transformer: Vaswani et al., "Attention is all you need" (2017), for WMT English-German: encoder
// and decoder of `layers` each, norms after each part, and one embedding of 37,000 tokens, scaled
// by sqrt(hidden), for source, target and output. As there, projections of attention have no bias
// and dropout (`dropout`, in percent) follows each part and the embeddings. Sines and cosines of
// positions are the two halves of a vector, as in the authors' code. Label smoothing is left out.
// `sequence` is the length of both sentences; `heads` = 0 means one for each 64 of `hidden`,
// `inner` = 0 four times `hidden`.
#include <cmath>

#include "windlass/model/huggingface/transformer_blocks.h"
#include "windlass/model/layers.h"
#include "windlass/model/zoo/transformers.h"

namespace windlass {
namespace {

constexpr int64_t kMaxHidden = int64_t{1} << 20;

class Transformer {
 public:
  Transformer(const std::string& name, const ZooParameters& p)
      : net_(name),
        p_(p),
        hidden_(p.at("hidden")),
        heads_(heads_of(p, 64)),
        inner_(parameter_or(p, "inner", 4 * hidden_)),
        dropout_(dropout_of(p)) {}

  Graph build() {
    head_size(hidden_, heads_);
    if (hidden_ % 2 != 0 || hidden_ > kMaxHidden)
      fail_input("parameter hidden is {}, expected an even number up to {}", hidden_, kMaxHidden);
    const TensorId positions = sinusoids();
    const TensorId encoded = stack(embed("source", "encoder", positions), "encoder", {});
    const TensorId decoded = stack(embed("target", "decoder", positions), "decoder", encoded);
    return net_.finish_cross_entropy(net_.linear_with(decoded, table(), {}, "output"));
  }

 private:
  TensorId table() { return net_.weight("embedding.weight", {p_.at("vocab"), hidden_}); }

  // sin and cos of position / 10000^(2 i / hidden): [s, hidden].
  TensorId sinusoids() {
    const int64_t sequence = p_.at("sequence"), half = hidden_ / 2;
    std::vector<double> positions, rates;
    for (int64_t i = 0; i < sequence; ++i) positions.push_back(static_cast<double>(i));
    for (int64_t i = 0; i < half; ++i)
      rates.push_back(std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half)));
    GraphBuilder& builder = net_.builder();
    const TensorId position =
        builder.constant("positions.index", {DType::F32, {sequence, 1}}, std::move(positions));
    const TensorId rate =
        builder.constant("positions.rate", {DType::F32, {1, half}}, std::move(rates));
    const TensorId angle = net_.mul(position, rate, "positions.angle");
    return net_.concat({net_.unary(angle, UnaryFn::Sin, "positions.sin"),
                        net_.unary(angle, UnaryFn::Cos, "positions.cos")},
                       1, "positions");
  }

  TensorId embed(const std::string& input, const std::string& name, TensorId positions) {
    const TensorId ids = net_.token_input(input, p_.at("batch"), p_.at("sequence"));
    TensorId x = net_.embedding_with(ids, table(), name + ".embedding");
    x = net_.scale(x, std::sqrt(static_cast<double>(hidden_)), name + ".scale");
    x = net_.add(x, positions, name + ".positions");
    return net_.dropout(x, dropout_, name + ".dropout");
  }

  // The decoder is the stack that reads `encoded`.
  TensorId stack(TensorId x, const std::string& name, TensorId encoded) {
    for (int64_t i = 0; i < p_.at("layers"); ++i) {
      const std::string layer = fmt::format("{}.{}", name, i);
      x = residual(x, attention(x, x, encoded.valid(), layer + ".self"), layer + ".self");
      if (encoded.valid())
        x = residual(x, attention(x, encoded, false, layer + ".cross"), layer + ".cross");
      TensorId y = net_.relu(net_.linear(x, inner_, layer + ".feed.up"), layer + ".feed.relu");
      y = net_.linear(y, hidden_, layer + ".feed.down");
      x = residual(x, y, layer + ".feed");
    }
    return x;
  }

  TensorId residual(TensorId x, TensorId y, const std::string& name) {
    y = net_.dropout(y, dropout_, name + ".dropout");
    return net_.layer_norm(net_.add(x, y, name + ".add"), name + ".norm");
  }

  TensorId attention(TensorId x, TensorId source, bool causal, const std::string& name) {
    const auto heads = [&](TensorId input, const char* part) {
      return net_.split_heads(net_.linear(input, hidden_, name + part, false), heads_, name + part);
    };
    const TensorId q = heads(x, ".query"), k = heads(source, ".key"), v = heads(source, ".value");
    const TensorId mixed = attend(net_, q, k, v, {.causal = causal}, name + ".attention");
    return net_.linear(mixed, hidden_, name + ".output", false);
  }

  Layers net_;
  const ZooParameters& p_;
  int64_t hidden_, heads_, inner_;
  double dropout_;
};

}  // namespace

ZooFamily zoo_transformer() {
  return {
      .name = "transformer",
      .description = "Transformer encoder-decoder (Vaswani et al. 2017)",
      .defaults = {{"batch", 1},
                   {"dropout", 10},
                   {"heads", 0},
                   {"hidden", 512},
                   {"inner", 0},
                   {"layers", 6},
                   {"sequence", 256},
                   {"vocab", 37000}},
      .presets = {{.name = "transformer-base", .parameters = {}, .aliases = {"transformer"}},
                  {.name = "transformer-big", .parameters = {{"dropout", 30}, {"hidden", 1024}}}},
      .build = [](const std::string& name, const ZooParameters& p) {
        return Transformer(name, p).build();
      }};
}

}  // namespace windlass

// Neural machine translation: an LSTM encoder and an LSTM decoder with global dot-product attention
// over the encoder's outputs, as in Luong et al., "Effective approaches to attention-based neural
// machine translation" (2015), without input feeding; `layers` = 2 recurrent layers on each side,
// as in FlexFlow (Jia et al. 2019). Layer i of the decoder starts from the last state of layer i of
// the encoder. With decoder output h and encoder outputs E:
//   context = softmax(h E^T) E,   logits = W_s tanh(W_c [context; h])
// where W_c and W_s have no bias. `sequence` is the length of both sentences; `dropout`, in
// percent, precedes each LSTM layer.
#include <utility>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/layers.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

// Last h and c of a recurrent layer, [1, b, h]; invalid ids stand for zeros.
struct LstmState {
  TensorId h, c;
};

class Translator {
 public:
  Translator(const std::string& name, const ZooParameters& p) : net_(name), p_(p) {}

  Graph build() {
    const int64_t hidden = p_.at("hidden"), vocab = p_.at("vocab");
    std::vector<LstmState> states(static_cast<size_t>(p_.at("layers")));
    const TensorId encoded = recurrent_stack("source", "encoder", states);
    const TensorId decoded = recurrent_stack("target", "decoder", states);

    TensorId x = net_.matmul(decoded, encoded, "attention.scores", false, true);
    x = net_.softmax(x, 2, "attention.softmax");
    x = net_.matmul(x, encoded, "attention.context");
    x = net_.concat({x, decoded}, 2, "attention.concat");
    x = net_.linear(x, hidden, "attention.combine", false);
    x = net_.unary(x, UnaryFn::Tanh, "attention.tanh");
    return net_.finish_cross_entropy(net_.linear(x, vocab, "projection", false));
  }

 private:
  // Embedding and LSTM layers over a sentence: [b, s, h]. Layers start from `states`, which are the
  // last ones afterwards.
  TensorId recurrent_stack(const std::string& input, const std::string& name,
                           std::vector<LstmState>& states) {
    const double dropout = static_cast<double>(p_.at("dropout")) / 100;
    TensorId x = net_.token_input(input, p_.at("batch"), p_.at("sequence"));
    x = net_.transpose(x, {1, 0}, name + ".time_first");
    x = net_.embedding(x, p_.at("vocab"), p_.at("hidden"), name + ".embedding");
    for (size_t layer = 0; layer < states.size(); ++layer) {
      x = net_.dropout(x, dropout, fmt::format("{}.dropout.{}", name, layer));
      x = lstm(x, states[layer], fmt::format("{}.lstm.{}", name, layer));
    }
    return net_.transpose(x, {1, 0, 2}, name + ".batch_first");
  }

  TensorId lstm(TensorId x, LstmState& state, const std::string& name) {
    const int64_t hidden = p_.at("hidden"), gates = checked_mul(4, hidden);
    std::vector<TensorId> inputs = {x, net_.weight(name + ".weight_ih", {1, gates, net_.dim(x, 2)}),
                                    net_.weight(name + ".weight_hh", {1, gates, hidden}),
                                    net_.weight(name + ".bias", {1, checked_mul(2, gates)})};
    if (state.h.valid()) inputs.insert(inputs.end(), {state.h, state.c});
    const std::vector<TensorId> outputs =
        net_.builder().add(OpKind::Lstm, RecurrentAttrs{.hidden = hidden}, std::move(inputs), name);
    state = {.h = outputs[1], .c = outputs[2]};
    return net_.reshape(outputs[0], {net_.dim(x, 0), net_.dim(x, 1), hidden}, name + ".join");
  }

  Layers net_;
  const ZooParameters& p_;
};

}  // namespace

ZooFamily zoo_nmt() {
  return {.name = "nmt",
          .description = "LSTM encoder-decoder with attention (Luong et al. 2015)",
          .defaults = {{"batch", 1},
                       {"dropout", 20},
                       {"hidden", 1024},
                       {"layers", 2},
                       {"sequence", 40},
                       {"vocab", 32000}},
          .presets = {},
          .build = [](const std::string& name, const ZooParameters& p) {
            return Translator(name, p).build();
          }};
}

}  // namespace windlass

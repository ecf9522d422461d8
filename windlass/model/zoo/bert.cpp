// BERT: Devlin et al., "BERT: pre-training of deep bidirectional transformers" (2019), as in
// Hugging Face's BertForPreTraining: masked words, output matrix tied to the embedding, and next
// sentence. `pretraining` = 0 puts a classifier of sentences into `classes` on the pooler instead.
// `heads` = 0 means one for each 64 of `hidden`, `inner` = 0 four times `hidden`; `dropout` is in
// percent.
//
// bert-96 is the deep network of Harmony (Li et al. 2022): 96 layers of the width of bert-large
// with a classifier.
#include "windlass/model/huggingface/encoder.h"
#include "windlass/model/zoo/transformers.h"

namespace windlass {
namespace {

Graph bert_graph(const std::string& name, const ZooParameters& p) {
  check_positions(p);
  const double dropout = dropout_of(p);
  const EncoderConfig config{.vocabulary = p.at("vocab"),
                             .positions = p.at("positions"),
                             .hidden = p.at("hidden"),
                             .layers = p.at("layers"),
                             .heads = heads_of(p, 64),
                             .inner = parameter_or(p, "inner", 4 * p.at("hidden")),
                             .dropout = dropout,
                             .attention_dropout = dropout,
                             .classifier_dropout = dropout};
  const ModelTask task{
      .head = p.at("pretraining") != 0 ? Head::PreTraining : Head::SequenceClassification,
      .labels = p.at("classes")};
  return build_encoder(name, config, task, {p.at("batch"), p.at("sequence")});
}

}  // namespace

ZooFamily zoo_bert() {
  return {.name = "bert",
          .description = "BERT (Devlin et al. 2019, Hugging Face); bert-96 of Harmony",
          .defaults = {{"batch", 1},
                       {"classes", 2},
                       {"dropout", 10},
                       {"heads", 0},
                       {"hidden", 768},
                       {"inner", 0},
                       {"layers", 12},
                       {"positions", 512},
                       {"pretraining", 1},
                       {"sequence", 512},
                       {"vocab", 30522}},
          .presets = {{.name = "bert-base", .parameters = {}, .aliases = {"bert"}},
                      {.name = "bert-large", .parameters = {{"hidden", 1024}, {"layers", 24}}},
                      {.name = "bert-96",
                       .parameters = {{"hidden", 1024}, {"layers", 96}, {"pretraining", 0}}}},
          .build = bert_graph};
}

}  // namespace windlass

// Import rules: losses that a model brings. The mean over all labels is one op; class weights and
// other reductions are written out.

#include <numeric>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// The loss of each label, [n, 1, ...], from logarithms of probabilities [n, classes, ...]; and what
// it weighs, invalid where all weigh the same.
struct Terms {
  TensorId losses, weights;
};

Terms loss_terms(NodeContext& c, TensorId log_probabilities) {
  const TensorType type = c.builder().type(log_probabilities);
  Shape column = c.shape(1);
  if (type.shape.size() < 2 || column.size() + 1 != type.shape.size())
    fail_input("labels {} do not fit {}", format_shape(column), format_shape(type.shape));
  column.insert(column.begin() + 1, 1);
  TensorId labels = c.reshape(c.in(1), column, "column"), kept;
  if (c.has_attr("ignore_index")) {
    const DType whole = c.type(1).dtype;
    const auto ignore = static_cast<double>(c.int_attr("ignore_index", 0));
    const TensorId left_out =
        c.binary(BinaryFn::Equal, labels, c.builder().scalar(ignore, whole), "ignored");
    labels = c.emit(OpKind::Where, NoAttrs{}, {left_out, c.builder().scalar(0, whole), labels},
                    "labels");
    kept = c.emit(OpKind::Cast, CastAttrs{type.dtype},
                  {c.unary(UnaryFn::Not, left_out, 0, 0, "counted")}, "kept");
  }
  const TensorId picked =
      c.emit(OpKind::GatherElements, AxisAttrs{1}, {log_probabilities, labels}, "picked");
  Terms terms{c.unary(UnaryFn::Neg, picked, 0, 0, "negative"), kept};
  if (c.has(2)) {
    c.importer().make_buffer(c.in(2));
    const TensorId weights =
        c.emit(OpKind::Gather, AxisAttrs{0}, {c.in(2), labels}, "class_weights");
    terms.weights = kept.valid() ? c.binary(BinaryFn::Mul, weights, kept, "weights") : weights;
  }
  if (terms.weights.valid())
    terms.losses = c.binary(BinaryFn::Mul, terms.losses, terms.weights, "weighted");
  return terms;
}

void reduce_terms(NodeContext& c, const Terms& terms) {
  const std::string reduction = c.string_attr("reduction", "mean");
  Ints axes(c.builder().shape(terms.losses).size());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  const auto sum = [&](ReduceFn fn, TensorId x, std::string_view part) {
    return c.emit(OpKind::Reduce, ReduceAttrs{fn, axes, false}, {x}, part);
  };
  if (reduction == "none")
    c.out(0, c.reshape(terms.losses, c.shape(1)));
  else if (reduction == "sum")
    c.out(0, sum(ReduceFn::Sum, terms.losses, ""));
  else if (reduction != "mean")
    fail_input("reduction is \"{}\", expected none, sum or mean", reduction);
  else if (terms.weights.valid())
    c.out(0, c.binary(BinaryFn::Div, sum(ReduceFn::Sum, terms.losses, "sum"),
                      sum(ReduceFn::Sum, terms.weights, "weight")));
  else
    c.out(0, sum(ReduceFn::Mean, terms.losses, ""));
}

bool is_plain_mean(NodeContext& c) {
  return !c.has(2) && c.string_attr("reduction", "mean") == "mean";
}

void plain_mean(NodeContext& c, TensorId logits) {
  const int64_t ignore = c.int_attr("ignore_index", LossSpec().ignore);
  c.out(0, c.emit(OpKind::CrossEntropy, CrossEntropyAttrs{1, ignore}, {logits, c.in(1)}));
}

void check_labels(NodeContext& c) {
  if (is_float(c.type(1).dtype))
    fail_input(
        "labels are probabilities of classes, not classes, which ONNX has no such loss for: write "
        "-(target * log_softmax(x, 1)).sum(1).mean()");
}

void softmax_cross_entropy(NodeContext& c) {
  check_labels(c);
  TensorId logarithms;
  if (c.wants(1) || !is_plain_mean(c))
    logarithms = c.emit(OpKind::Softmax, SoftmaxAttrs{1, true}, {c.in(0)}, "log_softmax");
  if (c.wants(1)) c.out(1, logarithms);
  if (is_plain_mean(c))
    plain_mean(c, c.in(0));
  else
    reduce_terms(c, loss_terms(c, logarithms));
}

void negative_log_likelihood(NodeContext& c) {
  check_labels(c);
  const Graph& graph = c.builder().graph();
  const OpId producer = graph[c.required(0)].producer;
  const bool log_softmax_before = producer.valid() && graph[producer].kind == OpKind::Softmax &&
                                  std::get<SoftmaxAttrs>(graph[producer].attrs).log &&
                                  std::get<SoftmaxAttrs>(graph[producer].attrs).axis == 1;
  if (log_softmax_before && is_plain_mean(c))
    plain_mean(c, graph[producer].inputs[0]);
  else
    reduce_terms(c, loss_terms(c, c.in(0)));
}

}  // namespace

void add_loss_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"NegativeLogLikelihoodLoss", negative_log_likelihood},
      {"SoftmaxCrossEntropyLoss", softmax_cross_entropy},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass

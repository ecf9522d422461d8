#include "windlass/model/huggingface/transformer_blocks.h"

#include <cmath>
#include <utility>

#include "windlass/base/error.h"

namespace windlass {

namespace {

// A further loss, with a label and a name of its own.
TensorId named_loss(GraphBuilder& builder, const HeadOutput& prediction) {
  TensorType target = builder.type(prediction.tensor);
  const std::string name = "loss." + prediction.label;
  if (prediction.regression) {
    const TensorId label = builder.label(prediction.label, std::move(target));
    return builder.op(OpKind::MeanSquaredError, NoAttrs{}, {prediction.tensor, label}, name);
  }
  target.dtype = DType::I64;
  target.shape.pop_back();
  const auto axis = static_cast<int64_t>(target.shape.size());
  const TensorId label = builder.label(prediction.label, std::move(target));
  return builder.op(OpKind::CrossEntropy, CrossEntropyAttrs{.axis = axis},
                    {prediction.tensor, label}, name);
}

}  // namespace

Graph finish(Layers& net, const std::vector<HeadOutput>& predictions) {
  GraphBuilder& builder = net.builder();
  TensorId loss;
  for (const HeadOutput& prediction : predictions) {
    builder.set_output(prediction.tensor);
    const TensorId term = !prediction.label.empty() ? named_loss(builder, prediction)
                          : prediction.regression
                              ? builder.attach_mean_squared_error(prediction.tensor)
                              : builder.attach_cross_entropy(prediction.tensor);
    loss = loss.valid() ? net.add(loss, term, "loss.sum") : term;
  }
  builder.set_loss(loss);
  return builder.finish();
}

Graph finish_decoder(Layers& net, TensorId hidden, const ModelTask& task, const DecoderHead& head) {
  switch (task.head) {
    case Head::Base: return finish(net, {{hidden, true}});
    case Head::LanguageModel: {
      const TensorId matrix =
          head.table.valid()
              ? head.table
              : net.weight(head.output + ".weight", {head.vocabulary, net.dim(hidden, -1)});
      const TensorId bias =
          head.output_bias ? net.weight(head.output + ".bias", {head.vocabulary}) : TensorId();
      return finish(net, {{net.linear_with(hidden, matrix, bias, head.output)}});
    }
    case Head::SequenceClassification: {
      const TensorId last = token_at(net, hidden, net.dim(hidden, 1) - 1, "last_token");
      return finish(net, {classes(net.linear(last, task.labels, "score", false), task)});
    }
    case Head::TokenClassification: {
      const TensorId x =
          net.dropout(hidden, head.classifier_dropout, head.token_classifier + ".dropout");
      return finish(net, {classes(net.linear(x, task.labels, head.token_classifier), task)});
    }
    case Head::QuestionAnswering: return finish(net, {{answer_span(net, hidden, "qa_outputs")}});
    default: break;
  }
  throw Error(ErrorKind::Internal, "internal error: a decoder was asked for another family's head");
}

TensorId answer_span(Layers& net, TensorId hidden, const std::string& name) {
  return net.transpose(net.linear(hidden, 2, name), {0, 2, 1}, name + ".positions");
}

std::string module_prefix(const ModelTask& task, const std::string& prefix) {
  return task.head == Head::Base ? "" : prefix + ".";
}

TensorId position_rows(Layers& net, const std::string& name, int64_t rows, int64_t width,
                       int64_t first, int64_t sequence) {
  const TensorId table = net.weight(name + ".weight", {rows, width});
  return sequence == rows ? table : net.slice(table, 0, first, first + sequence, name);
}

TensorId token_at(Layers& net, TensorId hidden, int64_t index, const std::string& name) {
  const Shape sizes = net.shape(hidden);
  const TensorId token = net.slice(hidden, 1, index, index + 1, name);
  return net.reshape(token, {sizes[0], sizes[2]}, name + ".flat");
}

TensorId activate(Layers& net, TensorId x, const Activation& activation, const std::string& name) {
  return net.unary(x, activation.fn, name, activation.alpha, activation.beta);
}

TensorId attend(Layers& net, TensorId q, TensorId k, TensorId v, AttentionAttrs attrs,
                const std::string& name, TensorId mask) {
  attrs.scale /= std::sqrt(static_cast<double>(net.dim(q, -1)));
  return net.merge_heads(net.attention(q, k, v, attrs, name, mask), name);
}

int64_t head_size(int64_t hidden, int64_t heads) {
  if (heads < 1 || hidden % heads != 0)
    fail_input("a hidden size of {} cannot be divided into {} attention heads", hidden, heads);
  return hidden / heads;
}

void check_key_heads(int64_t heads, int64_t key_heads) {
  if (key_heads < 1 || heads % key_heads != 0)
    fail_input("{} attention heads cannot share {} key-value heads evenly", heads, key_heads);
}

}  // namespace windlass

// Losses: scalars, means over the rows that count.

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Calls visit(row, label, at) for each row whose label counts, at(c) being the offset of class c.
template <class Visit>
void for_each_labelled(const CrossEntropyAttrs& attrs, const Shape& logits, const Array& labels,
                       Visit&& visit) {
  const AxisView view = view_axis(logits, attrs.axis);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      const int64_t row = o * view.inner + n;
      const auto label = static_cast<int64_t>(labels.values[row]);
      if (label == attrs.ignore_index) continue;
      if (label < 0 || label >= view.size)
        fail_input("label {} of row {} is out of range for {} classes", label, row, view.size);
      visit(row, label, [&](int64_t c) { return (o * view.size + c) * view.inner + n; });
    }
  }
}

// log(sum(exp)) of every row, whatever its label.
Array row_statistics(const CrossEntropyAttrs& attrs, const Array& logits, const Shape& rows) {
  const AxisView view = view_axis(logits.shape, attrs.axis);
  Array lse(rows);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      const auto logit = [&](int64_t c) {
        return logits.values[(o * view.size + c) * view.inner + n];
      };
      double top = logit(0), sum = 0;
      for (int64_t c = 1; c < view.size; ++c) top = std::max(top, logit(c));
      for (int64_t c = 0; c < view.size; ++c) sum += std::exp(logit(c) - top);
      lse.values[o * view.inner + n] = top + std::log(sum);
    }
  }
  return lse;
}

// What a mean over `own` elements here divides by.
double divisor_of(const PieceFacts& facts, double own) {
  return facts.mean_count < 0 ? own : facts.mean_count;
}

}  // namespace

// The mean over no rows is NaN, as in PyTorch.
ForwardResult cross_entropy_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const Array& logits = call.input(0);
  const Array& labels = call.input(1);
  const Array lse = row_statistics(attrs, logits, labels.shape);
  double total = 0;
  for_each_labelled(attrs, logits.shape, labels, [&](int64_t row, int64_t label, const auto& at) {
    total += lse.values[row] - logits.values[at(label)];
  });
  const double count = counted_labels(attrs, labels);
  return {{Array(Shape{}, total / divisor_of(call.facts, count))}, {lse, Array(Shape{}, count)}};
}

std::vector<Array> cross_entropy_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  if (!call.wants(0)) return {};
  const Array& logits = call.input(0);
  const Array& labels = call.input(1);
  const Array& lse = call.auxiliary(0);
  const double g =
      call.gradient().values[0] / divisor_of(call.facts(), call.auxiliary(1).values[0]);
  const int64_t classes = logits.shape[attrs.axis];
  Array dlogits(logits.shape);
  for_each_labelled(attrs, logits.shape, labels, [&](int64_t row, int64_t label, const auto& at) {
    for (int64_t c = 0; c < classes; ++c) {
      dlogits.values[at(c)] =
          g * (std::exp(logits.values[at(c)] - lse.values[row]) - (c == label ? 1 : 0));
    }
  });
  return {dlogits};
}

ForwardResult mean_squared_error_forward(const ForwardCall& call) {
  const Array& a = call.input(0);
  const Array& b = call.input(1);
  ensure(a.shape == b.shape, "MeanSquaredError operands differ in shape");
  double total = 0;
  for (size_t i = 0; i < a.values.size(); ++i)
    total += (a.values[i] - b.values[i]) * (a.values[i] - b.values[i]);
  const double count = divisor_of(call.facts, static_cast<double>(a.values.size()));
  return {{Array(Shape{}, total / count)}, {}};
}

std::vector<Array> mean_squared_error_backward(const BackwardCall& call) {
  const Array& a = call.input(0);
  const Array& b = call.input(1);
  const double count = divisor_of(call.facts(), static_cast<double>(a.values.size()));
  const double g = 2 * call.gradient().values[0] / count;
  Array da = call.zeros_if_wanted(0), db = call.zeros_if_wanted(1);
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (call.wants(0)) da.values[i] = g * (a.values[i] - b.values[i]);
    if (call.wants(1)) db.values[i] = g * (b.values[i] - a.values[i]);
  }
  return {da, db};
}

}  // namespace windlass::reference

namespace windlass {

double counted_labels(const CrossEntropyAttrs& attrs, const Array& labels) {
  const auto ignored = std::count(labels.values.begin(), labels.values.end(), attrs.ignore_index);
  return static_cast<double>(static_cast<int64_t>(labels.values.size()) - ignored);
}

}  // namespace windlass

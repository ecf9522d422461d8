// Losses: scalars, means over the rows that count.

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Calls visit(row, label, at) for each row whose label counts, at(c) being the offset of class c;
// the label is -1 if its class is not one of those here.
template <class Visit>
void for_each_labelled(const CrossEntropyAttrs& attrs, const Shape& logits, const Array& labels,
                       const AxisPart& here, Visit&& visit) {
  const AxisView view = view_axis(logits, attrs.axis);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      const int64_t row = o * view.inner + n;
      const auto label = static_cast<int64_t>(labels.values[row]);
      if (label == attrs.ignore_index) continue;
      const int64_t classes = here.whole_size(view.size);
      if (label < 0 || label >= classes)
        fail_input("label {} of row {} is out of range for {} classes", label, row, classes);
      visit(row, here.to_local(label),
            [&](int64_t c) { return (o * view.size + c) * view.inner + n; });
    }
  }
}

// What a mean over `own` elements here divides by.
double divisor_of(const PieceFacts& facts, double own) {
  return facts.mean_count < 0 ? own : facts.mean_count;
}

}  // namespace

// Of every row, whatever its label: the maximum, the sum of exponentials relative to it, and the
// logit of the label if that counts and is here.
Array cross_entropy_begin(const ForwardCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const Array& logits = call.input(0);
  const Array& labels = call.input(1);
  const AxisView view = view_axis(logits.shape, attrs.axis);
  Shape shape = labels.shape;
  shape.push_back(3);
  Array statistics(shape);
  for (int64_t row = 0; row < view.outer * view.inner; ++row) {
    const Exponentials found = exponentials_of(view.size, [&](int64_t c) {
      return logits.values[(row / view.inner * view.size + c) * view.inner + row % view.inner];
    });
    statistics.values[row * 3] = found.top;
    statistics.values[row * 3 + 1] = found.sum;
  }
  for_each_labelled(attrs, logits.shape, labels, call.facts.rows,
                    [&](int64_t row, int64_t label, const auto& at) {
                      if (label >= 0) statistics.values[row * 3 + 2] = logits.values[at(label)];
                    });
  return statistics;
}

// The mean over no rows is NaN, as in PyTorch.
ForwardResult cross_entropy_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const Array& labels = call.input(1);
  const Array statistics =
      call.statistics != nullptr ? *call.statistics : cross_entropy_begin(call);
  Array lse(labels.shape);
  double total = 0;
  for (size_t row = 0; row < lse.values.size(); ++row) {
    const double* found = &statistics.values[row * 3];
    lse.values[row] = found[0] + std::log(found[1]);
    const bool counts = static_cast<int64_t>(labels.values[row]) != attrs.ignore_index;
    if (counts) total += lse.values[row] - found[2];
  }
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
  for_each_labelled(
      attrs, logits.shape, labels, call.facts().rows,
      [&](int64_t row, int64_t label, const auto& at) {
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

// Local response normalisation: over neighbouring channels.

#include <algorithm>
#include <cmath>

#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Window of the channels around `c`: floor((size - 1) / 2) before, the rest after, as in ONNX.
Range lrn_window(const LrnAttrs& attrs, int64_t c, int64_t channels) {
  const int64_t begin = c - (attrs.size - 1) / 2;
  return {std::max(begin, int64_t{0}), std::min(begin + attrs.size, channels)};
}

// Channels of the input that have an output here.
Range lrn_outputs(const PieceFacts& facts, int64_t channels) {
  return facts.channels.size() == 0 ? Range{0, channels} : facts.channels;
}

// bias + alpha / size * (sum of squares over the window of each element).
std::vector<double> lrn_denominators(const LrnAttrs& attrs, const Array& x) {
  const AxisView view = view_axis(x.shape, 1);
  std::vector<double> result(x.values.size());
  for (int64_t b = 0; b < view.outer; ++b) {
    for (int64_t c = 0; c < view.size; ++c) {
      for (int64_t i = 0; i < view.inner; ++i) {
        const Range window = lrn_window(attrs, c, view.size);
        double sum = 0;
        for (int64_t n = window.begin; n < window.end; ++n) {
          const double value = x.values[(b * view.size + n) * view.inner + i];
          sum += value * value;
        }
        result[(b * view.size + c) * view.inner + i] =
            attrs.bias + attrs.alpha / static_cast<double>(attrs.size) * sum;
      }
    }
  }
  return result;
}

}  // namespace

ForwardResult local_response_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<LrnAttrs>();
  const Array& x = call.input(0);
  const std::vector<double> denominators = lrn_denominators(attrs, x);
  const AxisView view = view_axis(x.shape, 1);
  const Range out = lrn_outputs(call.facts, view.size);
  Array y(x.shape);
  y.shape[1] = out.size();
  y.values.clear();
  for (int64_t b = 0; b < view.outer; ++b) {
    for (int64_t i = out.begin * view.inner; i < out.end * view.inner; ++i) {
      const int64_t e = b * view.size * view.inner + i;
      y.values.push_back(x.values[e] * std::pow(denominators[e], -attrs.beta));
    }
  }
  return {{y}, {}};
}

// With D the denominators: dx_c = dy_c D_c^-beta - 2 alpha beta / size x_c sum of dy_n y_n / D_n
// over the channels n whose window has c.
std::vector<Array> local_response_norm_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<LrnAttrs>();
  if (!call.wants(0)) return {Array()};
  const Array& dy = call.gradient();
  const Array& x = call.input(0);
  const Array& y = call.output(0);
  const std::vector<double> denominators = lrn_denominators(attrs, x);
  const AxisView view = view_axis(x.shape, 1);
  const double factor = 2 * attrs.alpha * attrs.beta / static_cast<double>(attrs.size);
  const Range out = lrn_outputs(call.facts(), view.size);
  Array dx(x.shape);
  for (int64_t b = 0; b < view.outer; ++b) {
    for (int64_t n = out.begin; n < out.end; ++n) {
      for (int64_t i = 0; i < view.inner; ++i) {
        const auto at = [&](int64_t c) { return (b * view.size + c) * view.inner + i; };
        const int64_t e = at(n), o = (b * out.size() + n - out.begin) * view.inner + i;
        dx.values[e] += dy.values[o] * std::pow(denominators[e], -attrs.beta);
        const double share = factor * dy.values[o] * y.values[o] / denominators[e];
        const Range window = lrn_window(attrs, n, view.size);
        for (int64_t c = window.begin; c < window.end; ++c)
          dx.values[at(c)] -= share * x.values[at(c)];
      }
    }
  }
  return {dx};
}

}  // namespace windlass::reference

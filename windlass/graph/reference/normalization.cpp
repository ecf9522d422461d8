// Normalisation. Batch, layer and group normalisation differ only in which elements are normalised
// together and how scale and bias are laid out, so they share one description (Groups) and one
// formula:
//   xhat = (x - mean) rstd,  y = xhat scale + bias,  g = dy scale,
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),
// where RMS normalisation has mean 0 and lacks the term mean(g).

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Group i consists of the runs of `inner` elements that begin at i * inner + o * outer_stride.
// Element e takes parameter e / parameter_inner % parameter_count.
struct Groups {
  int64_t count = 1;
  int64_t outer = 1, outer_stride = 0, inner = 1;
  int64_t parameter_inner = 1, parameter_count = 1;

  double size() const { return static_cast<double>(outer * inner); }
  int64_t parameter(int64_t element) const { return element / parameter_inner % parameter_count; }

  template <class Visit>
  void for_each(int64_t group, Visit&& visit) const {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) visit(group * inner + o * outer_stride + i);
  }
};

Groups batch_groups(const Shape& x) {
  const AxisView view = view_axis(x, 1);
  return {view.size, view.outer, view.size * view.inner, view.inner, view.inner, view.size};
}

Groups trailing_groups(const Shape& x, int64_t axis) {
  const auto from = static_cast<size_t>(axis);
  const int64_t size = product(x, from, x.size());
  return {product(x, 0, from), 1, 0, size, 1, size};
}

Groups channel_groups(const Shape& x, int64_t groups) {
  const AxisView view = view_axis(x, 1);
  return {view.outer * groups, 1, 0, view.size / groups * view.inner, view.inner, view.size};
}

// Mean (0 if not `centered`) and 1 / sqrt(mean square deviation + epsilon) of each group.
struct Statistics {
  std::vector<double> mean, rstd;
};

Statistics statistics_of(const Groups& groups, const std::vector<double>& x, double epsilon,
                         bool centered) {
  Statistics result;
  for (int64_t group = 0; group < groups.count; ++group) {
    double mean = 0, square = 0;
    if (centered) groups.for_each(group, [&](int64_t e) { mean += x[e] / groups.size(); });
    groups.for_each(group, [&](int64_t e) { square += (x[e] - mean) * (x[e] - mean); });
    result.mean.push_back(mean);
    result.rstd.push_back(1 / std::sqrt(square / groups.size() + epsilon));
  }
  return result;
}

// y = xhat (scale + offset) + bias; scale and bias may be null.
Array normalize(const Groups& groups, const Array& x, const Statistics& statistics,
                const Array* scale, const Array* bias, double scale_offset = 0) {
  Array y(x.shape);
  for (int64_t group = 0; group < groups.count; ++group) {
    groups.for_each(group, [&](int64_t e) {
      const int64_t p = groups.parameter(e);
      const double xhat = (x.values[e] - statistics.mean[group]) * statistics.rstd[group];
      y.values[e] = xhat * (scale != nullptr ? scale->values[p] + scale_offset : 1) +
                    (bias != nullptr ? bias->values[p] : 0);
    });
  }
  return y;
}

enum class Form : uint8_t {
  Centered,  // statistics depend on x
  Rms,       // so does the root mean square, there is no mean
  Fixed,     // statistics are given
};

// Gradients of x, scale and bias. `statistics` is asked for only if x or scale is wanted.
template <class GetStatistics>
std::vector<Array> normalization_backward(const BackwardCall& call, const Groups& groups, Form form,
                                          double scale_offset, GetStatistics&& get_statistics) {
  const Array& dy = call.gradient();
  Array dx = call.zeros_if_wanted(0), dscale = call.zeros_if_wanted(1);
  Array dbias = call.zeros_if_wanted(2);
  if (call.wants(2)) {
    for (size_t e = 0; e < dy.values.size(); ++e)
      dbias.values[groups.parameter(static_cast<int64_t>(e))] += dy.values[e];
  }
  if (!call.wants(0) && !call.wants(1)) return {dx, dscale, dbias};

  const Statistics statistics = get_statistics();
  // With fixed statistics dx does not depend on x.
  const bool needs_x = call.wants(1) || form != Form::Fixed;
  const double* x = needs_x ? call.input(0).values.data() : nullptr;
  const bool scaled = call.signature().has_input(1);
  const double* scale = scaled && call.wants(0) ? call.input(1).values.data() : nullptr;
  for (int64_t group = 0; group < groups.count; ++group) {
    const double rstd = statistics.rstd[group];
    const auto xhat = [&](int64_t e) {
      return x != nullptr ? (x[e] - statistics.mean[group]) * rstd : 0;
    };
    const auto g = [&](int64_t e) {
      return dy.values[e] * (scale != nullptr ? scale[groups.parameter(e)] + scale_offset : 1);
    };
    double mean_g = 0, mean_gxhat = 0;
    groups.for_each(group, [&](int64_t e) {
      if (form == Form::Centered) mean_g += g(e) / groups.size();
      if (form != Form::Fixed) mean_gxhat += g(e) * xhat(e) / groups.size();
      if (call.wants(1)) dscale.values[groups.parameter(e)] += dy.values[e] * xhat(e);
    });
    if (call.wants(0)) {
      groups.for_each(
          group, [&](int64_t e) { dx.values[e] = rstd * (g(e) - mean_g - xhat(e) * mean_gxhat); });
    }
  }
  return {dx, dscale, dbias};
}

const Array* optional_input(const ForwardCall& call, size_t i) {
  return call.has(i) ? &call.input(i) : nullptr;
}

Shape leading_shape(const Shape& x, int64_t axis) { return Shape(x.begin(), x.begin() + axis); }

std::vector<double> inverse_deviation(const std::vector<double>& variance, double epsilon) {
  std::vector<double> result = variance;
  for (double& v : result) v = 1 / std::sqrt(v + epsilon);
  return result;
}

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

ForwardResult batch_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<BatchNormAttrs>();
  const Array& x = call.input(0);
  const Groups groups = batch_groups(x.shape);
  if (!attrs.training) {
    const Statistics running = {call.input(3).values,
                                inverse_deviation(call.input(4).values, attrs.epsilon)};
    return {{normalize(groups, x, running, &call.input(1), &call.input(2))}, {}};
  }
  const Statistics batch = statistics_of(groups, x.values, attrs.epsilon, true);
  const Shape channels = {x.shape[1]};
  return {{normalize(groups, x, batch, &call.input(1), &call.input(2))},
          {Array(channels, batch.mean), Array(channels, batch.rstd)}};
}

std::vector<Array> batch_norm_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<BatchNormAttrs>();
  const Groups groups = batch_groups(call.shape(0));
  if (attrs.training) {
    return normalization_backward(call, groups, Form::Centered, 0, [&] {
      return Statistics{call.auxiliary(0).values, call.auxiliary(1).values};
    });
  }
  return normalization_backward(call, groups, Form::Fixed, 0, [&] {
    // The mean enters only the gradient of the scale.
    return Statistics{call.wants(1) ? call.input(3).values : std::vector<double>(groups.count, 0),
                      inverse_deviation(call.input(4).values, attrs.epsilon)};
  });
}

ForwardResult layer_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<LayerNormAttrs>();
  const Array& x = call.input(0);
  const Groups groups = trailing_groups(x.shape, attrs.axis);
  const Statistics statistics = statistics_of(groups, x.values, attrs.epsilon, true);
  const Shape leading = leading_shape(x.shape, attrs.axis);
  return {{normalize(groups, x, statistics, optional_input(call, 1), optional_input(call, 2))},
          {Array(leading, statistics.mean), Array(leading, statistics.rstd)}};
}

std::vector<Array> layer_norm_backward(const BackwardCall& call) {
  const Groups groups = trailing_groups(call.shape(0), call.attrs<LayerNormAttrs>().axis);
  return normalization_backward(call, groups, Form::Centered, 0, [&] {
    return Statistics{call.auxiliary(0).values, call.auxiliary(1).values};
  });
}

ForwardResult rms_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<LayerNormAttrs>();
  const Array& x = call.input(0);
  const Groups groups = trailing_groups(x.shape, attrs.axis);
  const Statistics statistics = statistics_of(groups, x.values, attrs.epsilon, false);
  return {{normalize(groups, x, statistics, optional_input(call, 1), nullptr, attrs.scale_offset)},
          {Array(leading_shape(x.shape, attrs.axis), statistics.rstd)}};
}

std::vector<Array> rms_norm_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<LayerNormAttrs>();
  const Groups groups = trailing_groups(call.shape(0), attrs.axis);
  return normalization_backward(call, groups, Form::Rms, attrs.scale_offset, [&] {
    return Statistics{std::vector<double>(groups.count, 0), call.auxiliary(0).values};
  });
}

ForwardResult group_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<GroupNormAttrs>();
  const Array& x = call.input(0);
  const Groups groups = channel_groups(x.shape, attrs.groups);
  const Statistics statistics = statistics_of(groups, x.values, attrs.epsilon, true);
  const Shape shape = {x.shape[0], attrs.groups};
  return {{normalize(groups, x, statistics, optional_input(call, 1), optional_input(call, 2))},
          {Array(shape, statistics.mean), Array(shape, statistics.rstd)}};
}

std::vector<Array> group_norm_backward(const BackwardCall& call) {
  const Groups groups = channel_groups(call.shape(0), call.attrs<GroupNormAttrs>().groups);
  return normalization_backward(call, groups, Form::Centered, 0, [&] {
    return Statistics{call.auxiliary(0).values, call.auxiliary(1).values};
  });
}

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

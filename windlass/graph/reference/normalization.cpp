// Normalisation. Batch, layer and group normalisation differ only in which elements are normalised
// together and how scale and bias are laid out, so they share one description (Groups) and one
// formula:
//   xhat = (x - mean) rstd,  y = xhat scale + bias,  g = dy scale,
//   dx = rstd (g - mean(g) - xhat mean(g xhat)),
// where RMS normalisation has mean 0 and lacks the term mean(g). What pieces of a group exchange
// are the moments of x forward, and the sums of g and g xhat backward.

#include <algorithm>
#include <cmath>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Group i consists of the runs of `inner` elements that begin at i * inner + o * outer_stride.
// Element e takes parameter e / parameter_inner % parameter_count.
struct Groups {
  Shape shape;  // of the statistics: one for each group
  int64_t outer = 1, outer_stride = 0, inner = 1;
  int64_t parameter_inner = 1, parameter_count = 1;
  // Parameters of one group if no other elements of the group than those of one channel take each;
  // 0 if every element of a group has its own.
  int64_t channels = 0;

  int64_t count() const { return element_count(shape); }
  double size() const { return static_cast<double>(outer * inner); }
  int64_t parameter(int64_t element) const { return element / parameter_inner % parameter_count; }
  // Parameter of channel `c` of a group.
  int64_t parameter_of(int64_t group, int64_t c) const {
    return group % (parameter_count / channels) * channels + c;
  }

  Array rows(int64_t width) const {
    Shape whole = shape;
    whole.push_back(width);
    return Array(whole);
  }

  template <class Visit>
  void for_each(int64_t group, Visit&& visit) const {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < inner; ++i) visit(group * inner + o * outer_stride + i);
  }
};

Groups batch_groups(const Shape& x) {
  const AxisView view = view_axis(x, 1);
  return {{view.size}, view.outer, view.size * view.inner, view.inner, view.inner, view.size, 1};
}

Groups trailing_groups(const Shape& x, int64_t axis) {
  const auto from = static_cast<size_t>(axis);
  const int64_t size = product(x, from, x.size());
  return {Shape(x.begin(), x.begin() + axis), 1, 0, size, 1, size, 0};
}

Groups channel_groups(const Shape& x, int64_t groups) {
  const AxisView view = view_axis(x, 1);
  const int64_t width = view.size / groups;
  return {{view.outer, groups}, 1, 0, width * view.inner, view.inner, view.size, width};
}

// What a mean over a group divides by.
double group_size(const Groups& groups, const PieceFacts& facts) {
  return facts.mean_count < 0 ? groups.size() : facts.mean_count;
}

// Count, mean and sum of squared deviations of each group.
Array moments_of(const Groups& groups, const Array& x) {
  Array result = groups.rows(3);
  for (int64_t group = 0; group < groups.count(); ++group) {
    double mean = 0, square = 0;
    groups.for_each(group, [&](int64_t e) { mean += x.values[e] / groups.size(); });
    groups.for_each(group,
                    [&](int64_t e) { square += (x.values[e] - mean) * (x.values[e] - mean); });
    result.values[group * 3] = groups.size();
    result.values[group * 3 + 1] = mean;
    result.values[group * 3 + 2] = square;
  }
  return result;
}

Array squares_of(const Groups& groups, const Array& x) {
  Array result = groups.rows(1);
  for (int64_t group = 0; group < groups.count(); ++group)
    groups.for_each(group, [&](int64_t e) { result.values[group] += x.values[e] * x.values[e]; });
  return result;
}

// Mean and 1 / sqrt(mean square deviation + epsilon) of each group.
struct Statistics {
  std::vector<double> mean, rstd;
};

Statistics statistics_of(const Array& moments, double epsilon) {
  Statistics result;
  for (size_t at = 0; at < moments.values.size(); at += 3) {
    const double variance = moments.values[at + 2] / moments.values[at];
    result.mean.push_back(moments.values[at + 1]);
    result.rstd.push_back(1 / std::sqrt(variance + epsilon));
  }
  return result;
}

// y = xhat (scale + offset) + bias; scale and bias may be null.
Array normalize(const Groups& groups, const Array& x, const Statistics& statistics,
                const Array* scale, const Array* bias, double scale_offset = 0) {
  Array y(x.shape);
  for (int64_t group = 0; group < groups.count(); ++group) {
    groups.for_each(group, [&](int64_t e) {
      const int64_t p = groups.parameter(e);
      const double xhat = (x.values[e] - statistics.mean[group]) * statistics.rstd[group];
      y.values[e] = xhat * (scale != nullptr ? scale->values[p] + scale_offset : 1) +
                    (bias != nullptr ? bias->values[p] : 0);
    });
  }
  return y;
}

// A normalisation seen from its gradients.
class NormGradient {
 public:
  enum class Form : uint8_t {
    Centered,  // statistics depend on x
    Rms,       // so does the root mean square, there is no mean
    Fixed,     // statistics are given
  };

  // `statistics` is asked for only if x or scale is wanted.
  template <class GetStatistics>
  NormGradient(const BackwardCall& call, Groups groups, Form form, double scale_offset,
               GetStatistics&& statistics)
      : call_(call), groups_(std::move(groups)), form_(form), scale_offset_(scale_offset) {
    if (!call.wants(0) && !call.wants(1)) return;
    statistics_ = statistics();
    // With fixed statistics dx does not depend on x.
    if (call.wants(1) || form != Form::Fixed) x_ = call.input(0).values.data();
    if (call.signature().has_input(1) && call.wants(0)) scale_ = call.input(1).values.data();
  }

  // The sums that pieces of a group share. If channels take one parameter each, the sums of dy of
  // each channel, then those of dy xhat, which are also the gradients of bias and scale. Otherwise
  // the sum of g (but for the RMS), and that of g xhat.
  Array sums() const {
    const int64_t c = groups_.channels, width = c > 0 ? 2 * c : form_ == Form::Rms ? 1 : 2;
    Array result = groups_.rows(width);
    for (int64_t group = 0; group < groups_.count(); ++group) {
      double* row = &result.values[group * width];
      groups_.for_each(group, [&](int64_t e) {
        const double dy = call_.gradient().values[e];
        if (c > 0) {
          row[groups_.parameter(e) % c] += dy;
          row[c + groups_.parameter(e) % c] += dy * xhat(group, e);
        } else {
          if (width == 2) row[0] += g(e);
          row[width - 1] += g(e) * xhat(group, e);
        }
      });
    }
    return result;
  }

  // Gradients of x, scale and bias.
  std::vector<Array> run() const {
    const Array found = call_.statistics() != nullptr ? *call_.statistics() : sums();
    Array dx = call_.zeros_if_wanted(0), dscale = call_.zeros_if_wanted(1);
    Array dbias = call_.zeros_if_wanted(2);
    for (int64_t group = 0; group < groups_.count(); ++group) {
      add_parameter_gradients(group, found, dscale, dbias);
      if (!call_.wants(0)) continue;
      const auto mean = means(group, found);  // of g, and of g times xhat
      groups_.for_each(group, [&](int64_t e) {
        dx.values[e] = statistics_.rstd[group] * (g(e) - mean.first - xhat(group, e) * mean.second);
      });
    }
    return {dx, dscale, dbias};
  }

 private:
  double xhat(int64_t group, int64_t e) const {
    return x_ != nullptr ? (x_[e] - statistics_.mean[group]) * statistics_.rstd[group] : 0;
  }
  double weight(int64_t parameter) const {
    return scale_ != nullptr ? scale_[parameter] + scale_offset_ : 1;
  }
  double g(int64_t e) const { return call_.gradient().values[e] * weight(groups_.parameter(e)); }

  void add_parameter_gradients(int64_t group, const Array& found, Array& dscale,
                               Array& dbias) const {
    const int64_t c = groups_.channels;
    for (int64_t i = 0; i < c; ++i) {
      const int64_t p = groups_.parameter_of(group, i);
      if (call_.wants(2)) dbias.values[p] += found.values[group * 2 * c + i];
      if (call_.wants(1)) dscale.values[p] += found.values[(group * 2 + 1) * c + i];
    }
    if (c > 0) return;
    groups_.for_each(group, [&](int64_t e) {
      const double dy = call_.gradient().values[e];
      if (call_.wants(2)) dbias.values[groups_.parameter(e)] += dy;
      if (call_.wants(1)) dscale.values[groups_.parameter(e)] += dy * xhat(group, e);
    });
  }

  // Of g and of g xhat.
  std::pair<double, double> means(int64_t group, const Array& found) const {
    const int64_t c = groups_.channels, width = found.shape.back();
    const double* row = &found.values[group * width];
    double of_g = 0, of_gxhat = 0;
    for (int64_t i = 0; i < c; ++i) {
      of_g += row[i] * weight(groups_.parameter_of(group, i));
      of_gxhat += row[c + i] * weight(groups_.parameter_of(group, i));
    }
    if (c == 0) of_g = width == 2 ? row[0] : 0, of_gxhat = row[width - 1];
    if (form_ == Form::Fixed) return {0, 0};
    const double size = group_size(groups_, call_.facts());
    return {of_g / size, of_gxhat / size};
  }

  const BackwardCall& call_;
  Groups groups_;
  Form form_;
  double scale_offset_;
  Statistics statistics_;
  const double* x_ = nullptr;
  const double* scale_ = nullptr;
};

const Array* optional_input(const ForwardCall& call, size_t i) {
  return call.has(i) ? &call.input(i) : nullptr;
}

std::vector<double> inverse_deviation(const std::vector<double>& variance, double epsilon) {
  std::vector<double> result = variance;
  for (double& v : result) v = 1 / std::sqrt(v + epsilon);
  return result;
}

// Output and auxiliaries of a norm with mean and deviation.
ForwardResult centered_forward(const ForwardCall& call, const Groups& groups, double epsilon) {
  const Array moments =
      call.statistics != nullptr ? *call.statistics : moments_of(groups, call.input(0));
  const Statistics statistics = statistics_of(moments, epsilon);
  return {{normalize(groups, call.input(0), statistics, optional_input(call, 1),
                     optional_input(call, 2))},
          {Array(groups.shape, statistics.mean), Array(groups.shape, statistics.rstd)}};
}

NormGradient centered_gradient(const BackwardCall& call, const Groups& groups) {
  return {call, groups, NormGradient::Form::Centered, 0, [&] {
            return Statistics{call.auxiliary(0).values, call.auxiliary(1).values};
          }};
}

Groups layer_groups(const Signature& s) {
  return trailing_groups(s.shape(0), s.as<LayerNormAttrs>().axis);
}
Groups group_groups(const Signature& s) {
  return channel_groups(s.shape(0), s.as<GroupNormAttrs>().groups);
}

NormGradient rms_gradient(const BackwardCall& call) {
  const Groups groups = layer_groups(call.signature());
  const double offset = call.attrs<LayerNormAttrs>().scale_offset;
  return {call, groups, NormGradient::Form::Rms, offset, [&] {
            return Statistics{std::vector<double>(groups.count(), 0), call.auxiliary(0).values};
          }};
}

}  // namespace

Array batch_norm_begin(const ForwardCall& call) {
  return moments_of(batch_groups(call.input(0).shape), call.input(0));
}

ForwardResult batch_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<BatchNormAttrs>();
  const Groups groups = batch_groups(call.input(0).shape);
  if (attrs.training) return centered_forward(call, groups, attrs.epsilon);
  const Statistics running = {call.input(3).values,
                              inverse_deviation(call.input(4).values, attrs.epsilon)};
  return {{normalize(groups, call.input(0), running, &call.input(1), &call.input(2))}, {}};
}

// The running variance takes the unbiased one of the batch, as in PyTorch.
std::vector<Array> batch_norm_writes(const ForwardCall& call, const ForwardResult& result) {
  const auto& attrs = call.attrs<BatchNormAttrs>();
  if (!attrs.training) return {};
  const double size = group_size(batch_groups(call.input(0).shape), call.facts);
  Array mean = call.input(3), variance = call.input(4);
  for (size_t c = 0; c < mean.values.size(); ++c) {
    const double rstd = result.auxiliaries[1].values[c];
    const double unbiased = (1 / (rstd * rstd) - attrs.epsilon) * size / (size - 1);
    mean.values[c] += attrs.momentum * (result.auxiliaries[0].values[c] - mean.values[c]);
    variance.values[c] += attrs.momentum * (unbiased - variance.values[c]);
  }
  return {mean, variance};
}

Array batch_norm_begin_backward(const BackwardCall& call) {
  return centered_gradient(call, batch_groups(call.shape(0))).sums();
}

std::vector<Array> batch_norm_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<BatchNormAttrs>();
  const Groups groups = batch_groups(call.shape(0));
  if (attrs.training) return centered_gradient(call, groups).run();
  const auto running = [&] {
    // The mean enters only the gradient of the scale.
    return Statistics{call.wants(1) ? call.input(3).values : std::vector<double>(groups.count(), 0),
                      inverse_deviation(call.input(4).values, attrs.epsilon)};
  };
  return NormGradient(call, groups, NormGradient::Form::Fixed, 0, running).run();
}

Array layer_norm_begin(const ForwardCall& call) {
  return moments_of(layer_groups(call.signature), call.input(0));
}

ForwardResult layer_norm_forward(const ForwardCall& call) {
  return centered_forward(call, layer_groups(call.signature), call.attrs<LayerNormAttrs>().epsilon);
}

Array layer_norm_begin_backward(const BackwardCall& call) {
  return centered_gradient(call, layer_groups(call.signature())).sums();
}

std::vector<Array> layer_norm_backward(const BackwardCall& call) {
  return centered_gradient(call, layer_groups(call.signature())).run();
}

Array rms_norm_begin(const ForwardCall& call) {
  return squares_of(layer_groups(call.signature), call.input(0));
}

ForwardResult rms_norm_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<LayerNormAttrs>();
  const Groups groups = layer_groups(call.signature);
  const Array squares = call.statistics != nullptr ? *call.statistics : rms_norm_begin(call);
  Statistics statistics = {std::vector<double>(groups.count(), 0), squares.values};
  for (double& value : statistics.rstd)
    value = 1 / std::sqrt(value / group_size(groups, call.facts) + attrs.epsilon);
  return {{normalize(groups, call.input(0), statistics, optional_input(call, 1), nullptr,
                     attrs.scale_offset)},
          {Array(groups.shape, statistics.rstd)}};
}

Array rms_norm_begin_backward(const BackwardCall& call) { return rms_gradient(call).sums(); }

std::vector<Array> rms_norm_backward(const BackwardCall& call) { return rms_gradient(call).run(); }

Array group_norm_begin(const ForwardCall& call) {
  return moments_of(group_groups(call.signature), call.input(0));
}

ForwardResult group_norm_forward(const ForwardCall& call) {
  return centered_forward(call, group_groups(call.signature), call.attrs<GroupNormAttrs>().epsilon);
}

Array group_norm_begin_backward(const BackwardCall& call) {
  return centered_gradient(call, group_groups(call.signature())).sums();
}

std::vector<Array> group_norm_backward(const BackwardCall& call) {
  return centered_gradient(call, group_groups(call.signature())).run();
}

}  // namespace windlass::reference

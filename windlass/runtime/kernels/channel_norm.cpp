// With xhat = (x - mean) rstd and g = dy scale: y = xhat scale + bias and
// dx = rstd (g - mean(g) - xhat mean(g xhat)). Forward, pieces exchange the moments of x; backward,
// of each channel the sums of dy and of dy xhat, which are the gradients of bias and scale too.
//
// Channels are divided over threads, and the sums of one are formed by one thread in a fixed order.

#include "windlass/runtime/kernels/channel_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {
namespace {

constexpr int64_t kChannelGrain = int64_t{1} << 15;  // elements worth a thread

// x [samples, channels, inner], of which groups of elements are normalised together.
struct ChannelGroups {
  int64_t samples, channels, inner;
  int64_t width;  // channels of a group
  bool apart;     // each sample has groups of its own; otherwise a group has its channel of all

  ChannelGroups(at::IntArrayRef x, int64_t group_width, bool samples_apart)
      : samples(x[0]), channels(x[1]), inner(1), width(group_width), apart(samples_apart) {
    for (size_t i = 2; i < x.size(); ++i) inner *= x[i];
  }

  int64_t groups() const { return (apart ? samples : 1) * channels / width; }
  int64_t size() const { return (apart ? 1 : samples) * width * inner; }
  WINDLASS_INLINE int64_t group(int64_t sample, int64_t channel) const {
    return (apart ? sample * channels + channel : channel) / width;
  }

  // Calls f(sample, first channel, end) for all channels of all samples, on several threads; the
  // samples of a channel in order and on one thread.
  template <class F>
  void each(const F& f) const {
    const int64_t units = apart ? samples * channels : channels;
    const int64_t work = std::max<int64_t>(1, inner * (apart ? 1 : samples));
    at::parallel_for(0, units, std::max<int64_t>(1, kChannelGrain / work),
                     [&](int64_t begin, int64_t end) {
                       if (!apart)
                         for (int64_t s = 0; s < samples; ++s) f(s, begin, end);
                       else
                         for (int64_t u = begin; u < end; ++u)
                           f(u / channels, u % channels, u % channels + 1);
                     });
  }
};

template <class T>
struct Terms {
  T first, second;
};

// Sums of term(element, channel, group), two of each channel of each group.
template <class T, class Term>
std::vector<double> channel_sums(const ChannelGroups& s, const Term& term) {
  std::vector<double> sums(static_cast<size_t>(2 * s.groups() * s.width), 0);
  double* all = sums.data();
  s.each([&](int64_t sample, int64_t begin, int64_t end) {
    vectorized([=]() WINDLASS_INLINE {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t group = s.group(sample, c), from = (sample * s.channels + c) * s.inner;
        T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
        for (int64_t i = 0; i < s.inner; ++i) {
          const Terms<T> terms = term(from + i, group);
          first += terms.first;
          second += terms.second;
        }
        double* to = all + 2 * (group * s.width + c % s.width);
        to[0] += static_cast<double>(first);
        to[1] += static_cast<double>(second);
      }
    });
  });
  return sums;
}

// Count, mean and sum of squared deviations of each group.
template <class E>
void moments(const ChannelGroups& s, const E* x, wide_t<E>* out) {
  using T = wide_t<E>;
  const auto fold = [&](const std::vector<double>& sums, int64_t group) {
    double total = 0;
    for (int64_t c = 0; c < s.width; ++c)
      total += sums[static_cast<size_t>(2 * (group * s.width + c))];
    return total;
  };
  const std::vector<double> sums = channel_sums<T>(s, [=](int64_t at, int64_t) WINDLASS_INLINE {
    return Terms<T>{static_cast<T>(x[at]), T(0)};
  });
  for (int64_t g = 0; g < s.groups(); ++g) {
    out[g * 3] = static_cast<T>(s.size());
    out[g * 3 + 1] = static_cast<T>(fold(sums, g) / static_cast<double>(s.size()));
  }
  const std::vector<double> squares =
      channel_sums<T>(s, [=](int64_t at, int64_t group) WINDLASS_INLINE {
        const T deviation = static_cast<T>(x[at]) - out[group * 3 + 1];
        return Terms<T>{deviation * deviation, T(0)};
      });
  for (int64_t g = 0; g < s.groups(); ++g) out[g * 3 + 2] = static_cast<T>(fold(squares, g));
}

template <class T>
const T* wide_data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<T>() : nullptr;
}

at::Tensor parameter_of(const ForwardCall& call, size_t i) {
  return call.has(i) ? widened(call.input(i)) : at::Tensor();
}

template <class E>
void normalize(ForwardCall& call, const ChannelGroups& s, double epsilon) {
  using T = wide_t<E>;
  const T* merged = call.statistics->data_ptr<T>();
  std::vector<T> means, rstds;
  for (int64_t g = 0; g < s.groups(); ++g) {
    const double variance =
        static_cast<double>(merged[g * 3 + 2]) / static_cast<double>(merged[g * 3]);
    means.push_back(merged[g * 3 + 1]);
    rstds.push_back(static_cast<T>(1 / std::sqrt(variance + epsilon)));
  }
  for (const size_t i : {0, 1})
    if (call.wants_auxiliary(i))
      std::ranges::copy(i == 0 ? means : rstds,
                        call.auxiliaries[i].allocate().template data_ptr<T>());
  const at::Tensor scale = parameter_of(call, 1), bias = parameter_of(call, 2);
  const T *w = wide_data<T>(scale), *b = wide_data<T>(bias);
  const T *mean = means.data(), *rstd = rstds.data();
  const E* x = call.input(0).template data_ptr<E>();
  E* y = call.outputs[0].allocate().template data_ptr<E>();
  s.each([&](int64_t sample, int64_t begin, int64_t end) {
    vectorized([=]() WINDLASS_INLINE {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t group = s.group(sample, c), from = (sample * s.channels + c) * s.inner;
        const T factor = rstd[group] * (w == nullptr ? T(1) : w[c]);
        const T center = mean[group], shift = b == nullptr ? T(0) : b[c];
#pragma omp simd
        for (int64_t i = from; i < from + s.inner; ++i)
          y[i] = static_cast<E>((static_cast<T>(x[i]) - center) * factor + shift);
      }
    });
  });
}

// The running variance takes the unbiased one of the batch, as in PyTorch.
template <class T>
void update_running(const ForwardCall& call) {
  const double momentum = call.attrs<BatchNormAttrs>().momentum;
  const T* merged = call.statistics->data_ptr<T>();
  for (const size_t which : {0, 1}) {
    const at::Tensor& running = call.input(3 + which);
    const at::Tensor values = running.to(at::kDouble);
    auto* data = values.data_ptr<double>();
    for (int64_t c = 0; c < values.numel(); ++c) {
      const auto count = static_cast<double>(merged[c * 3]);
      const double found = which == 0 ? static_cast<double>(merged[c * 3 + 1])
                                      : static_cast<double>(merged[c * 3 + 2]) / (count - 1);
      data[c] += momentum * (found - data[c]);
    }
    if (!values.is_same(running)) running.copy_(values);
  }
}

// A normalisation seen from its gradients. Statistics are of [group, 2 * width]: the sums of dy of
// the group's channels, then those of dy xhat.
template <class E>
struct ChannelGradient {
  using T = wide_t<E>;
  ChannelGroups groups;
  const E* dy;
  const E* x = nullptr;  // null if neither x nor scale has a gradient that is wanted
  const T* mean = nullptr;
  const T* rstd = nullptr;

  ChannelGradient(const BackwardCall& call, const ChannelGroups& s)
      : groups(s), dy(call.gradient().template data_ptr<E>()) {
    if (!call.wants(0) && !call.wants(1)) return;
    x = call.input(0).template data_ptr<E>();
    mean = call.auxiliary(0).template data_ptr<T>();
    rstd = call.auxiliary(1).template data_ptr<T>();
  }

  void begin(T* out) const {
    const E *gradient = dy, *input = x;
    const T *center = mean, *factor = rstd;
    std::vector<double> sums;
    if (input == nullptr)
      sums = channel_sums<T>(groups, [=](int64_t at, int64_t) WINDLASS_INLINE {
        return Terms<T>{static_cast<T>(gradient[at]), T(0)};
      });
    else
      sums = channel_sums<T>(groups, [=](int64_t at, int64_t group) WINDLASS_INLINE {
        const auto g = static_cast<T>(gradient[at]);
        return Terms<T>{g, g * (static_cast<T>(input[at]) - center[group]) * factor[group]};
      });
    for (int64_t g = 0; g < groups.groups(); ++g)
      for (int64_t c = 0; c < 2 * groups.width; ++c)
        out[g * 2 * groups.width + c] = static_cast<T>(sums[static_cast<size_t>(
            2 * (g * groups.width + c % groups.width) + c / groups.width)]);
  }

  // Gradients of bias (0) or scale (1) from merged statistics.
  at::Tensor parameter(const T* merged, int64_t which) const {
    at::Tensor result = at::zeros({groups.channels}, c10::CppTypeToScalarType<T>::value);
    T* out = result.data_ptr<T>();
    for (int64_t g = 0; g < groups.groups(); ++g)
      for (int64_t c = 0; c < groups.width; ++c)
        out[(g * groups.width + c) % groups.channels] += merged[(g * 2 + which) * groups.width + c];
    return result;
  }

  void write(const T* merged, const T* scale, double mean_count, bool add, E* dx) const {
    const ChannelGroups s = groups;
    std::vector<T> means(static_cast<size_t>(2 * s.groups()));  // of g, and of g xhat
    for (int64_t g = 0; g < s.groups(); ++g) {
      double of_g = 0, of_gxhat = 0;
      for (int64_t c = 0; c < s.width; ++c) {
        const int64_t channel = (g * s.width + c) % s.channels;
        const auto weight = static_cast<double>(scale == nullptr ? T(1) : scale[channel]);
        of_g += weight * static_cast<double>(merged[g * 2 * s.width + c]);
        of_gxhat += weight * static_cast<double>(merged[(g * 2 + 1) * s.width + c]);
      }
      means[static_cast<size_t>(2 * g)] = static_cast<T>(of_g / mean_count);
      means[static_cast<size_t>(2 * g + 1)] = static_cast<T>(of_gxhat / mean_count);
    }
    const T *of = means.data(), *center = mean, *factor = rstd;
    const E *gradient = dy, *input = x;
    s.each([&](int64_t sample, int64_t begin, int64_t end) {
      vectorized([=]() WINDLASS_INLINE {
        for (int64_t c = begin; c < end; ++c) {
          const int64_t group = s.group(sample, c), from = (sample * s.channels + c) * s.inner;
          const T deviation = factor[group], middle = center[group];
          const T direct = deviation * (scale == nullptr ? T(1) : scale[c]);
          const T constant = deviation * of[2 * group];
          const T slope = deviation * deviation * of[2 * group + 1];
#pragma omp simd
          for (int64_t i = from; i < from + s.inner; ++i) {
            const T value = static_cast<T>(gradient[i]) * direct - constant -
                            (static_cast<T>(input[i]) - middle) * slope;
            dx[i] = static_cast<E>(add ? static_cast<T>(dx[i]) + value : value);
          }
        }
      });
    });
  }
};

void begin_channels(const ForwardCall& call, const ChannelGroups& s, at::Tensor& statistics) {
  with_float_type(call.input(0).scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    moments(s, call.input(0).data_ptr<E>(), statistics.data_ptr<wide_t<E>>());
  });
}

void begin_channel_gradient(const BackwardCall& call, const ChannelGroups& s,
                            at::Tensor& statistics) {
  with_float_type(call.gradient().scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    ChannelGradient<E>(call, s).begin(statistics.data_ptr<wide_t<E>>());
  });
}

void end_channel_gradient(BackwardCall& call, const ChannelGroups& s) {
  with_float_type(call.gradient().scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    using T = wide_t<E>;
    const T* merged = call.statistics->data_ptr<T>();
    const ChannelGradient<E> gradient(call, s);
    if (call.wants(2)) call.results[2].set(gradient.parameter(merged, 0));
    if (call.wants(1)) call.results[1].set(gradient.parameter(merged, 1));
    if (!call.wants(0)) return;
    const at::Tensor scale = call.has_input(1) ? widened(call.input(1)) : at::Tensor();
    Result& result = call.results[0];
    at::Tensor& dx = result.adds() ? result.sum() : result.allocate();
    gradient.write(merged, wide_data<T>(scale), call.facts.mean_count, result.adds(),
                   dx.data_ptr<E>());
  });
}

ChannelGroups batch_groups(at::IntArrayRef x) { return {x, 1, false}; }
ChannelGroups group_groups(at::IntArrayRef x, const Attrs& attrs) {
  return {x, x[1] / std::get<GroupNormAttrs>(attrs).groups, true};
}

}  // namespace

void batch_norm_begin(const ForwardCall& call, at::Tensor& statistics) {
  begin_channels(call, batch_groups(call.input(0).sizes()), statistics);
}

void end_batch_norm(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  with_float_type(x.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    normalize<E>(call, batch_groups(x.sizes()), call.attrs<BatchNormAttrs>().epsilon);
    if (!call.again) update_running<wide_t<E>>(call);
  });
}

void batch_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  begin_channel_gradient(call, batch_groups(call.shape(0)), statistics);
}

void end_batch_norm_gradient(BackwardCall& call) {
  end_channel_gradient(call, batch_groups(call.shape(0)));
}

void group_norm_begin(const ForwardCall& call, at::Tensor& statistics) {
  begin_channels(call, group_groups(call.input(0).sizes(), call.attributes), statistics);
}

void end_group_norm(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  with_float_type(x.scalar_type(), [&](auto zero) {
    normalize<decltype(zero)>(call, group_groups(x.sizes(), call.attributes),
                              call.attrs<GroupNormAttrs>().epsilon);
  });
}

void group_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  begin_channel_gradient(call, group_groups(call.shape(0), call.attributes), statistics);
}

void end_group_norm_gradient(BackwardCall& call) {
  end_channel_gradient(call, group_groups(call.shape(0), call.attributes));
}

}  // namespace windlass

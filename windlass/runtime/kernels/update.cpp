// Elements are taken in blocks that fit the first-level cache. Operands that are not of the type of
// the arithmetic are converted block by block; the others are used where they lie.

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>

#include "windlass/base/error.h"
#include "windlass/graph/differentiate.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/update_kernels.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {
namespace {

constexpr int64_t kBlock = 1024;
constexpr int64_t kGrain = 16;  // blocks worth a thread

// Steps are rounded where PyTorch's are: its sums with a factor are one fused operation, as they
// are here, and nothing else is (this file is compiled without contraction).

// Constants of a step, rounded once as torch.optim rounds its scalars.
template <class T>
struct Step {
  T scale, rate, decay, momentum, shrink, beta1, rest1, beta2, rest2, root_correction, epsilon,
      size;
};

template <class T>
Step<T> make_step(const UpdateHyperparameters& p, int64_t step, double gradient_scale) {
  const double correction1 = 1 - std::pow(p.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(p.beta2, static_cast<double>(step));
  return {.scale = static_cast<T>(gradient_scale),
          .rate = static_cast<T>(p.learning_rate),
          .decay = static_cast<T>(p.weight_decay),
          .momentum = static_cast<T>(p.momentum),
          .shrink = static_cast<T>(1 - p.learning_rate * p.weight_decay),
          .beta1 = static_cast<T>(p.beta1),
          .rest1 = static_cast<T>(1 - p.beta1),
          .beta2 = static_cast<T>(p.beta2),
          .rest2 = static_cast<T>(1 - p.beta2),
          .root_correction = static_cast<T>(std::sqrt(correction2)),
          .epsilon = static_cast<T>(p.epsilon),
          .size = static_cast<T>(p.learning_rate / correction1)};
}

template <class T>
void sgd(const Step<T>& s, int64_t n, T* w, const T* g) {
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T d = std::fma(w[i], s.decay, g[i] * s.scale);
      w[i] = std::fma(d, -s.rate, w[i]);
    }
  });
}

template <class T>
void momentum(const Step<T>& s, int64_t n, T* w, const T* g, T* velocity) {
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T d = std::fma(w[i], s.decay, g[i] * s.scale);
      velocity[i] = s.momentum * velocity[i] + d;
      w[i] = std::fma(velocity[i], -s.rate, w[i]);
    }
  });
}

template <class T>
void adam(const Step<T>& s, bool decoupled, int64_t n, T* w, const T* g, T* mean, T* square) {
  const T shrink = decoupled ? s.shrink : T(1), decay = decoupled ? T(0) : s.decay;
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
      const T x = w[i] * shrink;
      const T d = std::fma(x, decay, g[i] * s.scale);
      const T m = std::fma(d, s.rest1, mean[i] * s.beta1);
      const T v = std::fma(s.rest2 * d, d, square[i] * s.beta2);
      mean[i] = m;
      square[i] = v;
      w[i] = x - s.size * m / (std::sqrt(v) / s.root_correction + s.epsilon);
    }
  });
}

template <class From, class To>
void convert(const From* from, int64_t n, To* to) {
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      to[i] = static_cast<To>(static_cast<wide_t<To>>(static_cast<wide_t<From>>(from[i])));
  });
}

// A block of an operand as T: the operand's own memory, or a copy that `store` writes back.
template <class T>
class Operand {
 public:
  explicit Operand(const at::Tensor& tensor) : tensor_(&tensor) {}

  T* load(int64_t first, int64_t n, T* room) const {
    return with_float_type(tensor_->scalar_type(), [&](auto zero) -> T* {
      using E = decltype(zero);
      E* data = tensor_->data_ptr<E>() + first;
      if constexpr (std::is_same_v<E, T>) {
        return data;
      } else {
        convert(data, n, room);
        return room;
      }
    });
  }

  void store(int64_t first, int64_t n, const T* values) const {
    with_float_type(tensor_->scalar_type(), [&](auto zero) {
      using E = decltype(zero);
      E* data = tensor_->data_ptr<E>() + first;
      if constexpr (!std::is_same_v<E, T>) convert(values, n, data);
    });
  }

 private:
  const at::Tensor* tensor_;
};

template <class T>
void update(OptimizerKind kind, const Step<T>& step, at::Tensor& weight, const at::Tensor& gradient,
            at::Tensor* master, std::span<at::Tensor> states) {
  const Operand<T> target(master != nullptr ? *master : weight), copy(weight), arriving(gradient);
  const int64_t count = weight.numel();
  at::parallel_for(0, (count + kBlock - 1) / kBlock, kGrain, [&](int64_t begin, int64_t end) {
    std::array<std::array<T, kBlock>, 4> room;
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kBlock, n = std::min(kBlock, count - first);
      T* w = target.load(first, n, room[0].data());
      const T* g = arriving.load(first, n, room[1].data());
      std::array<T*, 2> s{};
      for (size_t i = 0; i < states.size(); ++i)
        s[i] = Operand<T>(states[i]).load(first, n, room[2 + i].data());
      switch (kind) {
        case OptimizerKind::Sgd: sgd(step, n, w, g); break;
        case OptimizerKind::Momentum: momentum(step, n, w, g, s[0]); break;
        case OptimizerKind::Adam: adam(step, false, n, w, g, s[0], s[1]); break;
        case OptimizerKind::AdamW: adam(step, true, n, w, g, s[0], s[1]); break;
      }
      target.store(first, n, w);
      if (master != nullptr) copy.store(first, n, w);
      for (size_t i = 0; i < states.size(); ++i) Operand<T>(states[i]).store(first, n, s[i]);
    }
  });
}

}  // namespace

void update_weight(OptimizerKind kind, const UpdateHyperparameters& hyperparameters, int64_t step,
                   double gradient_scale, at::Tensor& weight, const at::Tensor& gradient,
                   at::Tensor* master, std::span<at::Tensor> states) {
  const auto check = [&](const at::Tensor& operand) {
    ensure(operand.is_contiguous() && operand.numel() == weight.numel(),
           "operands of an update differ in size, or are not contiguous");
  };
  ensure(step >= 1, "optimizer steps count from 1");
  ensure(static_cast<int>(states.size()) == optimizer_state_count(kind),
         "wrong number of optimizer states");
  check(weight);
  check(gradient);
  for (const at::Tensor& state : states) check(state);
  if (master != nullptr) {
    check(*master);
    ensure(master->scalar_type() == at::kFloat && weight.scalar_type() != at::kFloat,
           "a master is fp32, and of a weight that is not");
  }
  if (weight.scalar_type() == at::kDouble)
    update(kind, make_step<double>(hyperparameters, step, gradient_scale), weight, gradient, master,
           states);
  else
    update(kind, make_step<float>(hyperparameters, step, gradient_scale), weight, gradient, master,
           states);
}

double sum_of_squares(const at::Tensor& gradient) {
  ensure(gradient.is_contiguous(), "a gradient is not contiguous");
  return with_float_type(gradient.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    constexpr int64_t kPart = int64_t{1} << 16;  // elements summed by one thread
    const T* data = gradient.data_ptr<T>();
    const int64_t count = gradient.numel(), parts = (count + kPart - 1) / kPart;
    std::vector<double> sums(static_cast<size_t>(parts));
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T* x = data + p * kPart;
        const int64_t n = std::min(kPart, count - p * kPart);
        double* sum = &sums[static_cast<size_t>(p)];
        vectorized([=]() WINDLASS_INLINE {
          double total = 0;
#pragma omp simd reduction(+ : total)
          for (int64_t i = 0; i < n; ++i) {
            const auto value = static_cast<double>(static_cast<wide_t<T>>(x[i]));
            total += value * value;
          }
          *sum = total;
        });
      }
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  });
}

}  // namespace windlass

#include <cmath>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "windlass/graph/differentiate.h"
#include "windlass/runtime/kernels/random.h"
#include "windlass/runtime/kernels/update_kernels.h"

namespace windlass {
namespace {

constexpr OptimizerKind kOptimizers[] = {OptimizerKind::Sgd, OptimizerKind::Momentum,
                                         OptimizerKind::Adam, OptimizerKind::AdamW};
constexpr int64_t kCount = 20'011;
constexpr int kSteps = 5;

UpdateHyperparameters hyperparameters() {
  return {.learning_rate = 0.01, .epsilon = 1e-6, .weight_decay = 0.1};
}

at::Tensor normal_numbers(uint64_t stream, at::ScalarType type = at::kFloat) {
  at::Tensor x = at::empty({kCount}, type);
  fill_normal({5, stream}, 0, 1, x);
  return x;
}

std::vector<at::Tensor> make_states(OptimizerKind kind) {
  std::vector<at::Tensor> states;
  for (int i = 0; i < optimizer_state_count(kind); ++i)
    states.push_back(at::zeros({kCount}, at::kFloat));
  return states;
}

std::unique_ptr<torch::optim::Optimizer> make_peer(OptimizerKind kind, at::Tensor weight) {
  const UpdateHyperparameters p = hyperparameters();
  const std::vector<at::Tensor> list = {std::move(weight)};
  switch (kind) {
    case OptimizerKind::Sgd:
    case OptimizerKind::Momentum:
      return std::make_unique<torch::optim::SGD>(
          list, torch::optim::SGDOptions(p.learning_rate)
                    .momentum(kind == OptimizerKind::Momentum ? p.momentum : 0)
                    .weight_decay(p.weight_decay));
    case OptimizerKind::Adam:
      return std::make_unique<torch::optim::Adam>(list, torch::optim::AdamOptions(p.learning_rate)
                                                            .betas({p.beta1, p.beta2})
                                                            .eps(p.epsilon)
                                                            .weight_decay(p.weight_decay));
    case OptimizerKind::AdamW:
      return std::make_unique<torch::optim::AdamW>(list, torch::optim::AdamWOptions(p.learning_rate)
                                                             .betas({p.beta1, p.beta2})
                                                             .eps(p.epsilon)
                                                             .weight_decay(p.weight_decay));
  }
  return nullptr;
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

std::vector<double> values_of(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  return {wide.data_ptr<double>(), wide.data_ptr<double>() + wide.numel()};
}

// Weights are of size 1, so the tolerance is a few units in the last place of fp32.
TEST(Update, AgreesWithTorch) {
  for (const OptimizerKind kind : kOptimizers) {
    at::Tensor weight = normal_numbers(1);
    torch::Tensor theirs = weight.clone().requires_grad_();
    std::vector<at::Tensor> states = make_states(kind);
    const auto peer = make_peer(kind, theirs);
    for (int step = 1; step <= kSteps; ++step) {
      const at::Tensor gradient = normal_numbers(static_cast<uint64_t>(10 + step));
      theirs.mutable_grad() = gradient.clone();
      peer->step();
      update_weight(kind, hyperparameters(), step, 1, weight, gradient, nullptr, states);
    }
    EXPECT_LE(largest_difference(weight, theirs.detach()), 1e-6) << enum_name(kind);
  }
}

TEST(Update, AgreesWithTheReference) {
  constexpr double kScale = 0.25;
  for (const OptimizerKind kind : kOptimizers) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      for (const at::ScalarType gradient_type : {at::kFloat, at::kBFloat16, at::kDouble}) {
        at::Tensor weight = normal_numbers(1, type);
        std::vector<double> expected = values_of(weight);
        std::vector<at::Tensor> states = make_states(kind);
        std::vector<std::vector<double>> expected_states(states.size(),
                                                         std::vector<double>(expected.size()));
        for (int step = 1; step <= kSteps; ++step) {
          const at::Tensor gradient =
              normal_numbers(static_cast<uint64_t>(10 + step), gradient_type);
          update_weight(kind, hyperparameters(), step, kScale, weight, gradient, nullptr, states);
          std::vector<double> scaled = values_of(gradient);
          for (double& value : scaled) value *= kScale;
          reference_update(kind, hyperparameters(), step, expected, scaled, expected_states);
        }
        const std::vector<double> found = values_of(weight);
        double worst = 0;
        for (size_t i = 0; i < found.size(); ++i)
          worst = std::max(worst, std::abs(found[i] - expected[i]));
        EXPECT_LE(worst, 2e-6) << enum_name(kind);
      }
    }
  }
}

// With a master the weight is its rounded copy, and the master goes the way of an fp32 weight.
TEST(Update, MasterOfA16BitWeight) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const OptimizerKind kind : kOptimizers) {
      at::Tensor master = normal_numbers(1), alone = master.clone(), weight = master.to(type);
      std::vector<at::Tensor> states = make_states(kind), alone_states = make_states(kind);
      for (int step = 1; step <= kSteps; ++step) {
        const at::Tensor gradient = normal_numbers(static_cast<uint64_t>(10 + step), type);
        update_weight(kind, hyperparameters(), step, 1, weight, gradient, &master, states);
        update_weight(kind, hyperparameters(), step, 1, alone, gradient, nullptr, alone_states);
        EXPECT_TRUE(master.equal(alone));
        EXPECT_TRUE(weight.equal(master.to(type)));
      }
    }
  }
}

// Without one the weight itself is rounded after each step.
TEST(Update, A16BitWeightAlone) {
  for (const OptimizerKind kind : kOptimizers) {
    at::Tensor weight = normal_numbers(1, at::kBFloat16), wide = weight.to(at::kFloat);
    std::vector<at::Tensor> states = make_states(kind), wide_states = make_states(kind);
    for (int step = 1; step <= kSteps; ++step) {
      const at::Tensor gradient = normal_numbers(static_cast<uint64_t>(10 + step));
      update_weight(kind, hyperparameters(), step, 1, weight, gradient, nullptr, states);
      update_weight(kind, hyperparameters(), step, 1, wide, gradient, nullptr, wide_states);
      EXPECT_TRUE(weight.equal(wide.to(at::kBFloat16)));
      wide = weight.to(at::kFloat);
    }
  }
}

TEST(Update, ThreadsDoNotMatter) {
  const int threads = at::get_num_threads();
  const auto run = [](int count) {
    at::set_num_threads(count);
    at::Tensor weight = normal_numbers(1);
    std::vector<at::Tensor> states = make_states(OptimizerKind::Adam);
    update_weight(OptimizerKind::Adam, hyperparameters(), 1, 0.5, weight, normal_numbers(2),
                  nullptr, states);
    return weight;
  };
  const at::Tensor one = run(1), many = run(3);
  at::set_num_threads(threads);
  EXPECT_TRUE(one.equal(many));
}

TEST(Update, SumOfSquares) {
  const int threads = at::get_num_threads();
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    at::Tensor x = at::empty({300'001}, type);
    fill_normal({9, 9}, 0, 1, x);
    const double expected = x.to(at::kDouble).square().sum().item<double>();
    at::set_num_threads(1);
    const double one = sum_of_squares(x);
    at::set_num_threads(4);
    EXPECT_EQ(one, sum_of_squares(x));
    EXPECT_NEAR(one / expected, 1, 1e-12);
  }
  at::set_num_threads(threads);
  EXPECT_EQ(sum_of_squares(at::empty({0}, at::kFloat)), 0);
}

}  // namespace
}  // namespace windlass

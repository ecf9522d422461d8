// Whole training steps by the interpreter: the weight gradients of random networks against central
// differences of the loss, with nothing kept between the passes but what the training graph says is
// saved.

#include "windlass/graph/reference/training_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/test_effort.h"
#include "windlass/graph/builder.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/reference/op_networks.h"

namespace windlass::reference {
namespace {

constexpr int64_t kRows = 3, kWidth = 4;

// Grows a network over tensors [kRows, kWidth] that are used once, often or never.
class RandomNetwork {
 public:
  explicit RandomNetwork(uint64_t seed) : rng_(seed), b_("random") {
    pool_ = {b_.input("x", type({kRows, kWidth}))};
    shared_ = weight({kWidth, kWidth});
    pool_.push_back(b_.op(OpKind::Linear, LinearAttrs{}, {pool_[0], shared_}, "first"));
  }

  Graph build(int ops) {
    for (int i = 0; i < ops; ++i) pool_.push_back(grow(fmt::format("op{}", i)));
    // The last few all reach the loss, so that most of the network does.
    TensorId result = pool_.back();
    for (size_t i = pool_.size() - 3; i + 1 < pool_.size(); ++i)
      result = b_.op(OpKind::Binary, BinaryAttrs{}, {result, pool_[i]}, fmt::format("join{}", i));
    if (rng_.chance(0.5))
      b_.attach_cross_entropy(result);
    else
      b_.attach_mean_squared_error(result);
    return b_.finish();
  }

 private:
  static TensorType type(Shape shape) { return {DType::F32, std::move(shape)}; }
  TensorId weight(Shape shape) {
    return b_.weight(fmt::format("w{}", weights_++), type(std::move(shape)), rng_.chance(0.8));
  }
  TensorId any() {
    return pool_[static_cast<size_t>(rng_.integer(0, static_cast<int64_t>(pool_.size()) - 1))];
  }

  TensorId grow(const std::string& name) {
    const TensorId x = any();
    switch (rng_.integer(0, 12)) {
      case 0: return b_.op(OpKind::Linear, LinearAttrs{}, {x, shared_}, name);
      case 1:
        return b_.op(OpKind::Linear, LinearAttrs{true},
                     {x, weight({kWidth, kWidth}), weight({kWidth})}, name);
      case 2: return b_.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {x, any()}, name);
      case 3: return b_.op(OpKind::Binary, BinaryAttrs{BinaryFn::Sub}, {x, any()}, name);
      case 4: return b_.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, any()}, name);
      case 5: return b_.op(OpKind::Binary, BinaryAttrs{}, {x, weight({kWidth})}, name);
      case 6: return b_.op(OpKind::Unary, UnaryAttrs{UnaryFn::Tanh}, {x}, name);
      case 7: return b_.op(OpKind::Unary, UnaryAttrs{UnaryFn::Gelu}, {x}, name);
      case 8: return b_.op(OpKind::Unary, UnaryAttrs{UnaryFn::Identity}, {x}, name);
      case 9: return b_.op(OpKind::LayerNorm, LayerNormAttrs{1}, {x, weight({kWidth})}, name);
      case 10: return b_.op(OpKind::Dropout, DropoutAttrs{0.3}, {x}, name);
      case 11: return halves(x, name);
      default: return recurrent(x, name);
    }
  }

  // Cut in three parts of which one is used twice and one not at all, through a view.
  TensorId halves(TensorId x, const std::string& name) {
    const TensorId flat = b_.op(OpKind::Reshape, ShapeAttrs{{kRows * kWidth}}, {x}, name + ".flat");
    const auto parts = b_.add(OpKind::Split, SplitAttrs{0, {4, 2, 6}}, {flat}, name + ".split");
    const TensorId joined = b_.op(OpKind::Concat, AxisAttrs{0},
                                  {parts[2], parts[1], parts[1], parts[1]}, name + ".join");
    return b_.op(OpKind::Reshape, ShapeAttrs{{kRows, kWidth}}, {joined}, name);
  }

  // Rows as steps of a sequence; only the sequence or only the last cell is used.
  TensorId recurrent(TensorId x, const std::string& name) {
    const TensorId steps =
        b_.op(OpKind::Reshape, ShapeAttrs{{kRows, 1, kWidth}}, {x}, name + ".steps");
    const auto outputs =
        b_.add(OpKind::Lstm, RecurrentAttrs{.hidden = kWidth},
               {steps, weight({1, 4 * kWidth, kWidth}), weight({1, 4 * kWidth, kWidth})}, name);
    if (rng_.chance(0.5))
      return b_.op(OpKind::Reshape, ShapeAttrs{{kRows, kWidth}}, {outputs[0]}, name + ".rows");
    const TensorId cell =
        b_.op(OpKind::Reshape, ShapeAttrs{{1, kWidth}}, {outputs[2]}, name + ".cell");
    return b_.op(OpKind::Expand, ShapeAttrs{{kRows, kWidth}}, {cell}, name + ".wide");
  }

  Rng rng_;
  GraphBuilder b_;
  std::vector<TensorId> pool_;
  TensorId shared_;
  int weights_ = 0;
};

using Store = TensorValues;

Store initial_values(const Graph& graph, uint64_t seed) {
  Rng rng(seed, 1);
  Store store(graph.tensors.size());
  for (size_t t = 0; t < store.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.producer.valid()) continue;
    store[t] = Array(tensor.type.shape);
    if (tensor.constant >= 0)
      store[t].values = graph.constants[static_cast<size_t>(tensor.constant)].values;
    else
      for (double& value : store[t].values)
        value = is_float(tensor.type.dtype) ? rng.uniform(-0.8, 0.8)
                                            : static_cast<double>(rng.integer(0, kWidth - 1));
  }
  return store;
}

RandomState random_of(OpId id) { return {11, static_cast<uint64_t>(id.value)}; }

double loss_of(const TrainingGraph& training, Store store) {
  reference_forward(training, store, random_of);
  return store[training.graph.loss.index()].values[0];
}

void check_step(const TrainingGraph& training, const Store& start) {
  const Graph& graph = training.graph;
  check_graph(graph);
  Store store = start;
  reference_step(training, store, random_of);

  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].role != TensorRole::Weight) continue;
    const TensorId gradient = training.gradient_of[t];
    ASSERT_TRUE(graph.tensors[t].trainable || !gradient.valid()) << graph.tensors[t].name;
    if (!graph.tensors[t].trainable) continue;
    for (size_t e = 0; e < start[t].values.size(); ++e) {
      constexpr double kNudge = 1e-5;
      Store above = start, below = start;
      above[t].values[e] += kNudge;
      below[t].values[e] -= kNudge;
      const double expected =
          (loss_of(training, std::move(above)) - loss_of(training, std::move(below))) /
          (2 * kNudge);
      // A weight that does not reach the loss has no gradient.
      const double found = gradient.valid() ? store[gradient.index()].values.at(e) : 0;
      ASSERT_NEAR(found, expected, 1e-6 * (1 + std::abs(expected)))
          << graph.tensors[t].name << ", element " << e;
    }
  }
}

TEST(TrainingStep, WeightGradientsOfRandomNetworks) {
  const int networks = sampled(150);
  int trained = 0;
  for (int number = 1; number <= networks; ++number) {
    const auto seed = static_cast<uint64_t>(number);
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Graph graph = RandomNetwork(seed).build(3 + static_cast<int>(seed % 8));
    TrainingGraph training;
    try {
      training = differentiate(graph);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::Input);  // all weights frozen or cut off
      continue;
    }
    ++trained;
    check_step(training, initial_values(training.graph, seed));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(trained, networks * 3 / 4);
}

TEST(TrainingStep, WeightGradientsThroughEveryOpKind) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    uint64_t turn = seed;
    for (const OpCase& c : op_cases(seed)) {
      // In a hurry each case comes with one approach: the next one with the next.
      if (turn++ % 3 != 0 && hurried() && kSanitized) continue;
      SCOPED_TRACE(fmt::format("{} (seed {})", c.name, seed));
      const OpNetwork network =
          network_around(c, {.approach = static_cast<Approach>((seed + 2) % 3)});
      if (parameter_count(network.graph) == 0) continue;
      const TrainingGraph training = differentiate(network.graph);
      Store start = initial_values(training.graph, seed);
      for (size_t t = 0; t < training.graph.tensors.size(); ++t)
        for (const auto& [name, value] : network.values)
          if (training.graph.tensors[t].name == name && !training.graph.tensors[t].producer.valid())
            start[t] = value;
      try {
        check_step(training, start);
      } catch (const Error& error) {
        FAIL() << error.what();
      }
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace windlass::reference

// The interface of the interpreter, and elementwise, layout, reduction, lookup and loss ops on
// small cases computed by hand.

#include "windlass/graph/reference/interpret.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/philox.h"
#include "windlass/graph/reference/run_op.h"
#include "windlass/graph/reference/update.h"

namespace windlass::reference {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Run>
void expect_error(ErrorKind kind, const std::string& part, Run&& run) {
  try {
    run();
    ADD_FAILURE() << "no error that says \"" << part << "\"";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    EXPECT_THAT(error.message(), HasSubstr(part));
  }
}

Array binary(BinaryFn fn, Operand a, Operand b) {
  return run_one(OpKind::Binary, BinaryAttrs{fn}, {std::move(a), std::move(b)});
}

TEST(Interpret, NamesWhatARuleDidNotSave) {
  const Attrs attrs = BinaryAttrs{BinaryFn::Mul};
  const Array x({2}, 3);
  const TensorType type = {DType::F32, {2}};
  const Signature signature = {OpKind::Binary, &attrs, {type, type}, {type}, {}};
  const GradientRule rule = {{GradientSource::Computed, GradientSource::Computed}, {}, {}};
  expect_error(ErrorKind::Internal, "Binary: internal error: the gradient needs input 1", [&] {
    interpret_backward(signature, rule, {true, false}, {&x}, {});
  });
}

TEST(Interpret, ComparesShapesWithTheOpTable) {
  const Attrs attrs = UnaryAttrs{UnaryFn::Neg};
  const Array x({2}, 3);
  const Signature signature = {OpKind::Unary, &attrs, {{DType::F32, {2}}}, {{DType::F32, {3}}}, {}};
  expect_error(ErrorKind::Internal, "output 0 has shape [2], the op table says [3]",
               [&] { interpret_forward(signature, {&x}); });
}

TEST(Interpret, LeavesOutWhatIsNotWanted) {
  const Attrs attrs = BinaryAttrs{BinaryFn::Sub};
  const TensorType type = {DType::F32, {2}};
  const Array g({2}, 5);
  const Signature signature = {OpKind::Binary, &attrs, {type, type}, {type}, {}};
  const GradientRule rule = op_info(OpKind::Binary).gradient(signature, {true, true});
  const std::vector<Array> found = interpret_backward(signature, rule, {true, true}, {&g}, {});
  EXPECT_TRUE(found[0].values.empty());  // passed through, not computed
  EXPECT_THAT(found[1].values, ElementsAre(-5, -5));
}

TEST(Interpret, FoldsWhatIsNotRandom) {
  EXPECT_TRUE(can_fold(OpKind::Binary));
  EXPECT_TRUE(can_fold(OpKind::Gather));
  EXPECT_FALSE(can_fold(OpKind::Random));
  EXPECT_FALSE(can_fold(OpKind::Dropout));
  EXPECT_FALSE(can_fold(OpKind::Update));
}

TEST(ReferenceElementwise, IntegersDivideTowardsZeroAndModuloFollowsTheDivisor) {
  const Operand a = integers({4}, {7, -7, 7, -7}), b = integers({4}, {2, 2, -2, -2});
  EXPECT_THAT(binary(BinaryFn::Div, a, b).values, ElementsAre(3, -3, -3, 3));
  EXPECT_THAT(binary(BinaryFn::Mod, a, b).values, ElementsAre(1, 1, -1, -1));
  EXPECT_THAT(binary(BinaryFn::Pow, integers({2}, {3, 2}), integers({2}, {4, -1})).values,
              ElementsAre(81, 0));
  // Remainders of floats follow the dividend.
  EXPECT_THAT(binary(BinaryFn::Mod, floats({2}, {-7, 7}), floats({}, {2})).values,
              ElementsAre(-1, 1));
  expect_error(ErrorKind::Input, "divided by zero",
               [&] { binary(BinaryFn::Div, a, integers({}, {0})); });
}

TEST(ReferenceElementwise, EqualCandidatesShareTheGradient) {
  EXPECT_THAT(gradient_of(OpKind::Binary, BinaryAttrs{BinaryFn::Max},
                          {floats({3}, {1, 2, 3}), floats({3}, {2, 2, 2})})
                  .values,
              ElementsAre(0, 0.5, 1));
}

TEST(ReferenceElementwise, TheRootIsFlatAtZero) {
  EXPECT_THAT(gradient_of(OpKind::Unary, UnaryAttrs{UnaryFn::Sqrt}, {floats({2}, {4, 0})}).values,
              ElementsAre(0.25, 0));
}

TEST(ReferenceElementwise, RoundsHalvesToEven) {
  EXPECT_THAT(run_one(OpKind::Unary, UnaryAttrs{UnaryFn::Round},
                      {floats({6}, {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5})})
                  .values,
              ElementsAre(-2, -2, 0, 0, 2, 2));
}

TEST(ReferenceElementwise, CastsToEachKind) {
  const Operand x = floats({4}, {-1.75, 0, 0.1, 2.5});
  const auto cast = [&](DType to) { return run_one(OpKind::Cast, CastAttrs{to}, {x}).values; };
  EXPECT_THAT(cast(DType::I64), ElementsAre(-1, 0, 0, 2));
  EXPECT_THAT(cast(DType::Bool), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(cast(DType::F32), ElementsAre(-1.75, 0, static_cast<double>(0.1F), 2.5));
  EXPECT_THAT(cast(DType::F64), ElementsAre(-1.75, 0, 0.1, 2.5));
}

TEST(ReferenceElementwise, SelectsWithBroadcasting) {
  const Operand condition = {DType::Bool, Array({2, 1}, std::vector<double>{1, 0})};
  EXPECT_THAT(
      run_one(OpKind::Where, NoAttrs{}, {condition, floats({3}, {1, 2, 3}), floats({}, {9})})
          .values,
      ElementsAre(1, 2, 3, 9, 9, 9));
}

TEST(ReferenceElementwise, DropoutIsAFunctionOfSeedOpAndElement) {
  const auto run = [](RandomState random) {
    return run_op(OpKind::Dropout, DropoutAttrs{0.75}, {floats({50}, std::vector<double>(50, 3))},
                  random);
  };
  const ForwardResult found = run({1, 2});
  for (size_t i = 0; i < 50; ++i) {
    const bool kept = !random_chance(1, 2, i, 0.75);
    EXPECT_EQ(found.auxiliaries[0].values[i], kept ? 1 : 0);
    EXPECT_EQ(found.outputs[0].values[i], kept ? 12 : 0);
  }
  EXPECT_EQ(found.outputs[0].values, run({1, 2}).outputs[0].values);
  EXPECT_NE(found.outputs[0].values, run({1, 3}).outputs[0].values);
}

TEST(ReferenceElementwise, RandomNumbersHaveTheirDistribution) {
  const auto moments = [](RandomFn fn, double alpha, double beta) {
    const Array x = run_one(OpKind::Random, RandomAttrs{fn, {20000}, DType::F32, alpha, beta}, {});
    double mean = 0, square = 0;
    for (double value : x.values) mean += value / 20000, square += value * value / 20000;
    return std::pair(mean, square - mean * mean);
  };
  // Standard errors are about 0.01 or less.
  const auto [uniform_mean, uniform_variance] = moments(RandomFn::Uniform, 2, 4);
  EXPECT_NEAR(uniform_mean, 3, 0.03);
  EXPECT_NEAR(uniform_variance, 4.0 / 12, 0.03);
  const auto [normal_mean, normal_variance] = moments(RandomFn::Normal, -1, 0.5);
  EXPECT_NEAR(normal_mean, -1, 0.03);
  EXPECT_NEAR(normal_variance, 0.25, 0.03);
  EXPECT_NEAR(moments(RandomFn::Bernoulli, 0.3, 0).first, 0.3, 0.03);
}

TEST(ReferenceLayout, SlicesBackwards) {
  EXPECT_THAT(
      run_one(OpKind::Slice, SliceAttrs{{4}, {-2}, {3}}, {floats({5}, {0, 1, 2, 3, 4})}).values,
      ElementsAre(4, 2, 0));
}

TEST(ReferenceLayout, PadsByEachMode) {
  const Operand x = floats({3}, {1, 2, 3});
  const auto pad = [&](int64_t begin, int64_t end, PadMode mode) {
    return run_one(OpKind::Pad, PadAttrs{{begin}, {end}, mode, 7}, {x}).values;
  };
  EXPECT_THAT(pad(1, 2, PadMode::Constant), ElementsAre(7, 1, 2, 3, 7, 7));
  EXPECT_THAT(pad(-1, 1, PadMode::Constant), ElementsAre(2, 3, 7));
  EXPECT_THAT(pad(2, 2, PadMode::Reflect), ElementsAre(3, 2, 1, 2, 3, 2, 1));
  EXPECT_THAT(pad(2, 1, PadMode::Edge), ElementsAre(1, 1, 1, 2, 3, 3));
}

TEST(ReferenceLayout, TransposesJoinsAndCuts) {
  const Operand x = floats({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_THAT(run_one(OpKind::Transpose, TransposeAttrs{{1, 0}}, {x}).values,
              ElementsAre(1, 4, 2, 5, 3, 6));
  EXPECT_THAT(run_one(OpKind::Concat, AxisAttrs{1}, {x, floats({2, 1}, {7, 8})}).values,
              ElementsAre(1, 2, 3, 7, 4, 5, 6, 8));
  const ForwardResult parts = run_op(OpKind::Split, SplitAttrs{1, {1, 2}}, {x});
  EXPECT_THAT(parts.outputs[0].values, ElementsAre(1, 4));
  EXPECT_THAT(parts.outputs[1].values, ElementsAre(2, 3, 5, 6));
  EXPECT_THAT(run_one(OpKind::Expand, ShapeAttrs{{2, 2}}, {floats({2, 1}, {1, 2})}).values,
              ElementsAre(1, 1, 2, 2));
}

TEST(ReferenceLayout, EmptyArraysStayEmpty) {
  const Array y = run_one(OpKind::Transpose, TransposeAttrs{{1, 0}}, {floats({0, 3}, {})});
  EXPECT_EQ(y.shape, (Shape{3, 0}));
  EXPECT_TRUE(y.values.empty());
}

TEST(ReferenceReduction, TiesShareAndZerosOfAProductAreHandled) {
  const ReduceAttrs max = {ReduceFn::Max, {0}, true};
  EXPECT_THAT(gradient_of(OpKind::Reduce, max, {floats({3}, {3, 1, 3})}).values,
              ElementsAre(0.5, 0, 0.5));
  const ReduceAttrs prod = {ReduceFn::Prod, {1}, false};
  // Without a zero, with one, with two.
  EXPECT_THAT(
      gradient_of(OpKind::Reduce, prod, {floats({3, 3}, {2, 3, 4, 2, 0, 4, 0, 3, 0})}).values,
      ElementsAre(12, 8, 6, 0, 8, 0, 0, 0, 0));
}

TEST(ReferenceReduction, MeansOfIntegersAreTruncated) {
  EXPECT_THAT(
      run_one(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {0}, false}, {integers({2}, {3, 4})})
          .values,
      ElementsAre(3));
}

TEST(ReferenceReduction, LogSumExpAndArgMaxOfExtremes) {
  const double infinity = std::numeric_limits<double>::infinity();
  const ReduceAttrs attrs = {ReduceFn::LogSumExp, {1}, false};
  // ln(2 e^1000) does not overflow; nothing at all gives -infinity.
  EXPECT_THAT(
      run_one(OpKind::Reduce, attrs, {floats({2, 2}, {1000, 1000, -infinity, -infinity})}).values,
      ElementsAre(testing::DoubleEq(1000 + std::log(2)), -infinity));
  const Array first = run_one(OpKind::ArgMax, AxisAttrs{1}, {floats({1, 3}, {2, 5, 5})});
  EXPECT_EQ(first.shape, (Shape{1, 1}));
  EXPECT_THAT(first.values, ElementsAre(1));
}

TEST(ReferenceLookup, NegativeIndicesCountFromTheEndAndOthersAreErrors) {
  const Operand data = floats({3}, {10, 20, 30});
  EXPECT_THAT(run_one(OpKind::Gather, AxisAttrs{0}, {data, integers({2}, {-1, 0})}).values,
              ElementsAre(30, 10));
  expect_error(ErrorKind::Input, "Gather: index 3 is out of range for an axis of 3", [&] {
    run_one(OpKind::Gather, AxisAttrs{0}, {data, integers({}, {3})});
  });
  const Operand table = floats({2, 1}, {5, 6});
  EXPECT_THAT(run_one(OpKind::Embedding, NoAttrs{}, {integers({3}, {1, 1, 0}), table}).values,
              ElementsAre(6, 6, 5));
  expect_error(ErrorKind::Input, "index -1 is out of range", [&] {
    run_one(OpKind::Embedding, NoAttrs{}, {integers({1}, {-1}), table});
  });
}

TEST(ReferenceLoss, CrossEntropyLeavesOutIgnoredRows) {
  // Row 0: -ln(3 / 4); row 1 is ignored; row 2: -ln(1 / 2). Mean of two.
  const Operand logits = floats({3, 2}, {0, std::log(3), 5, 1, 0, 0});
  const Operand labels = integers({3}, {1, -100, 0});
  const ForwardResult found = run_op(OpKind::CrossEntropy, CrossEntropyAttrs{1}, {logits, labels});
  EXPECT_THAT(found.outputs[0].values, near({(std::log(4.0 / 3) + std::log(2)) / 2}));
  EXPECT_NEAR(found.auxiliaries[0].values[0], std::log(4), 1e-12);
  // (softmax - onehot) / 2, nothing for the ignored row.
  EXPECT_THAT(gradient_of(OpKind::CrossEntropy, CrossEntropyAttrs{1}, {logits, labels}).values,
              near({0.125, -0.125, 0, 0, -0.25, 0.25}));
  const Array none = run_one(OpKind::CrossEntropy, CrossEntropyAttrs{1},
                             {logits, integers({3}, {-100, -100, -100})});
  EXPECT_THAT(none.values, Each(testing::IsNan()));
  expect_error(ErrorKind::Input, "label 2 of row 1 is out of range for 2 classes", [&] {
    run_one(OpKind::CrossEntropy, CrossEntropyAttrs{1}, {logits, integers({3}, {0, 2, 0})});
  });
}

TEST(ReferenceLoss, MeanSquaredError) {
  EXPECT_THAT(
      run_one(OpKind::MeanSquaredError, NoAttrs{}, {floats({2}, {1, 5}), floats({2}, {2, 2})})
          .values,
      near({(1 + 9) / 2.0}));
}

TEST(ReferenceUpdate, FollowsTorchOptim) {
  UpdateHyperparameters p;
  p.learning_rate = 0.1;
  p.weight_decay = 0.5;
  const auto two_steps = [&](OptimizerKind kind, size_t states) {
    std::vector<double> w = {2};
    std::vector<std::vector<double>> state(states, {0});
    reference_update(kind, p, 1, w, {3}, state);
    reference_update(kind, p, 2, w, {1}, state);
    return w[0];
  };
  // 2 - 0.1 (3 + 0.5 * 2) = 1.6; 1.6 - 0.1 (1 + 0.8) = 1.42.
  EXPECT_NEAR(two_steps(OptimizerKind::Sgd, 0), 1.42, 1e-12);
  // Velocity 4, then 0.9 * 4 + 1.8 = 5.4: 1.6 - 0.54.
  EXPECT_NEAR(two_steps(OptimizerKind::Momentum, 1), 1.06, 1e-12);
  // The first step of Adam has the size of the learning rate: both corrected moments are those of
  // the gradient. AdamW first takes 0.1 * 0.5 * 2 off the weight.
  std::vector<double> w = {2};
  std::vector<std::vector<double>> moments(2, {0});
  reference_update(OptimizerKind::Adam, p, 1, w, {3}, moments);
  EXPECT_NEAR(w[0], 1.9, 1e-9);
  EXPECT_NEAR(moments[0][0], 0.1 * 4, 1e-12);
  EXPECT_NEAR(moments[1][0], 0.001 * 16, 1e-12);
  // Second step, gradient 1 + 0.95 = 1.95: mean 0.555 / 0.19, square 0.0197865... / 0.001999.
  const double g = 1 + 0.5 * w[0], before = w[0];
  reference_update(OptimizerKind::Adam, p, 2, w, {1}, moments);
  EXPECT_NEAR(w[0],
              before - 0.1 * ((0.9 * 0.4 + 0.1 * g) / 0.19) /
                           std::sqrt((0.999 * 0.016 + 0.001 * g * g) / 0.001999),
              1e-8);
  w = {2};
  moments = {{0}, {0}};
  reference_update(OptimizerKind::AdamW, p, 1, w, {3}, moments);
  EXPECT_NEAR(w[0], 1.8, 1e-9);
}

TEST(ReferenceUpdate, IsNotInterpreted) {
  const Attrs attrs = UpdateAttrs{};
  expect_error(ErrorKind::Internal, "Update", [&] {
    interpret_forward({OpKind::Update, &attrs, {}, {}, {}}, {});
  });
}

}  // namespace
}  // namespace windlass::reference

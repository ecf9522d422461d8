// Attention, rotary embedding, recurrent cells and expert routing on small cases computed by hand.

#include <cmath>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/reference/run_op.h"

namespace windlass::reference {
namespace {

using testing::ElementsAre;

const double kLn2 = std::log(2);
const double kLn3 = std::log(3);

TEST(ReferenceAttention, CausalWithSharedKeyHead) {
  // Keys 0 and 1, values 2 and 4, shared by both query heads. Query 0 sees key 0 only.
  // Head 0, query 1: scores 0, 0: (2 + 4) / 2. Head 1, query 1: scores 0, ln 3: (2 + 3 * 4) / 4.
  const ForwardResult found = run_op(OpKind::Attention, AttentionAttrs{1, true},
                                     {floats({1, 2, 2, 1}, {0, 0, kLn3, kLn3}),
                                      floats({1, 1, 2, 1}, {0, 1}), floats({1, 1, 2, 1}, {2, 4})});
  EXPECT_THAT(found.outputs[0].values, near({2, 3, 2, 3.5}));
  EXPECT_THAT(found.auxiliaries[0].values, near({0, kLn2, 0, 2 * kLn2}));
}

TEST(ReferenceAttention, QueryHeadsShareKeyHeadsInGroups) {
  const Array y = run_one(OpKind::Attention, AttentionAttrs{},
                          {floats({1, 4, 1, 1}, {1, 2, 3, 4}), floats({1, 2, 1, 1}, {1, 1}),
                           floats({1, 2, 1, 1}, {10, 20})});
  EXPECT_THAT(y.values, near({10, 10, 20, 20}));
}

TEST(ReferenceAttention, PositionsCountFromTheEndOfTheKeys) {
  const Operand k = floats({1, 1, 3, 1}, {0, 0, 0}), v = floats({1, 1, 3, 1}, {3, 6, 12});
  const Operand q = floats({1, 1, 2, 1}, {1, 1});
  // Two queries of three keys: they are at positions 1 and 2.
  EXPECT_THAT(run_one(OpKind::Attention, AttentionAttrs{1, true}, {q, k, v}).values,
              near({4.5, 7}));
  EXPECT_THAT(run_one(OpKind::Attention, AttentionAttrs{1, true, 2}, {q, k, v}).values,
              near({4.5, 9}));
  EXPECT_THAT(run_one(OpKind::Attention, AttentionAttrs{1, true, 1}, {q, k, v}).values,
              near({6, 12}));
  // More queries than keys: query 0 is at position -1, sees nothing and yields 0.
  const Array y = run_one(OpKind::Attention, AttentionAttrs{1, true},
                          {q, floats({1, 1, 1, 1}, {0}), floats({1, 1, 1, 1}, {5})});
  EXPECT_THAT(y.values, near({0, 5}));
}

TEST(ReferenceAttention, MaskIsAddedToTheScores) {
  // Scores 0 + ln 3 and 0: (3 * 8 + 4) / 4.
  const Array y = run_one(OpKind::Attention, AttentionAttrs{},
                          {floats({1, 1, 1, 1}, {1}), floats({1, 1, 2, 1}, {0, 0}),
                           floats({1, 1, 2, 1}, {8, 4}), floats({1, 2}, {kLn3, 0})});
  EXPECT_THAT(y.values, near({7}));
}

TEST(ReferenceAttention, DropoutDrawsByElement) {
  // Scores are equal, so each of the 4 probabilities is 1/4, made 1/2 if kept.
  const RandomState random = {3, 9};
  double expected = 0;
  for (uint64_t i = 0; i < 4; ++i)
    if (random_uniform(3, 9, i) >= 0.5) expected += 0.5 * static_cast<double>(i + 1);
  const ForwardResult found = run_op(OpKind::Attention, AttentionAttrs{1, false, 0, 0.5},
                                     {floats({1, 1, 1, 1}, {0}), floats({1, 1, 4, 1}, {1, 2, 3, 4}),
                                      floats({1, 1, 4, 1}, {1, 2, 3, 4})},
                                     random);
  EXPECT_THAT(found.outputs[0].values, near({expected}));
}

TEST(ReferenceRotary, TurnsPairsByPosition) {
  // Position 1, frequencies 100^0 = 1 and 100^(-2/4) = 0.1; the fifth value is not rotated.
  const Operand x = floats({2, 5}, {1, 2, 3, 4, 5, 1, 0, 0, 1, 5});
  const double c = std::cos(1), s = std::sin(1), c10 = std::cos(0.1), s10 = std::sin(0.1);
  // Pairs (x0, x2) = (1, 0) and (x1, x3) = (0, 1).
  EXPECT_THAT(run_one(OpKind::Rotary, RotaryAttrs{100, 4}, {x}).values,
              near({1, 2, 3, 4, 5, c, -s10, s, c10, 5}));
  // Pairs (x0, x1) = (1, 0) and (x2, x3) = (0, 1).
  EXPECT_THAT(run_one(OpKind::Rotary, RotaryAttrs{100, 4, true}, {x}).values,
              near({1, 2, 3, 4, 5, c, s, -s10, c10, 5}));
}

TEST(ReferenceRecurrent, OneStepOfLstm) {
  // Sums before activation come from the bias alone: i 0, f ln 3, g ln(3) / 2, o 0, so i = 1/2,
  // f = 3/4, g = tanh(ln(3) / 2) = (3 - 1) / (3 + 1) = 1/2, o = 1/2.
  // c = 3/4 * 2 + 1/2 * 1/2 = 1.75, h = tanh(1.75) / 2.
  const double h = std::tanh(1.75) / 2;
  const auto run = [](GateOrder order, std::vector<double> bias) {
    bias.resize(8, 0);
    return run_op(
        OpKind::Lstm, RecurrentAttrs{.hidden = 1, .gates = order},
        {floats({1, 1, 1}, {7}), floats({1, 4, 1}, {0, 0, 0, 0}), floats({1, 4, 1}, {0, 0, 0, 0}),
         floats({1, 8}, std::move(bias)), floats({1, 1, 1}, {9}), floats({1, 1, 1}, {2})});
  };
  const ForwardResult torch = run(GateOrder::Torch, {0, kLn3, kLn3 / 2, 0});
  EXPECT_THAT(torch.outputs[0].values, near({h}));
  EXPECT_THAT(torch.outputs[1].values, near({h}));
  EXPECT_THAT(torch.outputs[2].values, near({1.75}));
  EXPECT_THAT(torch.auxiliaries[0].values, near({0.5, 0.75, 0.5, 0.5}));
  EXPECT_THAT(torch.auxiliaries[1].values, near({1.75}));
  // ONNX order: i o f g.
  const ForwardResult onnx = run(GateOrder::Onnx, {0, 0, kLn3, kLn3 / 2});
  EXPECT_THAT(onnx.outputs[0].values, near({h}));
  EXPECT_THAT(onnx.auxiliaries[0].values, near({0.5, 0.5, 0.75, 0.5}));
}

TEST(ReferenceRecurrent, OneStepOfGruInBothResetModes) {
  // r = z = 1/2, h0 = 2, candidate weight 1 and recurrent bias 1: the reset gate multiplies either
  // R h + b = 3, or h alone: R (r h) + b = 2. h' = n / 2 + 2 / 2.
  const auto run = [](bool linear_before_reset) {
    return run_op(
        OpKind::Gru, RecurrentAttrs{.hidden = 1, .linear_before_reset = linear_before_reset},
        {floats({1, 1, 1}, {7}), floats({1, 3, 1}, {0, 0, 0}), floats({1, 3, 1}, {0, 0, 1}),
         floats({1, 6}, {0, 0, 0, 0, 0, 1}), floats({1, 1, 1}, {2})});
  };
  const ForwardResult after = run(true);
  EXPECT_THAT(after.outputs[0].values, near({std::tanh(1.5) / 2 + 1}));
  EXPECT_THAT(after.auxiliaries[0].values, near({0.5, 0.5, std::tanh(1.5), 3}));
  const ForwardResult before = run(false);
  EXPECT_THAT(before.outputs[0].values, near({std::tanh(2) / 2 + 1}));
  EXPECT_THAT(before.auxiliaries[0].values, near({0.5, 0.5, std::tanh(2), 2}));
}

TEST(ReferenceRecurrent, DirectionsRunOppositeWays) {
  // z = 1/2 and n = tanh(x) make h' = (h + tanh(x)) / 2; x = 1, 3.
  const std::vector<double> w = {0, 0, 1}, r = {0, 0, 0};
  std::vector<double> both_w = w, both_r = r;
  both_w.insert(both_w.end(), w.begin(), w.end());
  both_r.insert(both_r.end(), r.begin(), r.end());
  const double a = std::tanh(1), b = std::tanh(3);
  const ForwardResult both =
      run_op(OpKind::Gru, RecurrentAttrs{.hidden = 1, .bidirectional = true},
             {floats({2, 1, 1}, {1, 3}), floats({2, 3, 1}, both_w), floats({2, 3, 1}, both_r)});
  // y [step, direction]: forward a/2, (a/2 + b)/2; backward (b/2 + a)/2, b/2.
  EXPECT_THAT(both.outputs[0].values, near({a / 2, (b / 2 + a) / 2, (a / 2 + b) / 2, b / 2}));
  EXPECT_THAT(both.outputs[1].values, near({(a / 2 + b) / 2, (b / 2 + a) / 2}));
  const ForwardResult reverse =
      run_op(OpKind::Gru, RecurrentAttrs{.hidden = 1, .reverse = true},
             {floats({2, 1, 1}, {1, 3}), floats({1, 3, 1}, w), floats({1, 3, 1}, r)});
  EXPECT_THAT(reverse.outputs[0].values, near({(b / 2 + a) / 2, b / 2}));
  EXPECT_THAT(reverse.outputs[1].values, near({(b / 2 + a) / 2}));
}

TEST(ReferenceRouting, Chooses) {
  // Probabilities (1, 2, 1) / 4 and (3, 1, 4) / 8. Token 0 takes experts 1 and 0 (of the equal 0
  // and 2 the lower), token 1 takes 2 and 0.
  const Operand logits = floats({2, 3}, {0, kLn2, 0, kLn3, 0, 2 * kLn2});
  const ForwardResult found = run_op(OpKind::Route, RouteAttrs{2, true}, {logits});
  EXPECT_THAT(found.outputs[0].values, near({2.0 / 3, 1.0 / 3, 4.0 / 7, 3.0 / 7}));
  EXPECT_THAT(found.outputs[1].values, ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(found.auxiliaries[0].values, near({1. / 4, 2. / 4, 1. / 4, 3. / 8, 1. / 8, 4. / 8}));
  const Array plain = run_one(OpKind::Route, RouteAttrs{2, false}, {logits});
  EXPECT_THAT(plain.values, near({2. / 4, 1. / 4, 4. / 8, 3. / 8}));
}

TEST(ReferenceRouting, Combines) {
  // Token 0: 5 * 10 + 6 * 20. Token 1: 7 * 30 + 8 * 40.
  EXPECT_THAT(run_one(OpKind::Combine, NoAttrs{},
                      {floats({2, 2, 1}, {10, 20, 30, 40}), floats({2, 2}, {5, 6, 7, 8})})
                  .values,
              ElementsAre(170, 530));
}

TEST(ReferenceRouting, RowsMeetTheirExperts) {
  // Expert 0 multiplies by 10, 1 by 100, 2 by 1000.
  const Operand w = floats({3, 1, 1}, {10, 100, 1000});
  const Operand chosen = integers({2, 2}, {2, 0, 0, 1});
  EXPECT_THAT(run_one(OpKind::GroupedLinear, NoAttrs{}, {floats({2, 1}, {1, 2}), w, chosen}).values,
              ElementsAre(1000, 10, 20, 200));
  EXPECT_THAT(
      run_one(OpKind::GroupedLinear, NoAttrs{}, {floats({2, 2, 1}, {1, 2, 3, 4}), w, chosen})
          .values,
      ElementsAre(1000, 20, 30, 400));
  try {
    run_one(OpKind::GroupedLinear, NoAttrs{},
            {floats({2, 1}, {1, 2}), w, integers({2, 2}, {2, 3, 0, 1})});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
  }
}

}  // namespace
}  // namespace windlass::reference

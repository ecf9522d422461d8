// Hand-computed pieces; reference/run_pieces_test.cpp runs those of every op.

#include "windlass/graph/op_piece.h"

#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/coupled.h"
#include "windlass/graph/reference/run_op.h"

namespace windlass {
namespace {

using reference::floats;
using reference::OpCase;

// An op with zeros for its inputs, and pieces of it.
struct Whole {
  OpCase c;
  Signature signature;
  LoopNest nest;

  Whole(OpKind kind, Attrs attrs, const std::vector<Shape>& shapes)
      : c{"", kind, std::move(attrs), {}, {}} {
    for (const Shape& shape : shapes)
      c.inputs.push_back(floats(shape, std::vector<double>(element_count(shape), 0)));
    signature = c.signature();
    nest = op_info(kind).loops(signature);
  }

  OpPiece piece(size_t loop, Range range, int64_t blocks = 1) const {
    std::vector<LoopPart> parts = whole_parts(nest);
    parts[loop] = {range, blocks};
    return piece_of(signature, nest, parts);
  }
};

TEST(OpPiece, PlacesOfAPartInBlocks) {
  // Elements 1 and 2 of each of the runs 0-3, 4-7, 8-11.
  const AxisPart part = {12, {1, 3}, 3};
  EXPECT_EQ(part.count(), 6);
  std::vector<int64_t> places;
  for (int64_t i = 0; i < 6; ++i) places.push_back(part.to_whole(i));
  EXPECT_THAT(places, testing::ElementsAre(1, 2, 5, 6, 9, 10));
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(part.to_local(places[i]), i);
  EXPECT_EQ(part.to_local(0), -1);
  EXPECT_EQ(part.to_local(7), -1);
}

TEST(OpPiece, RunsJoinInnerAxesThatAreWhole) {
  // Rows 1 and 2 of 4, all of 3, all of 2: one run of 12 from 6 on.
  const Region rows = {{4, {1, 3}}, {3, {0, 3}}, {2, {0, 2}}};
  std::vector<std::array<int64_t, 3>> runs;
  const auto list = [&](int64_t local, int64_t whole, int64_t count) {
    runs.push_back({local, whole, count});
  };
  for_each_run(rows, list);
  EXPECT_THAT(runs, testing::ElementsAre(std::array<int64_t, 3>{0, 6, 12}));
  // Columns 1 of each half of 4, of both rows: 1, 3, 5, 7.
  runs.clear();
  for_each_run({{2, {0, 2}}, {4, {1, 2}, 2}}, list);
  EXPECT_THAT(
      runs, testing::ElementsAre(std::array<int64_t, 3>{0, 1, 1}, std::array<int64_t, 3>{1, 3, 1},
                                 std::array<int64_t, 3>{2, 5, 1}, std::array<int64_t, 3>{3, 7, 1}));
  runs.clear();
  for_each_run({}, list);
  EXPECT_THAT(runs, testing::ElementsAre(std::array<int64_t, 3>{0, 0, 1}));
}

TEST(OpPiece, PaddingStaysAtTheBorder) {
  // 7 elements, window 3, stride 2, padding 1 and 1: windows begin at -1, 1, 3, 5.
  const Whole conv(OpKind::Conv, ConvAttrs{{2}, {1}, {1}, {1}, {}, 1, false},
                   {{1, 2, 7}, {3, 2, 3}, {3}});
  const OpPiece left = conv.piece(3, {0, 2}), right = conv.piece(3, {2, 4});
  EXPECT_EQ(left.input_regions[0][2], (AxisPart{7, {0, 4}}));
  EXPECT_EQ(std::get<ConvAttrs>(left.attrs).pad_begin, Ints{1});
  EXPECT_EQ(std::get<ConvAttrs>(left.attrs).pad_end, Ints{0});
  EXPECT_EQ(right.input_regions[0][2], (AxisPart{7, {3, 7}}));
  EXPECT_EQ(std::get<ConvAttrs>(right.attrs).pad_begin, Ints{0});
  EXPECT_EQ(std::get<ConvAttrs>(right.attrs).pad_end, Ints{1});
  // Input channels are reduced: the first part adds the bias.
  EXPECT_TRUE(conv.piece(2, {0, 1}).facts.adds_bias);
  EXPECT_FALSE(conv.piece(2, {1, 2}).facts.adds_bias);
  EXPECT_TRUE(conv.piece(1, {1, 3}).facts.adds_bias);
}

TEST(OpPiece, TailThatNoWindowTouchesBelongsToNobody) {
  // 9 elements, window 2, stride 3: windows begin at 0, 3 and 6.
  const Whole conv(OpKind::Conv, ConvAttrs{{3}, {1}, {0}, {0}, {}, 1, false},
                   {{1, 1, 9}, {1, 1, 2}});
  EXPECT_EQ(conv.piece(3, {2, 3}).input_regions[0][2], (AxisPart{9, {6, 8}}));
  EXPECT_EQ(conv.piece(3, {0, 3}).input_regions[0][2], (AxisPart{9, {0, 9}}));
}

TEST(OpPiece, WindowBeyondThePaddingIsNotCounted) {
  // 5 elements, window 3, stride 3, padded by 0 and 0, ceil_mode: the second window begins at 3 and
  // has elements 3 and 4, and 5, which is not padding of the whole op.
  const PoolAttrs attrs = {PoolFn::Average, {3}, {3}, {1}, {0}, {0}, true, true};
  const Whole pool(OpKind::Pool, attrs, {{1, 1, 5}});
  const OpPiece last = pool.piece(2, {1, 2});
  const auto& local = std::get<PoolAttrs>(last.attrs);
  EXPECT_EQ(last.inputs[0].shape, (Shape{1, 1, 2}));
  EXPECT_EQ(local.pad_end, Ints{1});
  EXPECT_FALSE(local.ceil_mode);
  EXPECT_EQ(last.facts.uncounted_padding, Ints{1});
}

TEST(OpPiece, DrawsWhatTheWholeOpDraws) {
  const Whole dropout(OpKind::Dropout, DropoutAttrs{0.5}, {{4, 6}});
  // Columns 2 to 4: element (1, 0) of the piece is element (1, 2) of the whole.
  EXPECT_EQ(whole_element(dropout.piece(1, {2, 5}).facts.random, 3), 8);
}

TEST(OpPiece, SplitsAFusedProductByHeads) {
  // Queries, keys and values side by side, 4 columns each; the second half of each.
  const Whole linear(OpKind::Linear, LinearAttrs{}, {{5, 3}, {12, 3}, {12}});
  const OpPiece piece = linear.piece(1, {2, 4}, 3);
  EXPECT_EQ(piece.output_regions[0][1], (AxisPart{12, {2, 4}, 3}));
  EXPECT_EQ(piece.inputs[1].shape, (Shape{6, 3}));
  EXPECT_EQ(piece.inputs[2].shape, (Shape{6}));
}

TEST(OpPiece, RefusesWhatCannotBeCut) {
  const Whole sum(OpKind::CumSum, AxisAttrs{0}, {{4, 2}});
  const Whole conv(OpKind::Conv, ConvAttrs{{1}, {1}, {1}, {1}, {}, 1, false},
                   {{1, 1, 8}, {1, 1, 3}});
  for (const auto& cut : {std::function<void()>([&] {
                            sum.piece(0, {0, 2});
                          }),
                          std::function<void()>([&] {
                            conv.piece(3, {0, 2}, 2);
                          })}) {
    try {
      cut();
      FAIL() << "was cut";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Unsupported) << error.what();
    }
  }
}

TEST(OpPiece, GradientsThatAddUp) {
  const Whole linear(OpKind::Linear, LinearAttrs{}, {{5, 3}, {4, 3}, {4}});
  EXPECT_TRUE(partial_gradient(OpKind::Linear, linear.nest, 1, 0));   // weight over rows
  EXPECT_TRUE(partial_gradient(OpKind::Linear, linear.nest, 2, 0));   // bias over rows
  EXPECT_FALSE(partial_gradient(OpKind::Linear, linear.nest, 2, 2));  // bias over k
}

std::vector<double> merged(const Exchange& exchange, const std::vector<std::vector<double>>& all) {
  std::vector<const double*> members;
  for (const std::vector<double>& member : all) members.push_back(member.data());
  std::vector<double> result(all[0].size());
  merge_statistics(exchange, members, result.data());
  return result;
}

TEST(Coupled, MergesMoments) {
  // {1, 3} and {5}: means 2 and 5, squared deviations 2 and 0; of all the mean is 3, and
  // 4 + 0 + 4 = 8.
  const Exchange exchange = {{DType::F32, {1, 3}}, MergeFn::Moments};
  EXPECT_THAT(merged(exchange, {{2, 2, 2}, {1, 5, 0}}), reference::near({3, 3, 8}));
}

TEST(Coupled, MergesSoftmax) {
  // Maxima 0 and ln 2: the first's sums halve. The last column is simply added. A row without
  // anything has the maximum -infinity.
  const Exchange exchange = {{DType::F32, {2, 3}}, MergeFn::Softmax, 1};
  const double none = -std::numeric_limits<double>::infinity();
  EXPECT_THAT(merged(exchange, {{0, 3, 5, none, 0, 1}, {std::log(2.0), 1, 7, 0, 4, 2}}),
              reference::near({std::log(2.0), 2.5, 12, 0, 4, 3}));
  EXPECT_EQ(merged(exchange, {{0, 1, 0, none, 0, 0}, {0, 1, 0, none, 0, 0}})[4], 0);
}

TEST(Coupled, ExchangesOnlyWhatAPassNeeds) {
  const Whole norm(OpKind::LayerNorm, LayerNormAttrs{1}, {{4, 6}, {6}, {6}});
  const OpPiece rows = norm.piece(0, {0, 2}), columns = norm.piece(1, {0, 2});
  EXPECT_FALSE(exchange_of(rows, Pass::Forward).needed());
  EXPECT_EQ(exchange_of(columns, Pass::Forward).type, (TensorType{DType::F32, {4, 3}}));
  EXPECT_EQ(exchange_of(columns, Pass::Backward, {true, true, true}).type,
            (TensorType{DType::F32, {4, 2}}));
  EXPECT_FALSE(exchange_of(columns, Pass::Backward, {false, true, true}).needed());
  EXPECT_EQ(exchanged_scalars(norm.nest, {4, 2}, {false, true}, Pass::Forward), 12);
}

}  // namespace
}  // namespace windlass

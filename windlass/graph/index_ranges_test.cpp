#include "windlass/graph/index_ranges.h"

#include <gtest/gtest.h>

#include "windlass/graph/builder.h"

namespace windlass {
namespace {

const TensorType kIds = {DType::I64, {2, 3}};

// The range of the only input of what `make` builds from it.
template <typename Make>
IndexRange range_of(Make make) {
  GraphBuilder b("ranges");
  const TensorId x = b.input("ids", kIds);
  b.set_output(make(b, x));
  const Graph graph = b.finish();
  return index_ranges(graph)[graph.inputs[0].index()];
}

TensorId look_up(GraphBuilder& b, TensorId ids, int64_t rows) {
  const TensorId table = b.weight("table" + std::to_string(rows), {DType::F32, {rows, 4}});
  return b.op(OpKind::Embedding, NoAttrs{}, {ids, table}, "look_up");
}

TEST(IndexRanges, RowsOfATable) {
  const IndexRange range = range_of([](auto& b, TensorId x) { return look_up(b, x, 7); });
  EXPECT_EQ(range.least, 0);
  EXPECT_EQ(range.past, 7);
  EXPECT_EQ(range.use, IndexUse::Table);
  EXPECT_TRUE(range.looked_up && range.binding());
}

TEST(IndexRanges, TheLeastOfSeveral) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    return b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {look_up(b, x, 7), look_up(b, x, 5)},
                "sum");
  });
  EXPECT_EQ(range.past, 5);
}

TEST(IndexRanges, PassesViewsCastsAndSlices) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    const TensorId cast = b.op(OpKind::Cast, CastAttrs{DType::I32}, {x}, "cast");
    const TensorId flat = b.op(OpKind::Reshape, ShapeAttrs{{6}}, {cast}, "flat");
    const TensorId cut = b.op(OpKind::Slice, SliceAttrs{{1}, {1}, {4}}, {flat}, "cut");
    return look_up(b, cut, 7);
  });
  EXPECT_EQ(range.past, 7);
}

// (2 x + c) for c in {1, 3} must be in [0, 10): 2 x >= -1 and 2 x < 7, so x is in [0, 4).
TEST(IndexRanges, ArithmeticWithKnownNumbers) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    const TensorId twice =
        b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {x, b.scalar(2, DType::I64)}, "twice");
    const TensorId shift = b.constant("shift", {DType::I64, {2, 1}}, {1, 3});
    return look_up(b, b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {twice, shift}, "shifted"),
                   10);
  });
  EXPECT_EQ(range.least, 0);
  EXPECT_EQ(range.past, 4);
}

TEST(IndexRanges, AnAxisCountsFromTheEndToo) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    const TensorId data = b.weight("data", {DType::F32, {4, 6}});
    return b.op(OpKind::Gather, AxisAttrs{1}, {data, x}, "gather");
  });
  EXPECT_EQ(range.least, -6);
  EXPECT_EQ(range.past, 6);
  EXPECT_EQ(range.use, IndexUse::Axis);
}

TEST(IndexRanges, ClassesOfALossAndWhatItLeavesOut) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    const TensorId logits = b.weight("logits", {DType::F32, {2, 9, 3}});
    return b.op(OpKind::CrossEntropy, CrossEntropyAttrs{1, -1}, {logits, x}, "loss");
  });
  EXPECT_EQ(range.past, 9);
  EXPECT_EQ(range.ignored, -1);
  EXPECT_EQ(range.use, IndexUse::Classes);
}

TEST(IndexRanges, OneHotCodesAreNoLimit) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    const TensorId column = b.op(OpKind::Reshape, ShapeAttrs{{2, 3, 1}}, {x}, "column");
    const TensorId classes = b.constant("classes", {DType::I64, {4}}, {0, 1, 2, 3});
    return b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Equal}, {column, classes}, "hit");
  });
  EXPECT_EQ(range.past, 4);
  EXPECT_FALSE(range.binding());
}

TEST(IndexRanges, WhatIsPutRightOnTheWayIsNotLimited) {
  const IndexRange range = range_of([](auto& b, TensorId x) {
    const TensorId low =
        b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Min}, {x, b.scalar(6, DType::I64)}, "low");
    return look_up(b, low, 7);
  });
  EXPECT_EQ(range.use, IndexUse::None);
}

}  // namespace
}  // namespace windlass

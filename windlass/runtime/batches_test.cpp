#include "windlass/runtime/batches.h"

#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"
#include "windlass/model/safetensors.h"

namespace windlass {
namespace {

// Words [2, 3] below 50 and segments [2, 3] below 3 looked up and summed, then a loss over 4 kinds.
Graph two_tables() {
  GraphBuilder b("two_tables");
  const TensorId words = b.input("words", {DType::I64, {2, 3}});
  const TensorId segments = b.input("segments", {DType::I64, {2, 3}});
  const TensorId mask = b.input("mask", {DType::I64, {2, 3}});
  const auto look_up = [&](TensorId ids, const std::string& name, int64_t rows) {
    const TensorId table = b.weight(name, {DType::F32, {rows, 4}});
    return b.op(OpKind::Embedding, NoAttrs{}, {ids, table}, name + "_rows");
  };
  const TensorId sum = b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add},
                            {look_up(words, "w", 50), look_up(segments, "s", 3)}, "sum");
  const TensorId weights =
      b.op(OpKind::Reshape, ShapeAttrs{{2, 3, 1}},
           {b.op(OpKind::Cast, CastAttrs{DType::F32}, {mask}, "cast")}, "column");
  const TensorId shown = b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {sum, weights}, "shown");
  b.set_output(shown);
  b.attach_cross_entropy(shown);
  return b.finish();
}

std::vector<int64_t> values(const Dataset& data, int64_t sample, size_t slot) {
  std::vector<int64_t> result(static_cast<size_t>(slot_elements(data.slots()[slot])));
  data.fill(sample, slot, std::span(result));
  return result;
}

TEST(Batches, EveryIntegerInputHasTheRangeOfItsTable) {
  const Graph graph = two_tables();
  const auto slots = batch_slots(graph, find_batch(graph));
  ASSERT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots[0].spec.kind, SlotKind::Tokens);
  EXPECT_EQ(slots[0].spec.bound, 50);
  EXPECT_EQ(slots[1].spec.kind, SlotKind::Integer);
  EXPECT_EQ(slots[1].spec.bound, 3);
  EXPECT_EQ(slots[2].spec.bound, 0);
  EXPECT_EQ(slots[3].spec.bound, 4);
  EXPECT_EQ(slots[3].spec.ignored, -100);
}

TEST(Batches, SyntheticDataUseTheWholeRange) {
  const Graph graph = two_tables();
  const auto slots = batch_slots(graph, find_batch(graph));
  const auto data = open_batches("synthetic", graph, slots, {});
  std::set<int64_t> segments;
  for (int64_t sample = 0; sample < 40; ++sample)
    for (int64_t value : values(*data, sample, 1)) segments.insert(value);
  EXPECT_EQ(segments, (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(values(*data, 5, 2), (std::vector<int64_t>{1, 1, 1}));
}

// Writes a sample of words and segments, an open mask and labels.
std::string write_sample(const std::vector<int64_t>& segments, const std::vector<int64_t>& labels) {
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "windlass_batches.safetensors").string();
  const std::vector<int64_t> words = {49, 0, 7}, mask = {1, 1, 0};
  SafetensorsWriter writer(path, {{"words", {DType::I64, {1, 3}}},
                                  {"segments", {DType::I64, {1, 3}}},
                                  {"mask", {DType::I64, {1, 3}}},
                                  {"labels", {DType::I64, {1, 3}}}});
  for (const auto* tensor : {&words, &segments, &mask, &labels})
    writer.write(std::as_bytes(std::span(*tensor)));
  writer.finish();
  return path;
}

TEST(Batches, RealDataMayUseTheWholeRangeAndIgnoredLabels) {
  const Graph graph = two_tables();
  const auto slots = batch_slots(graph, find_batch(graph));
  const auto data = open_batches(write_sample({2, 1, 0}, {3, -100, 0}), graph, slots, {});
  EXPECT_EQ(values(*data, 0, 1), (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(values(*data, 0, 3), (std::vector<int64_t>{3, -100, 0}));
}

TEST(Batches, WhatIsOutsideIsNamed) {
  const Graph graph = two_tables();
  const auto slots = batch_slots(graph, find_batch(graph));
  const auto data = open_batches(write_sample({2, 3, 0}, {3, 4, 0}), graph, slots, {});
  const auto refusal = [&](size_t slot) -> std::string {
    try {
      values(*data, 0, slot);
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  EXPECT_THAT(refusal(1), testing::HasSubstr("tensor \"segments\", sample 0: 3 is outside 0 to 2, "
                                             "the rows of a table"));
  EXPECT_THAT(refusal(3), testing::HasSubstr("tensor \"labels\", sample 0: 4 is outside 0 to 3, "
                                             "the classes of the loss (-100 is left out)"));
}

// Small tensors are held, large ones stay on disk: samples are the same.
TEST(Batches, LargeTensorsAreReadRowByRow) {
  constexpr int64_t kRows = 20, kWide = int64_t{1} << 20;  // 80 MiB
  GraphBuilder b("large");
  const TensorId x = b.input("x", {DType::F32, {2, kWide}});
  const TensorId y = b.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, {1}, false}, {x}, "sum");
  const TensorId wide = b.op(OpKind::Reshape, ShapeAttrs{{2, 1}}, {y}, "wide");
  b.set_output(wide);
  b.attach_cross_entropy(wide);
  const Graph graph = b.finish();
  const auto slots = batch_slots(graph, find_batch(graph));
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "windlass_large.safetensors").string();
  {
    SafetensorsWriter writer(
        path, {{"x", {DType::F32, {kRows, kWide}}}, {"labels", {DType::I64, {kRows}}}});
    std::vector<float> row(kWide);
    for (int64_t i = 0; i < kRows; ++i) {
      row.front() = row.back() = static_cast<float>(i + 1);
      writer.write(std::as_bytes(std::span(row)));
    }
    const std::vector<int64_t> labels(kRows, 0);
    writer.write(std::as_bytes(std::span(labels)));
    writer.finish();
  }
  const auto data = open_batches(path, graph, slots, {});
  std::vector<float> read(kWide);
  for (int64_t sample : {int64_t{7}, int64_t{0}, kRows - 1}) {
    data->fill(sample, 0, std::span(read));
    EXPECT_EQ(read.front(), static_cast<float>(sample + 1));
    EXPECT_EQ(read[1], 0);
    EXPECT_EQ(read.back(), static_cast<float>(sample + 1));
    EXPECT_EQ(values(*data, sample, 1), std::vector<int64_t>{0});
  }
  std::filesystem::remove(path);
}

// x [2, 3] of two samples, plus a number that they share.
TEST(Batches, WhatSamplesShareMustBeTheSame) {
  GraphBuilder b("shared");
  const TensorId x = b.input("x", {DType::F32, {2, 3}});
  const TensorId shift = b.input("shift", {DType::F32, {}});
  const TensorId w = b.weight("w", {DType::F32, {3, 4}});
  const TensorId sum = b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {x, shift}, "sum");
  const TensorId y = b.op(OpKind::MatMul, MatMulAttrs{}, {sum, w}, "y");
  b.set_output(y);
  b.attach_cross_entropy(y);
  const Graph graph = b.finish();
  const auto slots = batch_slots(graph, find_batch(graph));
  ASSERT_EQ(slots.size(), 3u);
  EXPECT_FALSE(slots[1].per_sample);
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "windlass_shared.safetensors").string();
  const auto write = [&](float last) {
    const std::vector<float> numbers(6, 0.5F), shifts = {3, last};
    const std::vector<int64_t> labels = {3, 0};
    SafetensorsWriter writer(
        path,
        {{"x", {DType::F32, {2, 3}}}, {"shift", {DType::F32, {2}}}, {"labels", {DType::I64, {2}}}});
    writer.write(std::as_bytes(std::span(numbers)));
    writer.write(std::as_bytes(std::span(shifts)));
    writer.write(std::as_bytes(std::span(labels)));
    writer.finish();
    return path;
  };
  EXPECT_EQ(open_batches(write(3), graph, slots, {})->size(), 2);
  try {
    open_batches(write(4), graph, slots, {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("\"shift\": row 1 differs from row 0"));
  }
}

TEST(Batches, WholeNumbersOfEveryTypeAreRead) {
  const Graph graph = two_tables();
  const auto slots = batch_slots(graph, find_batch(graph));
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "windlass_narrow.safetensors").string();
  const auto write = [&](const std::string& first) {
    const std::vector<int32_t> words = {49, 0, 7};
    const std::vector<uint8_t> segments = {2, 1, 0}, mask = {1, 1, 0};
    const std::vector<int16_t> labels = {3, -100, 0};
    SafetensorsWriter writer(path, {{first, {DType::I32, {1, 3}}},
                                    {"segments", {DType::U8, {1, 3}}},
                                    {"mask", {DType::Bool, {1, 3}}},
                                    {"labels", {DType::I16, {1, 3}}}});
    writer.write(std::as_bytes(std::span(words)));
    writer.write(std::as_bytes(std::span(segments)));
    writer.write(std::as_bytes(std::span(mask)));
    writer.write(std::as_bytes(std::span(labels)));
    writer.finish();
    return path;
  };
  const auto data = open_batches(write("words"), graph, slots, {});
  EXPECT_EQ(values(*data, 0, 0), (std::vector<int64_t>{49, 0, 7}));
  EXPECT_EQ(values(*data, 0, 1), (std::vector<int64_t>{2, 1, 0}));
  EXPECT_EQ(values(*data, 0, 2), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(values(*data, 0, 3), (std::vector<int64_t>{3, -100, 0}));
  try {
    open_batches(write("tokens"), graph, slots, {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("no tensor \"words\", which the model reads; "
                                                    "it has \"tokens\", \"segments\""));
  }
}

}  // namespace
}  // namespace windlass

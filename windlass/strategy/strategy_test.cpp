#include "windlass/strategy/strategy.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/builder.h"

namespace windlass {
namespace {

// Dropout saves a mask, the loss reads integer labels.
TEST(Strategy, OnlyFloatsAreCompressed) {
  GraphBuilder b("dropping");
  TensorId x = b.input("x", {DType::F32, {4, 8}});
  x = b.op(OpKind::Linear, LinearAttrs{}, {x, b.weight("a", {DType::F32, {8, 8}})}, "a");
  x = b.op(OpKind::Dropout, DropoutAttrs{.ratio = 0.5}, {x}, "drop");
  x = b.op(OpKind::Linear, LinearAttrs{}, {x, b.weight("b", {DType::F32, {8, 8}})}, "b");
  b.set_output(x);
  b.attach_cross_entropy(x);
  const TrainingGraph training = differentiate(b.finish(), {});
  int refused = 0;
  for (size_t s = 0; s < training.saved.size(); ++s) {
    Strategy strategy = plain_strategy(training, DeviceId(size_t{0}));
    strategy.saved[s] = MemoryAction::Compress4;
    const Tensor& tensor = training.graph[training.saved[s].tensor];
    if (is_float(tensor.type.dtype)) {
      EXPECT_NO_THROW(check_outline(training, strategy)) << tensor.name;
      continue;
    }
    ++refused;
    try {
      check_outline(training, strategy);
      ADD_FAILURE() << tensor.name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input);
      EXPECT_THAT(error.message(), testing::HasSubstr(tensor.name));
      EXPECT_THAT(error.message(), testing::HasSubstr("only floating-point tensors"));
    }
  }
  EXPECT_GE(refused, 2);
}

// Blocks whose windows overlap would each need what lies beside them; a loop that is cut twice has
// no runs that both cuts agree on.
TEST(Strategy, OnlyPlainLoopsAreCutInBlocks) {
  GraphBuilder b("blocks");
  const TensorId x = b.input("x", {DType::F32, {4, 2, 8}});
  const TensorId w = b.weight("w", {DType::F32, {4, 2, 3}});
  b.set_output(b.op(
      OpKind::Conv,
      ConvAttrs{
          .stride = {1}, .dilation = {1}, .pad_begin = {1}, .pad_end = {1}, .output_padding = {0}},
      {x, w}, "conv"));
  const Graph graph = b.finish();
  const Op& op = graph.ops[0];
  const LoopNest nest = loops_of(graph, op);
  const auto loop = [&](std::string_view name) {
    const auto found = std::ranges::find(nest.loops, name, &LoopDim::name);
    return static_cast<int32_t>(found - nest.loops.begin());
  };
  EXPECT_NO_THROW(check_sharding(op, nest, {{{loop("out"), 2, 2}}}, 2));
  EXPECT_THROW(check_sharding(op, nest, {{{loop("x"), 2, 2}}}, 2), Error);
  EXPECT_THROW(check_sharding(op, nest, {{{loop("out"), 2, 2}, {loop("out"), 2, 1}}}, 4), Error);
}

}  // namespace
}  // namespace windlass

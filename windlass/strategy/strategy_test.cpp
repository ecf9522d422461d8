#include "windlass/strategy/strategy.h"

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

}  // namespace
}  // namespace windlass

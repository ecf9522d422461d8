#include "windlass/model/onnx/operators.h"

#include <gtest/gtest.h>

#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

TEST(Operators, NothingIsBothReadAndRefused) {
  EXPECT_EQ(onnx_operators().size(), import_table().size());
  for (const RefusedOperator& refused : refused_operators())
    EXPECT_FALSE(import_table().contains(refused.name)) << refused.name;
}

TEST(Operators, LimitsAreOfOperatorsThatAreRead) {
  size_t limited = 0;
  for (const OnnxOperator& op : onnx_operators()) limited += op.limits.empty() ? 0 : 1;
  EXPECT_EQ(limited, 24u);
}

}  // namespace
}  // namespace windlass

#include "windlass/model/onnx/operators.h"

#include <gtest/gtest.h>

#include "windlass/model/onnx/import_testing.h"
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

// Any operator may be given any operands: few, many, and some of them absent.
TEST(Operators, OperandsMayBeAbsent) {
  using namespace proto;
  constexpr size_t kMost = 5;
  for (const std::vector<Dim>& shape : {std::vector<Dim>{}, {4}, {2, 4}, {2, 4, 4}, {1, 2, 4, 4}})
    for (const ElementType type : {kFloat, kInt64})
      for (const auto& [name, rule] : import_table())
        for (size_t count = 0; count <= kMost; ++count)
          for (unsigned present = 0; present < 1u << count; ++present) {
            std::string graph = output("y", shape);
            std::vector<std::string> operands;
            for (size_t i = 0; i < count; ++i) {
              const bool given = (present >> i & 1) != 0;
              operands.push_back(given ? "x" + std::to_string(i) : "");
              // The later ones are often lists of numbers.
              if (given && i > 0 && type == kInt64)
                graph += initializer(int_tensor(operands[i], {1}, {0}));
              else if (given)
                graph += input(operands[i], shape, i == 0 ? kFloat : type);
            }
            const std::string file = proto::model(graph + node(std::string(name), operands, {"y"}));
            SCOPED_TRACE(name);
            try {
              import(file);
            } catch (const Error& error) {
              EXPECT_NE(error.kind(), ErrorKind::Internal) << error.message();
            }
          }
}

}  // namespace
}  // namespace windlass

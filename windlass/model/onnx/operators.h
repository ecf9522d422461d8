// Which of ONNX's operators are read, and how far.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace windlass {

struct OnnxOperator {
  std::string_view name;
  // What is not read of it; empty if all is, but for what no operator can: shapes and lists of axes
  // must be known when the file is read.
  std::string_view limits;
};

struct RefusedOperator {
  std::string_view name;
  std::string_view advice;  // what to do instead
};

// By name.
std::vector<OnnxOperator> onnx_operators();
std::vector<RefusedOperator> refused_operators();

// What would make a model with an operator that is not read work.
std::string_view advice_for(std::string_view op_type);

// Versions of ONNX's operators that are known.
constexpr int64_t kFirstOpset = 1, kLastOpset = 23;

}  // namespace windlass

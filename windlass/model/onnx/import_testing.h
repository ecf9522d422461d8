// What tests of the ONNX importer share.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/model/onnx/onnx_import.h"
#include "windlass/model/onnx/proto_writer.h"

namespace windlass {

inline Model import(const std::string& file, const ModelOptions& options = {}) {
  return import_onnx(file, "m.onnx", "", options);
}

// The message of the error that importing gives, after checking its kind.
inline std::string import_error(const std::string& file, ErrorKind kind = ErrorKind::Input,
                                const ModelOptions& options = {}, const std::string& folder = "") {
  try {
    import_onnx(file, "m.onnx", folder, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.message();
    return error.message();
  }
  return "no error";
}

inline int count_ops(const Graph& graph, OpKind kind) {
  return static_cast<int>(std::ranges::count(graph.ops, kind, &Op::kind));
}

// Names of the trainable weights, in order.
inline std::vector<std::string> weight_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Tensor& tensor : graph.tensors)
    if (tensor.role == TensorRole::Weight && tensor.trainable) names.push_back(tensor.name);
  std::ranges::sort(names);
  return names;
}

inline bool has_note(const Model& model, const std::string& part) {
  return std::ranges::any_of(
      model.notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

}  // namespace windlass

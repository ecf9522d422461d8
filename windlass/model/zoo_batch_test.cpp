// Cutting the batch of a network gives the network of the smaller batch, op by op.

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/op_info.h"
#include "windlass/model/model.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

Model load(const std::string& name, int64_t batch) {
  ModelOptions options;
  options.batch = batch;
  return load_model(name, options);
}

bool mixes_samples(const Graph& graph) {
  for (const Op& op : graph.ops) {
    if (op.kind == OpKind::BatchNorm && std::get<BatchNormAttrs>(op.attrs).training) return true;
  }
  return false;
}

TEST(ZooBatch, CutEqualsBuiltSmaller) {
  int cut = 0;
  for (const std::string& name : zoo_names()) {
    SCOPED_TRACE(name);
    const Graph large = load(name, 8).graph;
    const BatchAxes batch = find_batch(large);
    EXPECT_EQ(batch.samples, 8);
    EXPECT_EQ(!batch.obstacle.empty(), mixes_samples(large)) << batch.obstacle;
    if (!batch.obstacle.empty()) {
      EXPECT_THROW(cut_batch(large, batch, 4), Error);
      continue;
    }
    ++cut;
    const Graph small = load(name, 2).graph;
    const Graph made = cut_batch(large, batch, 4);
    ASSERT_EQ(made.ops.size(), small.ops.size());
    ASSERT_EQ(made.tensors.size(), small.tensors.size());
    for (size_t i = 0; i < small.ops.size(); ++i) {
      ASSERT_EQ(made.ops[i].kind, small.ops[i].kind) << small.ops[i].name;
      ASSERT_EQ(made.ops[i].attrs, small.ops[i].attrs) << small.ops[i].name;
    }
    for (size_t t = 0; t < small.tensors.size(); ++t)
      ASSERT_EQ(made.tensors[t].type, small.tensors[t].type) << small.tensors[t].name;
  }
  EXPECT_GT(cut, 30);
}

TEST(ZooBatch, RefusesWhatDoesNotDivide) {
  const Graph graph = load("mlp", 6).graph;
  EXPECT_THROW(cut_batch(graph, find_batch(graph), 4), Error);
  EXPECT_NO_THROW(cut_batch(graph, find_batch(graph), 3));
}

TEST(ZooBatch, NamesTheObstacle) {
  const Graph graph = load("resnet-18", 8).graph;
  const BatchAxes batch = find_batch(graph);
  EXPECT_NE(batch.obstacle.find("BatchNorm \"bn1\""), std::string::npos) << batch.obstacle;
  // Samples are still followed, so that the batch can be split side by side.
  size_t split = 0;
  for (int32_t loop : batch.loop) split += loop >= 0 ? 1 : 0;
  EXPECT_EQ(split, graph.ops.size());
}

}  // namespace
}  // namespace windlass

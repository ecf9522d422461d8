// Layers as ops: what they pass on, what each has of the samples, and what is refused.

#include "windlass/task/packs/op_chain.h"

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/cost/layer_peaks.h"
#include "windlass/graph/network_layers.h"
#include "windlass/plan/cases.h"
#include "windlass/task/packs/lower_packs.h"

namespace windlass {
namespace {

std::string refusal(const Graph& graph) {
  const TrainingGraph training = differentiate(graph);
  try {
    OpChain chain(training);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Unsupported);
    return error.message();
  }
  return {};
}

// linear, relu, linear, loss: each op is a layer, and passes its output on.
TEST(OpChain, LayersOfAnMlp) {
  const TrainingGraph training = differentiate(cases::mlp(4, 1, 8));
  const OpChain chain(training);
  const Graph& graph = training.graph;
  ASSERT_EQ(chain.layers.size(), 4u);
  EXPECT_FALSE(chain.layers[0].input.valid());
  EXPECT_EQ(graph[chain.layers[1].input].name, "layer0");
  EXPECT_EQ(graph[chain.layers[2].input].name, "relu0");
  EXPECT_EQ(chain.layers[3].gradient, training.gradient_of[chain.layers[3].input.index()]);
  ASSERT_EQ(chain.layers[0].data.size(), 1u);
  EXPECT_EQ(graph[chain.layers[0].data[0]].name, "x");
  EXPECT_EQ(chain.layers[0].state.size(), 2u);
  EXPECT_EQ(chain.layers[3].data.size(), 1u);  // labels
  // 32 x 8 and 8 x 16 weights with biases, fp32.
  EXPECT_EQ(chain.bytes.weights, (std::vector<int64_t>{4 * (32 * 8 + 8), 0, 4 * (8 * 16 + 16), 0}));
  EXPECT_EQ(chain.bytes.input, (std::vector<int64_t>{128, 32, 32, 64}));
  EXPECT_EQ(chain.samples.samples, 4);
  EXPECT_EQ(chain.samples.kind[graph.loss.index()], SampleKind::Summed);
  EXPECT_EQ(chain.samples.kind[training.loss_gradient.index()], SampleKind::Fixed);
  EXPECT_EQ(chain.samples.kind[chain.layers[1].input.index()], SampleKind::Apart);
}

// An output that is read all along the network would have to be passed on beside the others.
TEST(OpChain, RefusesASkipConnectionAcrossLayers) {
  cases::Net net("skips");
  TensorId x = net.linear(net.b.input("x", cases::f32({4, 8})), 8, "stem");
  const TensorId stem = x;
  for (int i = 0; i < 8; ++i) {
    const std::string layer = fmt::format("layer{}", i);
    x = net.add(net.relu(net.linear(x, 8, layer), layer + ".relu"), stem, layer + ".add");
  }
  const Graph graph = net.finish(x);
  ASSERT_GT(find_layers(graph).back(), 4);
  const std::string message = refusal(graph);
  EXPECT_NE(message.find("\"stem\""), std::string::npos) << message;
  EXPECT_NE(message.find("packs of layers pass one tensor"), std::string::npos) << message;
}

TEST(OpChain, RefusesBatchNorm) {
  EXPECT_NE(refusal(cases::cnn(4, true)).find("BatchNorm"), std::string::npos);
}

// A penalty on weights would be added with every micro-batch.
TEST(OpChain, RefusesALossThatIsNoMean) {
  cases::Net net("penalty");
  TensorId x = net.relu(net.linear(net.b.input("x", cases::f32({4, 8})), 8, "first"), "relu");
  net.b.attach_cross_entropy(net.linear(x, 8, "second"));
  Graph graph = net.b.finish();
  const TensorId weight = graph[OpId(size_t{0})].inputs[1];
  ASSERT_TRUE(graph.loss.valid() && weight.valid());
  const TensorId size(graph.tensors.size());
  graph.tensors.push_back({.name = "size",
                           .type = cases::f32({}),
                           .role = TensorRole::Activation,
                           .producer = OpId(graph.ops.size())});
  graph.ops.push_back(
      {.kind = OpKind::Reduce,
       .attrs = ReduceAttrs{.fn = ReduceFn::Sum, .axes = {0, 1}, .keep_dims = false},
       .inputs = {weight},
       .outputs = {size},
       .name = "size"});
  const TensorId loss(graph.tensors.size());
  graph.tensors.push_back({.name = "total",
                           .type = cases::f32({}),
                           .role = TensorRole::Activation,
                           .producer = OpId(graph.ops.size())});
  graph.ops.push_back({.kind = OpKind::Binary,
                       .attrs = BinaryAttrs{.fn = BinaryFn::Add},
                       .inputs = {graph.loss, size},
                       .outputs = {loss},
                       .name = "total"});
  graph.loss = loss;
  check_graph(graph);
  const std::string message = refusal(graph);
  EXPECT_NE(message.find("\"size\" is part of the loss, but no mean over samples"),
            std::string::npos)
      << message;
}

// relu(linear(x)) of 512 floats: forward the linear's output lives until the relu has run. Two
// tensors of 2048 bytes; the relu's output is passed on.
TEST(LayerPeaks, AreWhatOpsHaveAlive) {
  cases::Net net("peaks");
  TensorId x = net.b.input("x", cases::f32({2, 512}));
  x = net.linear(x, 512, "first");
  x = net.relu(x, "first.relu");
  x = net.linear(x, 512, "second");
  const TrainingGraph training = differentiate(net.finish(x));
  const std::vector<int32_t> layers = find_layers(training.graph);
  ASSERT_EQ(layers, (std::vector<int32_t>{0, 1, 2, 3}));
  const std::vector<int64_t> none(training.forward_ops + training.backward_ops, 0);
  const LayerPeaks peaks = layer_peaks(training, layers, none);
  constexpr int64_t kTensor = 2 * 512 * 4;
  EXPECT_EQ(peaks.forward[1], kTensor);
  // The relu again, whose output its gradient needs, and the gradient.
  EXPECT_EQ(peaks.backward[1], 2 * kTensor);
  EXPECT_EQ(peaks.forward[0], kTensor);
  // Labels of this micro-batch and of the next, the loss and what it keeps: 512 bytes each.
  EXPECT_EQ(peaks.forward[3], 2 * 512 + 3 * 512);
}

}  // namespace
}  // namespace windlass

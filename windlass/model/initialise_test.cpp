#include "windlass/model/initialise.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "windlass/graph/differentiate.h"
#include "windlass/model/layers.h"
#include "windlass/model/model.h"
#include "windlass/model/zoo.h"

namespace windlass {

void PrintTo(const InitialValue& value, std::ostream* out) {
  *out << static_cast<int>(value.kind) << "(" << value.a << ", " << value.b << ")";
}

namespace {

using Kind = InitialValue::Kind;

InitialValue constant(double value) { return {Kind::Constant, value, 0}; }
InitialValue normal(double deviation) { return {Kind::Normal, 0, deviation}; }
InitialValue uniform(double fan) {
  return {Kind::Uniform, -1 / std::sqrt(fan), 1 / std::sqrt(fan)};
}

TensorId named(const Graph& graph, const std::string& name) {
  for (size_t t = 0; t < graph.tensors.size(); ++t)
    if (graph.tensors[t].name == name) return TensorId(t);
  ADD_FAILURE() << "no tensor " << name;
  return TensorId(0);
}

InitialValue start_of(const Graph& graph, const std::string& name) {
  const auto values = initial_values(graph);
  const auto found = values.find(named(graph, name));
  EXPECT_NE(found, values.end()) << name;
  return found == values.end() ? InitialValue{} : found->second;
}

TEST(Initialise, CoversEveryWeightAndBuffer) {
  for (const std::string& name : zoo_names()) {
    if (name.starts_with("gpt2-") && name.ends_with("b")) continue;
    const Graph graph = build_zoo_model(name);
    const auto values = initial_values(graph);
    size_t stored = 0;
    for (const Tensor& tensor : graph.tensors)
      stored += tensor.role == TensorRole::Weight || tensor.role == TensorRole::Buffer ? 1 : 0;
    EXPECT_EQ(values.size(), stored) << name;
  }
}

TEST(Initialise, ConvolutionsAndNorms) {
  const Graph graph = build_zoo_model("resnet-18");
  EXPECT_EQ(start_of(graph, "conv1.weight"), uniform(3 * 7 * 7));
  EXPECT_EQ(start_of(graph, "layer1.0.conv1.weight"), uniform(64 * 9));
  EXPECT_EQ(start_of(graph, "bn1.weight"), constant(1));
  EXPECT_EQ(start_of(graph, "bn1.bias"), constant(0));
  EXPECT_EQ(start_of(graph, "bn1.running_mean"), constant(0));
  EXPECT_EQ(start_of(graph, "bn1.running_var"), constant(1));
  EXPECT_EQ(start_of(graph, "fc.weight"), uniform(512));
  EXPECT_EQ(start_of(graph, "fc.bias"), uniform(512));
}

TEST(Initialise, GroupsAndTransposedConvolutions) {
  Layers net("n");
  TensorId x = net.image_input(1, 8, 6, 6);
  x = net.conv(x, 16, {3, 3}, "grouped", {.groups = 4});
  x = net.conv(x, 10, {2, 2}, "up", {.transposed = true});
  const Graph graph = net.finish_mean_squared_error(x);
  EXPECT_EQ(start_of(graph, "grouped.weight"), uniform(2 * 9));
  EXPECT_EQ(start_of(graph, "grouped.bias"), uniform(2 * 9));
  // [16, 10, 2, 2]: torch.nn.init takes the second axis as inputs.
  EXPECT_EQ(start_of(graph, "up.weight"), uniform(10 * 4));
}

TEST(Initialise, RecurrentNetworks) {
  Layers net("n");
  TensorId x = net.embedding(net.token_input("ids", 5, 2), 11, 6, "table");
  x = net.lstm(x, 9, "lstm");
  x = net.linear(x, 11, "out");
  const Graph graph = net.finish_cross_entropy(x);
  EXPECT_EQ(start_of(graph, "table.weight"), normal(1));
  for (const char* name : {"lstm.weight_ih", "lstm.weight_hh", "lstm.bias"})
    EXPECT_EQ(start_of(graph, name), uniform(9)) << name;
  EXPECT_EQ(start_of(graph, "out.weight"), uniform(9));
}

TEST(Initialise, LanguageModelsBeginNarrow) {
  for (const char* name : {"gpt2:layers=1,hidden=24", "llama2-7b:layers=1", "bert-base:layers=1"}) {
    for (const bool fuse : {true, false}) {
      ModelOptions options;
      options.fuse = fuse;
      options.sequence = 8;
      const Graph graph = load_model(name, options).graph;
      for (const auto& [id, value] : initial_values(graph)) {
        const std::string& tensor = graph[id].name;
        const bool vector = graph[id].type.shape.size() == 1;
        const bool bias = tensor.ends_with("bias");
        EXPECT_EQ(value, !vector ? normal(0.02) : constant(bias ? 0 : 1)) << name << " " << tensor;
      }
    }
  }
}

TEST(Initialise, ImageTransformersAreNoLanguageModels) {
  const Graph graph = build_zoo_model("vit-b-16:layers=1");
  for (const auto& [id, value] : initial_values(graph)) {
    const Tensor& tensor = graph[id];
    if (tensor.name.find("mlp") != std::string::npos && tensor.type.shape.size() == 2) {
      EXPECT_EQ(value, uniform(static_cast<double>(tensor.type.shape[1]))) << tensor.name;
    }
    if (tensor.name.find("class_token") != std::string::npos ||
        tensor.name.find("pos_embedding") != std::string::npos) {
      EXPECT_EQ(value, normal(0.02)) << tensor.name;
    }
  }
}

TEST(Initialise, LooksThroughViewsAndTakesTheFirstUser) {
  Layers net("n");
  const TensorId x = net.linear(net.builder().input("x", {DType::F32, {2, 6}}), 6, "first");
  const TensorId stored = net.weight("stored", {4, 3, 2});
  const TensorId flat = net.reshape(stored, {4, 6}, "flat");
  const TensorId turned = net.transpose(flat, {1, 0}, "turned");
  const TensorId halves = net.split(turned, {2, 2}, 1, "halves")[0];
  TensorId y = net.matmul(x, halves, "product");
  y = net.add(y, net.weight("shift", {2}), "shifted");
  y = net.mul(y, net.weight("scale", {2}), "scaled");
  const Graph graph = net.finish_mean_squared_error(y);
  EXPECT_EQ(start_of(graph, "stored"), uniform(6));
  EXPECT_EQ(start_of(graph, "shift"), uniform(6));
  EXPECT_EQ(start_of(graph, "scale"), constant(1));
}

TEST(Initialise, ScaleThatIsAddedToOne) {
  Layers net("n");
  const TensorId x = net.linear(net.builder().input("x", {DType::F32, {2, 6}}), 6, "first");
  const Graph graph = net.finish_mean_squared_error(net.rms_norm(x, "norm", 1e-6, 1));
  EXPECT_EQ(start_of(graph, "norm.weight"), constant(0));
}

TEST(Initialise, IsThatOfTheForwardPass) {
  for (const char* name : {"gpt2:layers=1,hidden=24", "resnet-18", "swin-t"}) {
    const Graph graph = build_zoo_model(name);
    const TrainingGraph training = differentiate(graph);
    const auto expected = initial_values(graph), found = initial_values(training.graph);
    EXPECT_EQ(found.size(), expected.size()) << name;
    for (const auto& [id, value] : found)
      EXPECT_EQ(value, expected.at(named(graph, training.graph[id].name)));
  }
}

TEST(Initialise, FillsTheSameInAnyOrder) {
  for (const InitialValue& value : {uniform(16), normal(0.02), constant(3)}) {
    std::vector<float> whole(1000), parts(1000);
    fill_initial(value, 7, TensorId(3), whole);
    for (size_t begin : {600u, 0u, 300u}) {
      const size_t count = begin == 600 ? 400 : 300;
      fill_initial(value, 7, TensorId(3), std::span(parts).subspan(begin, count),
                   static_cast<int64_t>(begin));
    }
    EXPECT_EQ(whole, parts);
    std::vector<float> other(1000);
    fill_initial(value, 8, TensorId(3), other);
    EXPECT_EQ(whole == other, value.kind == Kind::Constant);
    fill_initial(value, 7, TensorId(4), other);
    EXPECT_EQ(whole == other, value.kind == Kind::Constant);
  }
}

TEST(Initialise, HasTheMomentsItShould) {
  std::vector<float> values(200'000);
  const auto moments = [&] {
    double sum = 0, squares = 0;
    for (float v : values) sum += v, squares += double{v} * v;
    const double mean = sum / 2e5;
    return std::pair(mean, std::sqrt(squares / 2e5 - mean * mean));
  };
  // Five standard errors: 5 / sqrt(2e5) = 0.011 of the deviation.
  fill_initial({Kind::Normal, 1, 0.5}, 1, TensorId(0), values);
  EXPECT_NEAR(moments().first, 1, 0.0056);
  EXPECT_NEAR(moments().second, 0.5, 0.004);
  fill_initial({Kind::Uniform, -2, 2}, 1, TensorId(0), values);
  EXPECT_NEAR(moments().first, 0, 0.013);
  EXPECT_NEAR(moments().second, 2 / std::sqrt(3), 0.01);
  for (float v : values) ASSERT_LE(std::abs(v), 2);
}

}  // namespace
}  // namespace windlass

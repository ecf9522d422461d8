#include "windlass/model/onnx/restore.h"

#include "windlass/model/onnx/import_testing.h"

namespace windlass {
namespace {

using namespace proto;
using testing::ElementsAre;

TEST(Restore, TellsFurtherUsesOfAModule) {
  EXPECT_EQ(kinship("/w/MatMul", "/w_1/MatMul"), Kinship::Again);
  EXPECT_EQ(kinship("/n/n.1/PRelu", "/n/n.1_12/PRelu"), Kinship::Again);
  EXPECT_EQ(kinship("/self_/MatMul", "/self__1/MatMul_2"), Kinship::Module);
  EXPECT_EQ(kinship("/w/MatMul", "/w/MatMul_1"), Kinship::Module);
  EXPECT_EQ(kinship("/layers.0/w/MatMul", "/layers.1/w/MatMul"), Kinship::None);
  EXPECT_EQ(kinship("/conv_1/Conv", "/conv_2/Conv"), Kinship::None);
  EXPECT_EQ(kinship("/w/MatMul", "/w/v/MatMul"), Kinship::None);
  EXPECT_EQ(kinship("/w/MatMul", "/w/Add"), Kinship::None);
  EXPECT_EQ(kinship("MatMul_1", "MatMul_2"), Kinship::None);
}

// A module that is used twice, its weight stored by the exporter as two transposed copies or as one
// with an alias; and a copy of the module.
TEST(Restore, ComputedValuesOfOneModuleAreTied) {
  const auto weights = [](const std::string& second, const std::string& stored) {
    return weight_names(
        import(proto::model(
                   input("x", {2, 3}) + output("y", {2, 3}) + counting("onnx::MatMul_7", {3, 3}) +
                       stored +
                       node("MatMul", {"x", "onnx::MatMul_7"}, {"/a"}, {.name = "/w/MatMul"}) +
                       node("Relu", {"/a"}, {"/b"}, {.name = "/Relu"}) +
                       node("MatMul", {"/b", "onnx::MatMul_8"}, {"y"}, {.name = second}),
                   {.producer = "pytorch"}))
            .graph);
  };
  const std::string twice = counting("onnx::MatMul_8", {3, 3});
  const std::string alias = node("Identity", {"onnx::MatMul_7"}, {"onnx::MatMul_8"});
  EXPECT_THAT(weights("/w_1/MatMul", twice), ElementsAre("onnx::MatMul_7"));
  EXPECT_THAT(weights("/w_1/MatMul", alias), ElementsAre("onnx::MatMul_7"));
  EXPECT_THAT(weights("/v/MatMul", twice), ElementsAre("onnx::MatMul_7", "onnx::MatMul_8"));
  EXPECT_THAT(weights("/v/MatMul", alias), ElementsAre("onnx::MatMul_7", "onnx::MatMul_8"));
}

// An autoencoder whose decoder has the encoder's weight, [2, 3] and once more as [3, 2].
TEST(Restore, ATransposedCopyIsTheWeight) {
  const std::string graph =
      input("x", {2, 3}) + output("y", {2, 3}) + initializer("w", {2, 3}, {1, 2, 3, 4, 5, 6}) +
      initializer("onnx::Gemm_9", {3, 2}, {1, 4, 2, 5, 3, 6}) +
      node("Gemm", {"x", "w"}, {"h"}, {.attributes = attribute("transB", 1)}) +
      node("Gemm", {"h", "onnx::Gemm_9"}, {"y"}, {.attributes = attribute("transB", 1)});
  EXPECT_THAT(weight_names(import(proto::model(graph, {.producer = "pytorch"})).graph),
              ElementsAre("w"));
}

TEST(Restore, TellsNamesFromNumbers) {
  for (const auto& name : {"onnx::Conv_12", "215", "/block/Constant_output_0", "_v_7"})
    EXPECT_TRUE(is_anonymous_name(name)) << name;
  for (const auto& name : {"conv1.weight", "weight", "layer.0.bias", "a1"})
    EXPECT_FALSE(is_anonymous_name(name)) << name;
  EXPECT_TRUE(is_buffer_name("bn.running_mean"));
  EXPECT_TRUE(is_buffer_name("inv_freq"));
  EXPECT_FALSE(is_buffer_name("bn.my_running_mean"));
}

// `count` convolutions in a row whose weights PyTorch numbered from `first` on, and `named` other
// stored values; weight and bias of a convolution are [1, 1, 1] and [1].
std::string folded_convolutions(int count, int first, int named) {
  std::string graph = input("x", {1, 2, 4});
  std::string last = "x";
  for (int i = 0; i < count; ++i) {
    const std::string weight = "onnx::Conv_" + std::to_string(first + 2 * i);
    const std::string bias = "onnx::Conv_" + std::to_string(first + 2 * i + 1);
    const std::string y = "/conv" + std::to_string(i);
    graph += counting(weight, {2, 2, 1}) + counting(bias, {2}) +
             node("Conv", {last, weight, bias}, {y}, {.name = y});
    last = y;
  }
  for (int i = 0; i < named; ++i) {
    const std::string scale = "scale." + std::to_string(i), y = "/mul" + std::to_string(i);
    graph += counting(scale, {4}) + node("Mul", {last, scale}, {y}, {.name = y});
    last = y;
  }
  graph += output(last, {1, 2, 4});
  return proto::model(graph, {.producer = "pytorch"});
}

TEST(Restore, BatchNormalisationFoldedIntoConvolutions) {
  // Four convolutions and one product: what came before the first folded weight are 1 (PyTorch's
  // own start), 1 input, 1 named value, 7 values of each folded norm, and 5 outputs: 36 in all.
  const int without_biases = 1 + 1 + 1 + 7 * 4 + 5;
  const Model plain = import(folded_convolutions(4, without_biases, 1));
  EXPECT_EQ(count_ops(plain.graph, OpKind::BatchNorm), 4);
  // weight, scale and shift of each, and the product's 4
  EXPECT_EQ(parameter_count(plain.graph), 4 * 8 + 4);
  EXPECT_TRUE(has_note(plain, "folded into convolutions is restored"));

  const Model biased = import(folded_convolutions(4, without_biases + 4, 1));
  EXPECT_EQ(parameter_count(biased.graph), 4 * 10 + 4);
  for (const Op& op : biased.graph.ops) {
    if (op.kind != OpKind::Conv) continue;
    ASSERT_EQ(op.inputs.size(), 3u);
    EXPECT_EQ(biased.graph[op.inputs[2]].name, op.name + ".bias");
    EXPECT_TRUE(biased.weights.contains(op.inputs[2]));
  }

  for (const int other : {1, 3, 5}) {
    const Model model = import(folded_convolutions(4, without_biases + other, 1));
    EXPECT_EQ(parameter_count(model.graph), 4 * 8 + 4) << other;
  }
}

TEST(Restore, BatchNormalisationOfOneChannel) {
  const std::string graph = input("x", {1, 2, 4}) + output("y", {1, 1, 4}) +
                            counting("onnx::Conv_20", {1, 2, 1}) + counting("onnx::Conv_21", {1}) +
                            node("Conv", {"x", "onnx::Conv_20", "onnx::Conv_21"}, {"y"});
  const Model model = import(proto::model(graph, {.producer = "pytorch"}));
  EXPECT_EQ(parameter_count(model.graph), 2 + 1 + 1);
}

TEST(Restore, AFewConvolutionsProveNoBiases) {
  const int without_biases = 1 + 1 + 1 + 7 * 3 + 4;
  const Model model = import(folded_convolutions(3, without_biases + 3, 1));
  EXPECT_EQ(parameter_count(model.graph), 3 * 8 + 4);
}

TEST(Restore, NothingIfTakenAsExported) {
  const Model model = import(folded_convolutions(4, 40, 1), {.as_exported = true});
  EXPECT_EQ(count_ops(model.graph, OpKind::BatchNorm), 0);
  EXPECT_EQ(parameter_count(model.graph), 4 * 6 + 4);
}

TEST(Restore, NamesThatAreAllNumbersSayNothing) {
  // As PyTorch 1.0 wrote them.
  const std::string graph = input("0", {1, 1, 4}) + output("3", {1, 1, 4}) +
                            counting("1", {1, 1, 1}) + counting("2", {1}) +
                            node("Conv", {"0", "1", "2"}, {"3"});
  const Model model = import(proto::model(graph, {.producer = "pytorch"}));
  EXPECT_EQ(count_ops(model.graph, OpKind::BatchNorm), 0);
}

// Windows of 4 x 4 places, one head: a bias [1, 1, 16, 16] that depends on the offset only.
std::vector<float> window_bias() {
  std::vector<float> values;
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) {
      const int dy = i / 4 - j / 4, dx = i % 4 - j % 4;
      values.push_back(static_cast<float>(10 * dy + dx));
    }
  return values;
}

std::string with_bias(const std::vector<float>& values) {
  return proto::model(input("x", {1, 1, 16, 16}) + output("y", {1, 1, 16, 16}) +
                          initializer("onnx::Add_9", {1, 1, 16, 16}, values) + counting("w", {16}) +
                          node("Mul", {"x", "w"}, {"h"}) + node("Add", {"h", "onnx::Add_9"}, {"y"}),
                      {.producer = "pytorch"});
}

TEST(Restore, RelativePositionTables) {
  // (2 * 4 - 1)^2 = 49 offsets
  const Model model = import(with_bias(window_bias()));
  EXPECT_EQ(parameter_count(model.graph), 16 + 49);
  EXPECT_EQ(count_ops(model.graph, OpKind::Gather), 1);
  EXPECT_EQ(parameter_count(import(with_bias(window_bias()), {.as_exported = true}).graph),
            16 + 256);
  std::vector<float> other = window_bias();
  other[17] += 1;
  EXPECT_EQ(parameter_count(import(with_bias(other)).graph), 16 + 256);
}

TEST(Restore, AdditiveMasksAreConstants) {
  std::vector<float> mask;
  for (int i = 0; i < 256; ++i) mask.push_back(i % 16 > i / 16 ? -100.0f : 0.0f);
  EXPECT_EQ(parameter_count(import(with_bias(mask)).graph), 16);
}

TEST(Restore, TiedTables) {
  // A table [5, 3] and its transpose, as the exporter writes a head that shares it.
  std::vector<float> transposed;
  for (int column = 0; column < 3; ++column)
    for (int row = 0; row < 5; ++row)
      transposed.push_back(static_cast<float>(row * 3 + column + 1));
  const auto file = [&](const std::vector<float>& head) {
    return proto::model(input("ids", {2}, kInt64) + output("y", {2, 5}) +
                            counting("table.weight", {5, 3}) +
                            initializer("onnx::MatMul_8", {3, 5}, head) +
                            node("Gather", {"table.weight", "ids"}, {"rows"}) +
                            node("MatMul", {"rows", "onnx::MatMul_8"}, {"y"}),
                        {.producer = "pytorch"});
  };
  const Model tied = import(file(transposed));
  EXPECT_THAT(weight_names(tied.graph), ElementsAre("table.weight"));
  EXPECT_TRUE(has_note(tied, "tied weights"));
  EXPECT_EQ(parameter_count(import(file(transposed), {.as_exported = true}).graph), 30);
  transposed[4] += 1;
  EXPECT_EQ(parameter_count(import(file(transposed)).graph), 30);
}

TEST(Restore, WhatIsOnlyComparedOrTurnedIntoWavesIsABuffer) {
  const Model model = import(proto::model(
      input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
      counting("attention.bias", {2, 3}) + counting("rates", {3}) +
      constant("zero", tensor("", {}, {0})) + constant("places", tensor("", {2, 1}, {0, 1})) +
      node("MatMul", {"x", "w"}, {"a"}) + node("Equal", {"attention.bias", "zero"}, {"hidden"}) +
      node("Where", {"hidden", "zero", "a"}, {"b"}) + node("Mul", {"places", "rates"}, {"angles"}) +
      node("Cos", {"angles"}, {"cos"}) + node("Mul", {"b", "cos"}, {"y"})));
  EXPECT_THAT(weight_names(model.graph), ElementsAre("w"));
  EXPECT_TRUE(has_note(model, "attention.bias (no gradient reaches it); rates (frequencies"));
}

}  // namespace
}  // namespace windlass

// What operators compute, on known values, which the importer evaluates at once.

#include <cmath>

#include "windlass/model/onnx/import_testing.h"

namespace windlass {
namespace {

using namespace proto;
using testing::ElementsAre;
using testing::HasSubstr;

// Output "y" of a graph of known values.
std::vector<double> evaluated(const std::string& graph, const std::vector<Dim>& shape,
                              ElementType type = kFloat, int64_t opset = 13) {
  const Model model = import(proto::model(graph + output("y", shape, type), {.opset = opset}),
                             {.without_loss = true});
  const int32_t constant = model.graph[model.graph.outputs[0]].constant;
  EXPECT_GE(constant, 0) << "the value is not known";
  return constant < 0 ? std::vector<double>()
                      : model.graph.constants[static_cast<size_t>(constant)].values;
}

std::string floats(const std::string& name, const std::vector<int64_t>& shape,
                   const std::vector<float>& values) {
  return constant(name, tensor("", shape, values));
}
std::string ints(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& values) {
  return constant(name, int_tensor("", shape, values));
}

TEST(OnnxRules, TheLastOfEqualExtremes) {
  const std::string x = floats("x", {1, 4}, {3, 5, 5, 1});
  const std::string along = attribute("axis", 1);
  EXPECT_THAT(evaluated(x + node("ArgMax", {"x"}, {"y"}, {.attributes = along}), {1, 1}, kInt64),
              ElementsAre(1));
  EXPECT_THAT(evaluated(x + node("ArgMax", {"x"}, {"y"},
                                 {.attributes = along + attribute("select_last_index", 1)}),
                        {1, 1}, kInt64),
              ElementsAre(2));
}

TEST(OnnxRules, RemaindersHaveTheSignOfOneOrTheOther) {
  const std::string operands = ints("a", {2}, {-4, 7}) + ints("b", {2}, {3, -3});
  EXPECT_THAT(evaluated(operands + node("Mod", {"a", "b"}, {"y"}), {2}, kInt64),
              ElementsAre(2, -2));
  EXPECT_THAT(
      evaluated(operands + node("Mod", {"a", "b"}, {"y"}, {.attributes = attribute("fmod", 1)}),
                {2}, kInt64),
      ElementsAre(-1, 1));
}

// y_o = sum over i, j of a_i w_oij b_j, with a = (1, 2), b = (3, 1), w_0 = (1, 0; 0, 1), w_1 = (0,
// 1; 1, 1): 1 3 + 2 1 = 5 and 1 1 + 2 3 + 2 1 = 9.
TEST(OnnxRules, EinsumOfThreeOperands) {
  const std::string operands = floats("a", {2}, {1, 2}) + floats("b", {2}, {3, 1}) +
                               floats("w", {2, 2, 2}, {1, 0, 0, 1, 0, 1, 1, 1});
  const auto computed = [&](const std::string& equation, const std::vector<Dim>& shape) {
    return evaluated(operands + node("Einsum", {"a", "w", "b"}, {"y"},
                                     {.attributes = text_attribute("equation", equation)}),
                     shape);
  };
  EXPECT_THAT(computed("i,oij,j->o", {2}), ElementsAre(5, 9));
  EXPECT_THAT(computed("i,oij,j->", {}), ElementsAre(14));
  EXPECT_THAT(computed("k,oij,j->ko", {2, 2}), ElementsAre(4, 5, 8, 10));
}

TEST(OnnxRules, OneHotCodesCountFromTheEnd) {
  EXPECT_THAT(
      evaluated(ints("i", {2}, {-1, 0}) + ints("depth", {}, {3}) + floats("values", {2}, {0, 1}) +
                    node("OneHot", {"i", "depth", "values"}, {"y"}),
                {2, 3}),
      ElementsAre(0, 0, 1, 1, 0, 0));
}

// Four places become two. Half-pixel places are 0.5 and 2.5: ties, which ONNX rounds down unless
// told otherwise.
TEST(OnnxRules, NearestPlacesAreThoseOfTheMode) {
  const std::string x = floats("x", {1, 1, 4}, {1, 2, 3, 4}) + ints("size", {3}, {1, 1, 2});
  EXPECT_THAT(evaluated(x + node("Resize", {"x", "", "", "size"}, {"y"}), {1, 1, 2}),
              ElementsAre(1, 3));
}

// Scale 0.6 of four places gives two, 1 / 0.6 apart: places 0.333 and 2.
TEST(OnnxRules, ScalesMeanWhatTheySay) {
  const auto y =
      evaluated(floats("x", {1, 1, 4}, {1, 2, 3, 4}) + floats("scales", {3}, {1, 1, 0.6F}) +
                    node("Resize", {"x", "", "scales"}, {"y"},
                         {.attributes = text_attribute("mode", "linear")}),
                {1, 1, 2});
  ASSERT_EQ(y.size(), 2u);
  EXPECT_NEAR(y[0], 1 + 1.0 / 3, 1e-6);
  EXPECT_NEAR(y[1], 3, 1e-6);
}

TEST(OnnxRules, OldOperandsAreAlignedByAnAxis) {
  const std::string operands = floats("a", {2, 2}, {1, 2, 3, 4}) + floats("b", {2}, {10, 20});
  EXPECT_THAT(
      evaluated(operands + node("Add", {"a", "b"}, {"y"},
                                {.attributes = attribute("broadcast", 1) + attribute("axis", 0)}),
                {2, 2}, kFloat, 6),
      ElementsAre(11, 12, 23, 24));
  EXPECT_THAT(import_error(proto::model(
                  operands + output("y", {2, 2}) + node("Add", {"a", "b"}, {"y"}), {.opset = 6})),
              HasSubstr("differ"));
}

TEST(OnnxRules, SumsFromTheOtherEndAndWithoutTheElement) {
  const std::string x = floats("x", {3}, {1, 2, 4}) + ints("axis", {}, {0});
  EXPECT_THAT(
      evaluated(x + node("CumSum", {"x", "axis"}, {"y"},
                         {.attributes = attribute("reverse", 1) + attribute("exclusive", 1)}),
                {3}),
      ElementsAre(6, 4, 0));
}

TEST(OnnxRules, ElementsByIndex) {
  const std::string x = floats("x", {1, 3}, {1, 5, 3}) + ints("k", {1}, {2});
  EXPECT_THAT(evaluated(x + node("TopK", {"x", "k"}, {"v", "y"}), {1, 2}, kInt64),
              ElementsAre(1, 2));
  EXPECT_THAT(
      evaluated(x + node("TopK", {"x", "k"}, {"v", "i"}) +
                    node("GatherElements", {"x", "i"}, {"y"}, {.attributes = attribute("axis", 1)}),
                {1, 2}),
      ElementsAre(5, 3));
}

// Below opset 16 there is no sum, and PyTorch's scatter_add loses values that meet.
TEST(OnnxRules, ScatteringWithoutASumIsNoted) {
  const auto scattered = [](int64_t opset) {
    return import(proto::model(
        input("x", {2, 3}) + input("i", {2, 3}, kInt64) + output("y", {2, 3}) +
            counting("w", {3, 3}) + node("MatMul", {"x", "w"}, {"h"}) +
            node("ScatterElements", {"h", "i", "h"}, {"y"}, {.attributes = attribute("axis", 1)}),
        {.opset = opset}));
  };
  EXPECT_TRUE(has_note(scattered(13), "export with opset 16 or later"));
  EXPECT_FALSE(has_note(scattered(16), "export with opset 16 or later"));
}

// As PyTorch writes index_add: zeros that are scattered into, and added.
TEST(OnnxRules, ScatteringIntoZerosThatAreAddedAdds) {
  const auto adds = [](const std::string& indices, const std::string& last,
                       const std::string& producer = "pytorch") {
    const Model model =
        import(proto::model(input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
                                indices + node("MatMul", {"x", "w"}, {"h"}) +
                                constant("zeros", tensor("", {2, 3}, {0, 0, 0, 0, 0, 0})) +
                                node("ScatterElements", {"zeros", "i", "h"}, {"s"},
                                     {.attributes = attribute("axis", 1)}) +
                                node(last, {"h", "s"}, {"y"}),
                            {.opset = 16, .producer = producer}));
    for (const Op& op : model.graph.ops)
      if (op.kind == OpKind::ScatterElements) return std::get<ScatterAttrs>(op.attrs).add;
    return false;
  };
  const std::string given = input("i", {2, 3}, kInt64);
  EXPECT_TRUE(adds(given, "Add"));
  EXPECT_FALSE(adds(given, "Mul"));
  EXPECT_FALSE(adds(given, "Add", "other"));
  // Known places: those that meet, and those that do not.
  EXPECT_TRUE(adds(ints("i", {2, 3}, {0, 0, 2, 1, 1, 1}), "Add"));
  EXPECT_FALSE(adds(ints("i", {2, 3}, {0, 1, 2, 2, 1, 0}), "Add"));
}

// Labels 1 and 0 with weights 2 and 1: (2 * 3 + 1 * 1) / 3 if x are negative logarithms.
TEST(OnnxRules, LossesWithClassWeights) {
  const auto y = evaluated(floats("x", {2, 2}, {-1, -3, -1, -2}) + ints("t", {2}, {1, 0}) +
                               floats("w", {2}, {1, 2}) +
                               node("NegativeLogLikelihoodLoss", {"x", "t", "w"}, {"y"}),
                           {});
  ASSERT_EQ(y.size(), 1u);
  EXPECT_NEAR(y[0], 7.0 / 3, 1e-12);
}

TEST(OnnxRules, DropoutMustBeKnownToBeOnOrOff) {
  EXPECT_THAT(
      import_error(proto::model(input("x", {2}) + input("on", {}, kBool) + output("y", {2}) +
                                floats("p", {}, {0.5}) + node("Dropout", {"x", "p", "on"}, {"y"})),
                   ErrorKind::Unsupported),
      HasSubstr("whether dropout is on depends on the data"));
}

TEST(OnnxRules, APlainRecurrentLayerIsUnrolled) {
  const Model model = import(proto::model(
      input("x", {3, 2, 4}) + output("y", {3, 1, 2, 5}) + counting("w", {1, 5, 4}) +
      counting("r", {1, 5, 5}) + counting("b", {1, 10}) +
      node("RNN", {"x", "w", "r", "b"}, {"y"}, {.attributes = attribute("hidden_size", 5)})));
  // Step 1 has no state yet.
  EXPECT_EQ(count_ops(model.graph, OpKind::MatMul) + count_ops(model.graph, OpKind::Linear), 3);
  EXPECT_EQ(count_ops(model.graph, OpKind::Unary), 3);
}

// x [2, 3, 4] through two batch normalisations, each for training or for inference.
std::string two_norms(bool first, bool second, float momentum = 0.9F,
                      const std::string& mean = ".running_mean") {
  std::string graph = input("x", {2, 3, 4}) + output("y", {2, 3, 4});
  const auto norm = [&](const std::string& of, const std::string& name, const std::string& to,
                        bool training) {
    std::vector<std::string> operands = {of};
    for (const std::string& part :
         {std::string(".weight"), std::string(".bias"), mean, std::string(".running_var")}) {
      graph += initializer(name + part, {3}, {1, 2, 3});
      operands.push_back(name + part);
    }
    graph += node("BatchNormalization", operands,
                  training ? std::vector<std::string>{to, to + "_m", to + "_v"}
                           : std::vector<std::string>{to},
                  {.attributes = attribute("training_mode", training ? 1 : 0) +
                                 float_attribute("momentum", momentum)});
  };
  norm("x", "a", "h", first);
  norm("h", "b", "y", second);
  return proto::model(graph, {.opset = 15});
}

// Fine-tuning with frozen statistics: some for inference beside others for training.
TEST(OnnxRules, BatchNormsThatAreFrozenBesideOthersStaySo) {
  const auto modes = [](const Model& model) {
    std::vector<bool> found;
    for (const Op& op : model.graph.ops)
      if (op.kind == OpKind::BatchNorm)
        found.push_back(std::get<BatchNormAttrs>(op.attrs).training);
    return found;
  };
  EXPECT_EQ(modes(import(two_norms(false, true))), (std::vector<bool>{false, true}));
  EXPECT_TRUE(has_note(import(two_norms(false, true)), "use their stored statistics"));
  // Without statistics of its own, one is for training in every mode.
  EXPECT_EQ(modes(import(two_norms(false, true, 0.9F, ".zeros"))), (std::vector<bool>{true, true}));
  EXPECT_EQ(modes(import(two_norms(false, false))), (std::vector<bool>{true, true}));
  EXPECT_TRUE(has_note(import(two_norms(false, false)), "exported for inference"));
}

TEST(OnnxRules, WhatPyTorchsExporterLosesIsNoted) {
  EXPECT_TRUE(has_note(import(two_norms(true, true, 0)), "PyTorch averages over all"));
  EXPECT_FALSE(has_note(import(two_norms(true, true)), "PyTorch averages over all"));
  const auto sloped = [](float slope) {
    return proto::model(
        input("x", {2, 3}) + output("y", {2, 3}) + counting("w", {3, 3}) +
        node("MatMul", {"x", "w"}, {"h"}) +
        node("LeakyRelu", {"h"}, {"y"}, {.attributes = float_attribute("alpha", slope)}));
  };
  EXPECT_TRUE(has_note(import(sloped(0.22916667F)), "PyTorch's RReLU"));
  EXPECT_FALSE(has_note(import(sloped(0.2F)), "PyTorch's RReLU"));
}

}  // namespace
}  // namespace windlass

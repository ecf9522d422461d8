// Which stored tensors are trained.

#include "windlass/model/onnx/parameters.h"

#include <cmath>
#include <limits>

#include "windlass/model/onnx/stored_testing.h"
#include "windlass/model/onnx/value_tables.h"

namespace windlass {
namespace {

using namespace proto;
using namespace stored;
using testing::ElementsAre;

TEST(Parameters, WavesAreNotTrained) {
  for (const bool cosine : {false, true}) {
    const std::string file = combined("Mul", "rope.table", {kPlaces, kWidth}, waves(cosine));
    EXPECT_THAT(trained(file), ElementsAre("w"));
    EXPECT_TRUE(has_note(import(file), "rope.table (sines and cosines of positions)"));
    EXPECT_THAT(trained(file, {.train = {"rope.*"}}), ElementsAre("rope.table", "w"));
  }
  EXPECT_THAT(trained(combined("Add", "pe.pe", {1, kPlaces, kWidth}, waves(false, 0.1))),
              ElementsAre("w"));
}

TEST(Parameters, MasksAreNotTrained) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0, -1e9F, 0, 0, -1e9F, 0};
  std::vector<float> additive, ones, infinite;
  for (int64_t p = 0; p < kPlaces; ++p)
    for (float value : values) {
      additive.push_back(value);
      ones.push_back(value == 0 ? 1.0F : 0.0F);
      infinite.push_back(value == 0 ? 0.5F : -inf);
    }
  const std::vector<int64_t> shape = {kPlaces, kWidth};
  EXPECT_TRUE(
      has_note(import(combined("Add", "a.mask", shape, additive)), "a.mask (an additive mask)"));
  EXPECT_TRUE(has_note(import(combined("Mul", "a.keep", shape, ones)),
                       "a.keep (a mask of zeros and ones)"));
  EXPECT_TRUE(has_note(import(combined("Add", "a.bias", shape, infinite)), "a.bias (infinities)"));
  EXPECT_TRUE(has_note(import(combined("Add", "a.vector", {kWidth}, {0, 0, 0, -inf, 0, 0})),
                       "a.vector (infinities)"));
}

// Of a mask an exporter may leave the exponential to the graph; of weights too.
TEST(Parameters, InfinitiesAreNotTrainedThroughAFunction) {
  const auto with_exponential = [](const std::vector<float>& values) {
    return proto::model(input("x", {2, kWidth}) + output("y", {2, kWidth}) +
                        initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                        initializer("scale", {kWidth}, values) + node("MatMul", {"x", "w"}, {"h"}) +
                        node("Exp", {"scale"}, {"e"}) + node("Mul", {"h", "e"}, {"y"}));
  };
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(trained(with_exponential({0, 0, -inf, 0, 0, 0})), ElementsAre("w"));
  EXPECT_THAT(trained(with_exponential({0, 0, -5, 0, 0, 0})), ElementsAre("scale", "w"));
}

TEST(Parameters, DistancesAreNotTrained) {
  std::vector<float> values;
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 6; ++j) values.push_back(0.25F * static_cast<float>(j - i));
  const std::string file =
      proto::model(input("x", {6, 6}) + output("y", {6, 6}) + initializer("w", {6, 6}, noise(36)) +
                   initializer("slopes", {6, 6}, values) + node("MatMul", {"x", "w"}, {"h"}) +
                   node("Add", {"h", "slopes"}, {"y"}));
  EXPECT_THAT(trained(file), ElementsAre("w"));
}

TEST(Parameters, ConstantsThatWereMovedOutAreNotTrained) {
  for (const auto& name : {"/block/Constant_3_output_0", "_Constant_5_output_0"})
    EXPECT_THAT(trained(combined("Mul", name, {kWidth}, noise(kWidth))), ElementsAre("w")) << name;
  for (const auto& name : {"onnx::Mul_12", "gamma", "/block/Unsqueeze_output_0", "Constant.scale"})
    EXPECT_EQ(trained(combined("Mul", name, {kWidth}, noise(kWidth))).size(), 2u) << name;
}

TEST(Parameters, GridsAreNotTrained) {
  std::vector<float> grid, repeated;  // x and y of 6 by 6 places; the same row twelve times
  for (int i = 0; i < 6; ++i)
    for (int j = 0; j < 6; ++j) {
      grid.push_back(static_cast<float>(j));
      grid.push_back(static_cast<float>(i));
      repeated.push_back(static_cast<float>(j));
      repeated.push_back(static_cast<float>(j));
    }
  EXPECT_TRUE(is_grid({1, 6, 6, 2}, std::vector<double>(grid.begin(), grid.end())));
  EXPECT_FALSE(is_grid({6, 6, 2}, std::vector<double>(repeated.begin(), repeated.end())));
  const std::string file =
      proto::model(input("x", {3, 6, 6, 2}) + output("y", {3, 6, 6, 2}) +
                   initializer("w", {2, 2}, noise(4)) + initializer("grid", {6, 6, 2}, grid) +
                   node("MatMul", {"x", "w"}, {"h"}) + node("Add", {"h", "grid"}, {"y"}));
  EXPECT_THAT(trained(file), ElementsAre("w"));
}

TEST(Parameters, OneFilterForAllChannelsIsNotTrained) {
  const auto filtered = [](const std::vector<float>& filter, bool alike) {
    std::vector<float> values;
    for (int channel = 0; channel < 3; ++channel)
      for (float v : filter) values.push_back(alike ? v : v + static_cast<float>(channel));
    return proto::model(
        input("x", {2, 3, 5}) + output("y", {2, 3, 3}) + initializer("w", {3, 1, 1}, noise(3)) +
        initializer("filter", {3, 1, 3}, values) +
        node("Conv", {"x", "w"}, {"h"}, {.attributes = attribute("group", 3)}) +
        node("Conv", {"h", "filter"}, {"y"}, {.attributes = attribute("group", 3)}));
  };
  EXPECT_THAT(trained(filtered({0.25F, 0.5F, -1}, true)), ElementsAre("w"));
  EXPECT_EQ(trained(filtered({0.25F, 0.5F, -1}, false)).size(), 2u);
  EXPECT_EQ(trained(filtered({0, 1, 0}, true)).size(), 2u);
}

TEST(Parameters, VectorsOfSpectralNormAreNotTrained) {
  for (const auto& [weight, vector] :
       {std::pair("a.weight_orig", "a.weight_u"),
        {"a.parametrizations.weight.original", "a.parametrizations.weight.0._v"}}) {
    const std::string file =
        proto::model(input("x", {2, kWidth}) + output("y", {2, 1}) +
                     initializer(weight, {kWidth, kWidth}, noise(kWidth * kWidth)) +
                     initializer(vector, {kWidth, 1}, noise(kWidth)) +
                     node("MatMul", {"x", weight}, {"h"}) + node("MatMul", {"h", vector}, {"y"}));
    EXPECT_THAT(trained(file), ElementsAre(weight));
    EXPECT_EQ(trained(file, {.train = {vector}}).size(), 2u);
  }
  EXPECT_EQ(trained(combined("Mul", "w_u", {kWidth}, noise(kWidth))).size(), 2u);
}

TEST(Parameters, WrittenOutBatchNormsAreFrozen) {
  const auto with_statistics = [](const std::string& variance) {
    return proto::model(
        input("x", {2, kWidth}) + output("y", {2, kWidth}) +
        initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
        initializer("bn.weight", {kWidth}, noise(kWidth)) +
        initializer("bn.bias", {kWidth}, noise(kWidth)) +
        initializer("bn.running_mean", {kWidth}, noise(kWidth)) +
        initializer(variance, {kWidth}, std::vector<float>(kWidth, 2)) +
        node("MatMul", {"x", "w"}, {"h"}) + node("Sub", {"h", "bn.running_mean"}, {"c"}) +
        node("Div", {"c", variance}, {"d"}) + node("Mul", {"d", "bn.weight"}, {"e"}) +
        node("Add", {"e", "bn.bias"}, {"y"}));
  };
  EXPECT_THAT(trained(with_statistics("bn.running_var")), ElementsAre("w"));
  EXPECT_EQ(trained(with_statistics("other.running_var")).size(), 3u);
}

TEST(Parameters, WavesWithALayerOfTheirOwnAreNotTrained) {
  const std::string file =
      proto::model(input("x", {2, kPlaces, kWidth}) + output("y", {2, kPlaces, kWidth}) +
                   initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                   initializer("pe", {kPlaces, kWidth}, waves(true)) +
                   node("MatMul", {"pe", "w"}, {"p"}) + node("Mul", {"x", "p"}, {"y"}));
  EXPECT_THAT(trained(file), ElementsAre("w"));
  // A layer that the data are multiplied with may begin as waves.
  EXPECT_EQ(trained(proto::model(input("x", {2, kPlaces}) + output("y", {2, kWidth}) +
                                 initializer("dft.weight", {kPlaces, kWidth}, waves(true)) +
                                 node("MatMul", {"x", "dft.weight"}, {"y"})))
                .size(),
            1u);
}

TEST(Parameters, MeanAndDeviationOfDataAreNotTrained) {
  const auto standardised = [](const std::string& mean, const std::string& data) {
    return proto::model(input("x", {2, kWidth}) + output("y", {2, kWidth}) +
                        initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                        initializer(mean, {kWidth}, noise(kWidth)) +
                        initializer("std", {kWidth}, noise(kWidth)) +
                        node("MatMul", {"x", "w"}, {"h"}) + node("Sub", {data, mean}, {"c"}) +
                        node("Div", {"c", "std"}, {"d"}) + node("Add", {"d", "h"}, {"y"}));
  };
  EXPECT_THAT(trained(standardised("norm.pixel_mean", "x")), ElementsAre("w"));
  EXPECT_EQ(trained(standardised("shift", "x")).size(), 3u);
  EXPECT_EQ(trained(standardised("mean", "h")).size(), 3u);
}

TEST(Parameters, MeanAndDeviationOfBytesAreNotTrained) {
  // Channels come last in files of images.
  const std::string file = proto::model(
      input("x", {2, 4, 3}, kInt64) + output("y", {2, 3, 4}) + initializer("w", {3, 4}, noise(12)) +
      initializer("mean", {3, 1}, noise(3)) + initializer("std", {3, 1}, noise(3)) +
      constant("most", tensor("", {}, {255})) +
      node("Transpose", {"x"}, {"t"}, {.attributes = ints_attribute("perm", {0, 2, 1})}) +
      node("Cast", {"t"}, {"f"}, {.attributes = attribute("to", 1)}) +
      node("Div", {"f", "most"}, {"u"}) + node("Sub", {"u", "mean"}, {"c"}) +
      node("Div", {"c", "std"}, {"d"}) + node("Mul", {"d", "w"}, {"y"}));
  EXPECT_THAT(trained(file), ElementsAre("w"));
}

TEST(Parameters, RowsOfZerosAndOnesAreMasksByName) {
  std::vector<float> half(kWidth);
  for (size_t i = 0; i < half.size(); i += 2) half[i] = 1;
  EXPECT_THAT(trained(combined("Mul", "coupling.mask", {kWidth}, half)), ElementsAre("w"));
  EXPECT_EQ(trained(combined("Mul", "coupling.gate", {kWidth}, half)).size(), 2u);
  EXPECT_EQ(trained(combined("Mul", "mask", {kWidth}, noise(kWidth))).size(), 2u);
}

TEST(Parameters, WhatMightBeABufferIsNoted) {
  const std::string note = "though perhaps buffers";
  const auto file = [](const std::string& name) {
    return combined("Mul", name, {kWidth}, noise(kWidth));
  };
  EXPECT_TRUE(has_note(import(file("head.corners")), note + ": head"));
  EXPECT_FALSE(has_note(import(file("head.scale")), note));
  EXPECT_TRUE(has_note(import(file("head.weight_of_noise")), note));
  EXPECT_FALSE(has_note(import(file("head.corners"), {.freeze = {"*corners"}}), note));
  EXPECT_FALSE(has_note(import(file("head.corners"), {.train = {"*corners"}}), note));
  const auto product = [](const std::string& name) {
    return combined("MatMul", name, {kWidth, kWidth}, noise(kWidth * kWidth));
  };
  EXPECT_TRUE(has_note(import(product("head.corners")), note));
  for (const auto& name : {"head.weight", "head.w2", "W_q", "lstm.weight_ih_l0_reverse", "w.3"})
    EXPECT_FALSE(has_note(import(product(name)), note)) << name;
  EXPECT_TRUE(has_note(import(combined("Mul", "head.scale", {1}, {0.5F})), note));
  EXPECT_FALSE(has_note(import(combined("Mul", "slope.weight", {1}, {0.5F})), note));
}

TEST(Parameters, WhatTheExporterComputedIsNoted) {
  const std::string note = "computed by the exporter";
  const std::string file = combined("Mul", "onnx::Mul_12", {kWidth}, noise(kWidth));
  EXPECT_TRUE(has_note(import(file), note));
  EXPECT_FALSE(has_note(import(file, {.freeze = {"onnx::*"}}), note));
  EXPECT_FALSE(has_note(
      import(combined("MatMul", "onnx::MatMul_9", {kWidth, kWidth}, noise(kWidth * kWidth))),
      note));
}

TEST(Parameters, WhatHasNoElementsIsNotTrained) {
  const std::string file = proto::model(
      input("x", {2, kWidth}) + output("y", {2, kWidth}) +
      initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
      initializer("prompt.weight", {0, kWidth}, {}) + node("MatMul", {"x", "w"}, {"h"}) +
      node("Concat", {"h", "prompt.weight"}, {"y"}, {.attributes = attribute("axis", 0)}));
  EXPECT_THAT(trained(file), ElementsAre("w"));
}

// What weights look like at the beginning, or after training, stays.
TEST(Parameters, WeightsStay) {
  const size_t count = static_cast<size_t>(kPlaces * kWidth);
  std::vector<float> ramp(count), one(count, 1.0F), zero(count, 0.0F);
  for (size_t i = 0; i < count; ++i) ramp[i] = static_cast<float>(i % 6);
  for (const auto& values : {noise(count), noise(count, 1e-6), ramp, one, zero})
    EXPECT_EQ(trained(combined("Add", "position.embedding", {kPlaces, kWidth}, values)).size(), 2u);
  // A matrix that is multiplied with, whatever it holds.
  std::vector<float> identity(static_cast<size_t>(kWidth * kWidth));
  for (size_t i = 0; i < identity.size(); i += static_cast<size_t>(kWidth) + 1) identity[i] = 1;
  EXPECT_EQ(trained(combined("MatMul", "eye", {kWidth, kWidth}, identity)).size(), 2u);
}

TEST(Parameters, NamesOfBuffers) {
  const std::string file =
      combined("Mul", "rope.cos", {kPlaces, kWidth}, noise(static_cast<size_t>(kPlaces * kWidth)));
  EXPECT_THAT(trained(file), ElementsAre("w"));
  EXPECT_TRUE(has_note(import(file), "rope.cos (by its name)"));
  EXPECT_EQ(trained(file, {.train = {"rope.cos"}}).size(), 2u);
}

}  // namespace
}  // namespace windlass

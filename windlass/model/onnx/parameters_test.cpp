// Which stored tensors are trained.

#include "windlass/model/onnx/parameters.h"

#include <cmath>
#include <limits>
#include <random>

#include "windlass/model/onnx/import_testing.h"
#include "windlass/model/onnx/value_tables.h"

namespace windlass {
namespace {

using namespace proto;
using testing::ElementsAre;

constexpr int64_t kPlaces = 12, kWidth = 6;

// cos or sin of place * 100^(-column / width), as rotary embeddings have it.
std::vector<float> waves(bool cosine, double amplitude = 1) {
  std::vector<float> values;
  for (int64_t p = 0; p < kPlaces; ++p)
    for (int64_t i = 0; i < kWidth; ++i) {
      const double angle = static_cast<double>(p) *
                           std::pow(100.0, -static_cast<double>(i) / static_cast<double>(kWidth));
      values.push_back(
          static_cast<float>(amplitude * (cosine ? std::cos(angle) : std::sin(angle))));
    }
  return values;
}

std::vector<float> noise(size_t count, double scale = 1) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

// x [2, 12, 6] W, then `op` with a stored tensor of `shape`.
std::string combined(const std::string& op, const std::string& name,
                     const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return proto::model(input("x", {2, kPlaces, kWidth}) + output("y", {2, kPlaces, kWidth}) +
                      initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                      initializer(name, shape, values) + node("MatMul", {"x", "w"}, {"h"}) +
                      node(op, {"h", name}, {"y"}));
}

std::vector<std::string> trained(const std::string& file, const ModelOptions& options = {}) {
  return weight_names(import(file, options).graph);
}

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

// A factor of the data that has not the name of a parameter, and whose numbers are not those of
// chance, is none.
TEST(Parameters, FactorsOfAFormulaAreNotTrained) {
  const std::vector<int64_t> square = {kWidth, kWidth};
  const auto size = static_cast<size_t>(kWidth * kWidth);
  std::vector<float> ring(size), wavelets(size), grid(size), identity(size), rows(size);
  for (size_t i = 0; i < 6; ++i)
    for (size_t j = 0; j < 6; ++j) {
      ring[6 * i + j] = j == (i + 1) % 6 || i == (j + 1) % 6 ? 0.5F : 0.0F;
      wavelets[6 * i + j] = (i * j + j / 2) % 2 == 0 ? 0.25F : -0.25F;
      grid[6 * i + j] = static_cast<float>(i) - 0.5F * static_cast<float>(j);
      identity[6 * i + j] = i == j ? 1.0F : 0.0F;
      rows[6 * i + j] = static_cast<float>(j * j);
    }
  for (const auto& values : {ring, wavelets, grid}) {
    EXPECT_THAT(trained(combined("MatMul", "a.table", square, values)), ElementsAre("w"));
    EXPECT_TRUE(
        has_note(import(combined("MatMul", "a.table", square, values)), "a.table (values of a"));
    EXPECT_EQ(trained(combined("MatMul", "a.weight", square, values)).size(), 2u);
    EXPECT_EQ(trained(combined("MatMul", "a.table", square, values), {.train = {"a.*"}}).size(),
              2u);
  }
  for (const auto& values : {noise(size), identity, rows, std::vector<float>(size, 0.5F)})
    EXPECT_EQ(trained(combined("MatMul", "a.table", square, values)).size(), 2u);
}

TEST(Parameters, FixedFiltersAreNotTrained) {
  const auto filtered = [](const std::string& name, const std::vector<float>& values) {
    return proto::model(input("x", {2, 1, 5, 5}) + output("y", {2, 2, 3, 3}) +
                        initializer("w", {1, 1, 1, 1}, {0.7F}) +
                        initializer(name, {2, 1, 3, 3}, values) + node("Conv", {"x", "w"}, {"h"}) +
                        node("Conv", {"h", name}, {"y"}));
  };
  const std::vector<float> sobel = {-1, 0, 1, -2, 0, 2, -1, 0, 1, -1, -2, -1, 0, 0, 0, 1, 2, 1};
  EXPECT_THAT(trained(filtered("edges.sobel", sobel)), ElementsAre("w"));
  EXPECT_EQ(trained(filtered("edges.weight", sobel)).size(), 2u);
  EXPECT_EQ(trained(filtered("edges.sobel", noise(18))).size(), 2u);
}

TEST(Parameters, CoordinatesThatAreJoinedToTheDataAreNotTrained) {
  std::vector<float> grid;
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 5; ++j)
      grid.push_back(static_cast<float>(j) - 0.25F * static_cast<float>(i));
  const auto joined = [](const std::vector<float>& values) {
    return proto::model(
        input("x", {1, 1, 4, 5}) + output("y", {1, 3, 4, 5}) +
        initializer("w", {3, 2, 1, 1}, noise(6)) +
        initializer("coordinates", {1, 1, 4, 5}, values) +
        node("Concat", {"x", "coordinates"}, {"h"}, {.attributes = attribute("axis", 1)}) +
        node("Conv", {"h", "w"}, {"y"}));
  };
  EXPECT_THAT(trained(joined(grid)), ElementsAre("w"));
  EXPECT_EQ(trained(joined(noise(20))).size(), 2u);
}

TEST(Parameters, SchedulesThatAreLookedUpAreNotTrained) {
  const auto scaled = [](const std::string& name, const std::vector<float>& values) {
    return proto::model(input("x", {4, kWidth}) + input("t", {4, 1}, kInt64) +
                        output("y", {4, kWidth}) +
                        initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                        initializer(name, {kPlaces}, values) + node("MatMul", {"x", "w"}, {"h"}) +
                        node("Gather", {name, "t"}, {"s"}) + node("Mul", {"h", "s"}, {"y"}));
  };
  std::vector<float> falling;
  for (int i = 0; i < kPlaces; ++i) falling.push_back(static_cast<float>(std::exp(-0.1 * i * i)));
  const std::string file = scaled("sqrt_alphas_cumprod", falling);
  EXPECT_THAT(trained(file), ElementsAre("w"));
  EXPECT_TRUE(has_note(import(file), "sqrt_alphas_cumprod (a schedule)"));
  EXPECT_EQ(trained(scaled("sqrt_alphas_cumprod", noise(kPlaces))).size(), 2u);
}

TEST(Parameters, RandomFrequenciesOfDataAreNotTrained) {
  const auto features = [](const std::string& name, const std::string& second) {
    return proto::model(input("x", {2, 3}) + output("y", {2, 4}) +
                        initializer("w", {8, 4}, noise(32)) + initializer(name, {3, 4}, noise(12)) +
                        node("MatMul", {"x", name}, {"p"}) + node("Sin", {"p"}, {"a"}) +
                        node(second, {"p"}, {"b"}) +
                        node("Concat", {"a", "b"}, {"h"}, {.attributes = attribute("axis", 1)}) +
                        node("MatMul", {"h", "w"}, {"y"}));
  };
  EXPECT_THAT(trained(features("fourier.B", "Cos")), ElementsAre("w"));
  EXPECT_EQ(trained(features("fourier.weight", "Cos")).size(), 2u);
  EXPECT_EQ(trained(features("fourier.B", "Tanh")).size(), 2u);
}

TEST(Parameters, WeightsOfALossAndNoiseAreNotTrained) {
  EXPECT_THAT(trained(combined("Mul", "loss.pos_weight", {kWidth}, noise(kWidth))),
              ElementsAre("w"));
  const auto noisy = [](const std::string& beside) {
    return proto::model(input("x", {2, kWidth}) + output("y", {2, kWidth}) +
                        initializer(beside, {kWidth, kWidth}, noise(kWidth * kWidth)) +
                        initializer("a.weight_epsilon", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                        node("Mul", {beside, "a.weight_epsilon"}, {"w"}) +
                        node("MatMul", {"x", "w"}, {"y"}));
  };
  EXPECT_THAT(trained(noisy("a.weight_sigma")), ElementsAre("a.weight_sigma"));
  EXPECT_EQ(trained(noisy("b.weight_sigma")).size(), 2u);
}

// PyTorch stores the parameters of a module before its buffers, and those before its parts.
TEST(Parameters, WhatFollowsABufferOfItsModuleIsNotTrained) {
  const auto file = [](const std::string& after, const std::string& producer) {
    return proto::model(
        input("x", {2, kWidth}) + output("y", {2, kWidth}) +
            initializer("a.first", {kWidth}, noise(kWidth)) +
            initializer(int_tensor("a.places", {kWidth}, {0, 1, 2, 3, 4, 5})) +
            initializer(after, {kWidth}, noise(kWidth)) + node("Mul", {"x", "a.first"}, {"h"}) +
            node("Gather", {"h", "a.places"}, {"g"}, {.attributes = attribute("axis", 1)}) +
            node("Mul", {"g", after}, {"y"}),
        {.producer = producer});
  };
  EXPECT_THAT(trained(file("a.second", "pytorch")), ElementsAre("a.first"));
  EXPECT_TRUE(has_note(import(file("a.second", "pytorch")), "a.second (stored after buffers"));
  EXPECT_EQ(trained(file("a.part.second", "pytorch")).size(), 2u);
  EXPECT_EQ(trained(file("a.second", "another")).size(), 2u);
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
  const std::string note = "they might be buffers";
  const auto file = [](const std::string& name) {
    return combined("Mul", name, {kWidth}, noise(kWidth));
  };
  EXPECT_TRUE(has_note(import(file("head.corners")), note + ", which the file does not say: head"));
  EXPECT_FALSE(has_note(import(file("head.scale")), note));
  EXPECT_TRUE(has_note(import(file("head.weight_of_noise")), note));
  EXPECT_FALSE(has_note(import(file("head.corners"), {.freeze = {"*corners"}}), note));
  EXPECT_FALSE(has_note(import(file("head.corners"), {.train = {"*corners"}}), note));
  const auto product = [](const std::string& name) {
    return combined("MatMul", name, {kWidth, kWidth}, noise(kWidth * kWidth));
  };
  EXPECT_TRUE(has_note(import(product("head.corners")), note));
  for (const auto& name : {"head.weight", "head.w2", "W_q", "lstm.weight_ih_l0_reverse"})
    EXPECT_FALSE(has_note(import(product(name)), note)) << name;
  EXPECT_TRUE(has_note(import(combined("Mul", "head.scale", {1}, {0.5F})), note));
  EXPECT_FALSE(has_note(import(combined("Mul", "slope.weight", {1}, {0.5F})), note));
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

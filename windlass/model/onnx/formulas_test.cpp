// Which stored tensors are trained that go into products and convolutions, or are looked up.

#include <cmath>

#include "windlass/model/onnx/stored_testing.h"

namespace windlass {
namespace {

using namespace proto;
using namespace stored;
using testing::ElementsAre;

// A factor of the data that has not the name of a parameter, and whose numbers are not those of
// chance, is none.
TEST(Formulas, FactorsOfAFormulaAreNotTrained) {
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

TEST(Formulas, FixedFiltersAreNotTrained) {
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

TEST(Formulas, CoordinatesThatAreJoinedToTheDataAreNotTrained) {
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

TEST(Formulas, SchedulesThatAreLookedUpAreNotTrained) {
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

TEST(Formulas, RandomFrequenciesOfDataAreNotTrained) {
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

TEST(Formulas, WeightsOfALossAndNoiseAreNotTrained) {
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
TEST(Formulas, WhatFollowsABufferOfItsModuleIsNotTrained) {
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

// Sines and cosines of the places of a picture, row by row, behind a row of zeros for a token.
TEST(Formulas, PlacesInAPlaneAreNotTrained) {
  constexpr int kSide = 3, kRows = 10, kColumns = 8;
  std::vector<float> table(kRows * kColumns);
  for (int place = 0; place < kSide * kSide; ++place)
    for (int i = 0; i < kColumns; ++i) {
      const double speed = std::pow(100.0, -(i % 2) / 2.0);
      const double angle = speed * (i < kColumns / 2 ? place / kSide : place % kSide);
      table[static_cast<size_t>((place + 1) * kColumns + i)] =
          static_cast<float>(i % 4 < 2 ? std::sin(angle) : std::cos(angle));
    }
  const auto added = [&](const std::vector<float>& values) {
    return proto::model(input("x", {2, kRows, kColumns}) + output("y", {2, kRows, kColumns}) +
                        initializer("w", {kColumns, kColumns}, noise(kColumns * kColumns)) +
                        initializer("pos_embed", {1, kRows, kColumns}, values) +
                        node("MatMul", {"x", "w"}, {"h"}) + node("Add", {"h", "pos_embed"}, {"y"}));
  };
  EXPECT_THAT(trained(added(table)), ElementsAre("w"));
  EXPECT_EQ(trained(added(noise(table.size()))).size(), 2u);
  table[11] += 0.1F;
  EXPECT_EQ(trained(added(table)).size(), 2u);
}

}  // namespace
}  // namespace windlass

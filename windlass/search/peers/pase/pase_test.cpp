#include <fstream>
#include <iterator>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_data.h"
#include "windlass/search/exact/eliminate.h"
#include "windlass/search/peers/pase/pase_problem.h"

namespace windlass {
namespace {

// Optima of PaSE's cost function at 10 TFLOPS and 16 GB/s for 4, 8, 16, 32 and 64 devices, found
// by its released code where that ends (all of AlexNet, RNNLM and Inception-v3; Transformer and
// ResNet-101 up to 16) and by another exact solver. 0: not known.
struct Known {
  std::string_view name, file;
  double optimum[5];
};
constexpr Known kKnown[] = {
    {"alexnet", "alexnet", {148215719552, 97098296512, 70320712672, 53136349552, 41120456048}},
    {"rnnlm", "rnnlm", {6866837733376, 4024963186688, 2476066881536, 1491938058240, 935818633216}},
    {"inception-v3",
     "inception3",
     {986757044608, 782140602432, 673045949344, 602425599824, 553203648656}},
    {"transformer",
     "transformer",
     {2189181321216, 1421082828800, 1004992614400, 727566614528, 521017024512}},
    {"resnet-101", "resnet101", {1718742247936, 1425262849920, 1244493633088, 0, 881764728352}},
};

double solve(const LayerGraph& graph, int64_t devices) {
  const PaseMachine machine = {.devices = devices};
  const PaseProblem problem = make_pase_problem(graph, machine);
  check_network(problem.network);
  const EliminationResult result = minimise(problem.network);
  EXPECT_TRUE(result.optimal);
  const double cost = pase_cost(graph, machine, problem, result.choice);
  EXPECT_NEAR(cost, result.cost * problem.unit, 1);
  return cost;
}

void expect_optima(size_t first, size_t last) {
  for (const Known& known : kKnown)
    for (size_t i = first; i <= last; ++i)
      if (known.optimum[i] > 0) {
        EXPECT_EQ(solve(*pase_network(known.name), int64_t{4} << i), known.optimum[i])
            << known.name << " on " << (4 << i);
      }
}

TEST(Pase, OptimaOfItsNetworks) { expect_optima(0, 2); }
TEST(PaseSlow, OptimaOfItsNetworksOnManyDevices) { expect_optima(3, 4); }

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The released graphs, vertex by vertex, and check sums of their cost tables at 8 devices.
TEST(Pase, ReleasedGraphsAndCostTables) {
  const auto folder = test_data("pase");
  if (!folder) GTEST_SKIP() << "reference data not found; set WINDLASS_DATA";
  for (const Known& known : kKnown) {
    const std::string path = *folder + "/" + std::string(known.file);
    const LayerGraph graph = layer_graph_from_json(text_of(path + ".json"), known.file.data());
    const LayerGraph built = *pase_network(known.name);
    ASSERT_EQ(graph.layers.size(), built.layers.size()) << known.name;
    EXPECT_EQ(graph.batch, built.batch);
    EXPECT_EQ(graph.cutoff, built.cutoff);
    for (size_t v = 0; v < graph.layers.size(); ++v)
      EXPECT_EQ(graph.layers[v].space, built.layers[v].space) << known.name << " " << v;
    EXPECT_EQ(graph.edges, built.edges) << known.name;

    const PaseMachine machine = {.devices = 8};
    const PaseProblem problem = make_pase_problem(graph, machine);
    const auto costs = nlohmann::json::parse(text_of(path + "_p8_costs.json"));
    double sum = 0;
    for (size_t v = 0; v < graph.layers.size(); ++v) {
      EXPECT_EQ(problem.of(v).size(), costs["configurations"][v].get<size_t>());
      sum = 0;
      for (const Configuration& parts : problem.of(v))
        sum += layer_cost(graph.layers[v], parts, machine.flops_per_word());
      const double expected = costs["sum_of_vertex_costs_over_configurations"][v].get<double>();
      EXPECT_NEAR(sum, expected, 1e-12 * expected) << known.name << " vertex " << v;
    }
    ASSERT_EQ(problem.network.edges.size(),
              costs["sum_of_edge_costs_over_configuration_pairs"].size());
    for (size_t e = 0; e < problem.network.edges.size(); ++e) {
      const auto& row = costs["sum_of_edge_costs_over_configuration_pairs"][e];
      EXPECT_EQ(problem.network.edges[e].a, row[0].get<int32_t>());
      EXPECT_EQ(problem.network.edges[e].b, row[1].get<int32_t>());
      sum = 0;
      for (double cell : problem.network.tables[problem.network.edges[e].table]) sum += cell;
      const double expected = row[2].get<double>();
      EXPECT_NEAR(sum * problem.unit, expected, 1e-9 * expected + 1) << known.name << " edge " << e;
    }
    const EliminationResult result = minimise(problem.network);
    EXPECT_EQ(pase_cost(graph, machine, problem, result.choice), costs["optimum"].get<double>());
  }
}

// A product of 8 x 4 x 6 on two devices. Split along m: 3 (4)(4)(6) = 288 flops and the weight's
// gradient, AR(24, 2) = 10 * 2 * 1 * 24 / 2 = 240 at ten flops a word.
TEST(Pase, HandComputedProduct) {
  Layer layer = {.kind = LayerKind::FullyConnected, .space = {8, 4, 6}};
  EXPECT_EQ(layer_cost(layer, {1, 1, 1}, 10), 3.0 * 8 * 4 * 6);
  EXPECT_EQ(layer_cost(layer, {2, 1, 1}, 10), 288 + 240);
  // Along k: the result is summed, AR(32, 2) = 320.
  EXPECT_EQ(layer_cost(layer, {1, 1, 2}, 10), 288 + 320);
}

// From rows to columns of an 8 x 4 tensor on two devices: each needs 16, has 8 of them.
TEST(Pase, HandComputedTensor) {
  EXPECT_EQ(tensor_cost({8, 4}, {2, 1}, {1, 2}, 10), 2 * 10 * (16.0 - 8));
  EXPECT_EQ(tensor_cost({8, 4}, {2, 1}, {2, 1}, 10), 0);
  EXPECT_EQ(tensor_cost({8, 4}, {1, 1}, {2, 1}, 10), 2 * 10 * 16.0);
}

TEST(Pase, ConfigurationsKeepToTheRules) {
  const Layer flat = {.kind = LayerKind::Ravel, .space = {4, 6}};
  for (const Configuration& parts : configurations_of(flat, 1, 24)) {
    EXPECT_TRUE(parts[1] == 1 || parts[0] == 4);
  }
  const Layer conv = {.kind = LayerKind::Conv, .space = {8, 3, 10, 10, 3, 3, 16}};
  // b: 1, 2 (parts of at least 4); c, r, s: 1; n: 1, 2, 4. At most 4 in all.
  EXPECT_EQ(configurations_of(conv, 4, 4).size(), 5U);
}

TEST(Pase, BrokenGraphsAreRefused) {
  const auto refused = [](const std::string& text) {
    try {
      layer_graph_from_json(text, "g.json");
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto vertex = [](const std::string& space, const std::string& shape) {
    return R"({"graph":"g","batch":1,"cutoff":1,"vertices":[{"id":0,"type":"Elementwise",)"
           R"("attributes":{},"iteration_space":)" +
           space + R"(,"inputs":[],"outputs":[)" + shape + R"(]}],"edges":[]})";
  };
  EXPECT_EQ(refused(vertex("[2,3]", "[2,3]")), "");
  EXPECT_NE(refused(vertex("[2,3]", "[3,2]")).find("vertices[0]"), std::string::npos);
  EXPECT_NE(refused(vertex("[0]", "[0]")).find("whole number"), std::string::npos);
  EXPECT_NE(refused(vertex("[]", "[]")).find("iteration space"), std::string::npos);
  EXPECT_NE(refused("{").find("g.json"), std::string::npos);
  EXPECT_NE(refused("[]").find("expected an object"), std::string::npos);
}

}  // namespace
}  // namespace windlass

#include "windlass/cost/model_chain.h"

#include <numeric>

#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/search/packs/search_layers.h"

namespace windlass {
namespace {

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Two GPT-2 layers of width 64 on 4 samples of 32 tokens: a layer's input has 32 x 64 fp32 numbers.
TEST(ModelChain, CutsATransformer) {
  const Model model = load_model("gpt2:layers=2,hidden=64,sequence=32,vocab=100", {.batch = 4});
  const Machine machine = load_machine("4x1080ti");
  const auto cost = analytic_cost_model();
  const LayerProfile profile = chain_of_network(model.graph, {}, machine, *cost);
  ASSERT_GE(profile.layers(), 4u);
  EXPECT_EQ(profile.forward.sizes, (std::vector<int64_t>{1, 2, 4}));
  EXPECT_EQ(profile.input[2], 32 * 64 * 4);
  // The table of tokens is read at both ends.
  EXPECT_EQ(sum_of(profile.weights), 4 * (parameter_count(model.graph) + 100 * 64));
  EXPECT_EQ(profile.tied, 4 * 100 * 64);
  ChainTables chain(profile);
  EXPECT_EQ(host_bytes(chain, 0), 16 * parameter_count(model.graph) + sum_of(profile.buffers));
  // It is updated once.
  EXPECT_EQ(sum_of(profile.optimizer), 2 * 4 * parameter_count(model.graph));
  EXPECT_EQ(profile.optimizer.front(), 2 * profile.weights.front());
  for (size_t l = 0; l < profile.layers(); ++l) {
    EXPECT_GT(profile.forward.at_size[0].seconds[l], 0);
    EXPECT_GT(profile.backward.at_size[0].seconds[l], profile.forward.at_size[0].seconds[l]);
    EXPECT_GE(profile.forward.at_size[2].seconds[l], profile.forward.at_size[0].seconds[l]);
    EXPECT_GT(profile.backward.at_size[2].peak[l], profile.backward.at_size[0].peak[l]);
    EXPECT_GE(profile.backward.at_size[0].peak[l], 2 * profile.weights[l] + profile.input[l]);
  }
}

// 10.3 billion parameters at 16 bytes each, the table of tokens once: more than 128 GiB, less than
// 256.
TEST(ModelChainSlow, TenBillionParametersNeedTheHost) {
  const Model model = load_model("gpt2-10b", {.batch = 16});
  Machine machine = load_machine("4x1080ti");
  const auto cost = analytic_cost_model();
  const LayerProfile profile = chain_of_network(model.graph, {}, machine, *cost);
  machine.nodes[0].memory = Bytes(int64_t{128} << 30);
  const LayerSearchResult refused = search_layers(profile, machine, 16);
  EXPECT_EQ(refused.termination, Termination::Infeasible);
  ASSERT_TRUE(refused.host_needed);
  EXPECT_GE(*refused.host_needed, 16 * parameter_count(model.graph));
  machine.nodes[0].memory = Bytes(int64_t{256} << 30);
  const LayerSearchResult planned = search_layers(profile, machine, 16);
  EXPECT_EQ(planned.termination, Termination::Feasible);
  EXPECT_EQ(planned.host_bytes, *refused.host_needed);
  for (const LayerDevice& device : planned.devices)
    EXPECT_LE(device.peak_bytes, device.limit_bytes);
}

}  // namespace
}  // namespace windlass

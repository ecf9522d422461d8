// Packs of layers, lowered and priced: hand-computed steps, and random ones in the long run.

#include "windlass/search/packs/stream_pricer.h"

#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/plan/packs/long_run.h"
#include "windlass/search/packs/random_harmony.h"
#include "windlass/search/packs/stream_bounds.h"
#include "windlass/search/peers/harmony/harmony_plan.h"
#include "windlass/search/peers/harmony/volume.h"
#include "windlass/sim/timeline_check.h"

namespace windlass {
namespace {

// A device on one link of 1 GB/s in each direction, no latency to speak of.
Machine one_link(int devices) {
  std::string text = R"({"name": "test", "device_types": {"d": {"memory": "64GiB", "reserved": 0,
    "peak": {"fp32": "1TFLOPS"}, "memory_bandwidth": "1TB/s", "launch_overhead": 0}},
    "nodes": [{"host": {"memory": "64GiB", "memory_bandwidth": "1TB/s", "peak": "1TFLOPS"},
    "devices": [{"type": "d", "count": )" +
                     std::to_string(devices) + R"(}], "peer_to_peer": true, "switches": ["s"],
    "links": [{"from": "gpu*", "to": "s", "bandwidth": "1GB/s", "latency": 0},
              {"from": "s", "to": "host", "bandwidth": "1TB/s", "latency": 0}]}]})";
  return machine_from_json(text, "test");
}

// Two layers of 1 GB of weights and a loss without. Forward 3 s a layer, backward 6 s more.
LayerProfile two_large_layers() {
  LayerProfile profile;
  profile.weights = {1'000'000'000, 1'000'000'000, 0};
  profile.buffers = {0, 0, 0};
  profile.optimizer = {2'000'000'000, 2'000'000'000, 0};
  profile.input = {1000, 1000, 1000};
  profile.host_update = {0.5, 0.5, 0};
  profile.forward = {{1}, {{{3, 3, 0}, {1'000'002'000, 1'000'002'000, 2000}}}};
  profile.backward = {{1}, {{{9, 9, 0}, {2'000'003'000, 2'000'003'000, 3000}}}};
  return profile;
}

PackStrategy layer_by_layer(int32_t replicas) {
  PackStrategy strategy;
  strategy.replicas = replicas;
  strategy.forward_packs = {{0, 0}, {1, 1}};
  strategy.backward_packs = {{0, 0}, {1, 1}, {2, 2}};
  strategy.actions.assign(3, PackAction::Recompute);
  strategy.stash_on_host.assign(3, 0);
  strategy.device_update.assign(3, 0);
  strategy.keep_shares.assign(3, 0);
  strategy.piece_bytes = 1'500'000'000;
  strategy.state_bytes = 5'000'000'000;
  return strategy;
}

// One device, one sample, all weights fit: the first layer's arrive in 1 s; computing takes 3 + 3
// forward, 9 + 9 backward; the gradient of layer 0 leaves in 1 s and is updated in 0.5 s. The next
// step loads layer 1 early, but layer 0 only after its update: 26.5 s a step.
TEST(StreamPricer, HandComputedStep) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(1);
  StreamPricer pricer(chain, machine, 1, INT64_MAX);
  const StreamCost cost = pricer.price(layer_by_layer(1));
  EXPECT_NEAR(cost.seconds, 26.5, 1e-3);
  EXPECT_EQ(cost.volume.weights, 2'000'000'000);
  EXPECT_EQ(cost.volume.gradients, 2'000'000'000);
  EXPECT_EQ(cost.volume.activations, 1000);
  EXPECT_EQ(cost.host_bytes, 8'000'000'000);
}

// Two devices in a row of replicas, one forward pack: layer 1 is on its way when layer 0, which is
// updated last, arrives. Then the step waits for layer 0 alone: gradients summed (0.5 s), out
// (0.5), updated (0.25), in (0.5) and gathered (0.5) after 24 s of computing.
TEST(StreamPricer, TheSecondLayerDoesNotWaitForTheFirst) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(2);
  StreamPricer pricer(chain, machine, 2, INT64_MAX);
  PackStrategy strategy = layer_by_layer(2);
  strategy.forward_packs = {{0, 1}};
  strategy.state_bytes = 4'000'000'000;
  EXPECT_NEAR(pricer.price(strategy).seconds, 24 + 2.25, 1e-3);
  // Without room for both beside the last pack, in order.
  strategy.state_bytes = 3'500'000'000;
  EXPECT_GT(pricer.price(strategy).seconds, 24 + 2.25 + 0.1);
}

// The same with layers in 8 parts. Out, update and in of layer 0 overlap: after the last
// computation come 8 parts out (1 s), the last one's update (1/16 s) and way in (1/8 s).
TEST(StreamPricer, PartsOfALayerOverlap) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(1);
  StreamPricer pricer(chain, machine, 1, INT64_MAX);
  PackStrategy strategy = layer_by_layer(1);
  strategy.piece_bytes = 200'000'000;
  const StreamCost cost = pricer.price(strategy);
  EXPECT_NEAR(cost.seconds, 24 + 1 + 1.0 / 24 + 1.0 / 12, 1e-3);
  EXPECT_EQ(cost.volume.weights, 2'000'000'000);
  EXPECT_EQ(cost.volume.gradients, 2'000'000'000);
}

// A window of 2 GB for weights and gradients holds one layer of the backward pass: weights of
// layer 1 stay from the forward pass, those of layer 0 are loaded again when layer 1's gradient is
// gone: 1 s out and 1 s in that nothing hides.
TEST(StreamPricer, TheWindowIsKept) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(1);
  StreamPricer pricer(chain, machine, 1, INT64_MAX);
  PackStrategy strategy = layer_by_layer(1);
  strategy.state_bytes = 2'000'000'000;
  const StreamCost cost = pricer.price(strategy);
  EXPECT_NEAR(cost.seconds, 28.5, 1e-3);
  EXPECT_EQ(cost.volume.weights, 3'000'000'000);
  EXPECT_LE(cost.peak_bytes, 2'000'010'000);
  strategy.state_bytes = 1'999'999'999;
  EXPECT_FALSE(pricer.price(strategy).fits);
}

TEST(StreamPricer, ReplicasReadTheirShare) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(2);
  StreamPricer pricer(chain, machine, 2, INT64_MAX);
  const StreamCost cost = pricer.price(layer_by_layer(2));
  EXPECT_EQ(cost.volume.weights, 2'000'000'000);
  EXPECT_EQ(cost.volume.gradients, 2'000'000'000);
  EXPECT_EQ(cost.volume.peers, 4'000'000'000);
  EXPECT_EQ(cost.host_bytes, 8'000'000'000);
}

// A window for one layer. Without shares both layers are read for the forward pass and layer 0
// again for the backward pass; with shares it is gathered from the replicas instead.
TEST(StreamPricer, KeptSharesAreNotReadAgain) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(2);
  StreamPricer pricer(chain, machine, 2, INT64_MAX);
  PackStrategy strategy = layer_by_layer(2);
  strategy.state_bytes = 2'000'000'000;
  EXPECT_EQ(pricer.price(strategy).volume.weights, 3'000'000'000);
  strategy.keep_shares = {1, 1, 0};
  const StreamCost cost = pricer.price(strategy);
  EXPECT_EQ(cost.volume.weights, 2'000'000'000);
  EXPECT_LE(cost.peak_bytes, 3'000'010'000);
}

// On the device: 2 GB of optimizer state and 1 GB of weights a layer go in, as much out, no
// gradients; the update itself takes 3 + 4 GB at 1 TB/s.
TEST(StreamPricer, UpdatesOnTheDevice) {
  const LayerProfile profile = two_large_layers();
  ChainTables chain(profile);
  const Machine machine = one_link(1);
  StreamPricer pricer(chain, machine, 1, INT64_MAX);
  PackStrategy strategy = layer_by_layer(1);
  strategy.device_update = {1, 1, 0};
  const StreamCost cost = pricer.price(strategy);
  EXPECT_EQ(cost.volume.weights, 4'000'000'000);
  EXPECT_EQ(cost.volume.optimizer, 8'000'000'000);
  EXPECT_EQ(cost.volume.gradients, 0);
}

// Streams, pieces and memory as they come.
PackStrategy random_streams(Rng& rng, const HarmonyPlan& plan) {
  PackStrategy strategy = harmony_runtime(plan);
  strategy.streams = true;
  strategy.piece_bytes = rng.integer(1, 400'000'000);
  strategy.state_bytes = rng.integer(1, 8) * 1'000'000'000;
  for (size_t p = 0; p < strategy.actions.size(); ++p) {
    strategy.stash_on_host[p] = rng.chance(0.5);
    if (strategy.depth == 1 && strategy.forward_microbatch == strategy.backward_microbatch)
      strategy.actions[p] = static_cast<PackAction>(rng.integer(0, 2));
  }
  return strategy;
}

// Random strategies: the timeline holds, nothing deadlocks, keeping saves recomputing, and what is
// moved is what Harmony's formulas say.
TEST(StreamPricer, RandomStrategiesRun) {
  Rng rng(21);
  Machine machine = load_machine("4x1080ti");
  for (Device& device : machine.devices) device.limit = Bytes(int64_t{1} << 50);
  for (int round = 0; round < 150; ++round) {
    const LayerProfile profile = synthetic_profile(rng, rng.integer(3, 12));
    ChainTables chain(profile);
    HarmonyPlan plan = random_plan(rng, chain.layers(), static_cast<int32_t>(rng.integer(1, 4)));
    const int64_t minibatch = rng.integer(plan.devices, 16);
    PackLowering lowering(chain, machine);
    Simulator simulator;
    PackStrategy strategy = harmony_runtime(plan);
    const PackSteps* steps = lowering.lower(strategy, minibatch, 1);
    ASSERT_TRUE(steps);
    check_task_graph(*steps->graph);
    const SimResult harmony =
        simulator.run(*steps->graph, *steps->times, {.enforce_limits = false});
    ASSERT_EQ(harmony.status, SimStatus::Done);
    EXPECT_EQ(steps->volume.weights, harmony_volume(chain, plan, minibatch).weights);

    strategy = random_streams(rng, plan);
    steps = lowering.lower(strategy, minibatch, 2);
    if (!steps) continue;
    check_task_graph(*steps->graph);
    const SimResult streamed =
        simulator.run(*steps->graph, *steps->times, {.enforce_limits = false});
    ASSERT_EQ(streamed.status, SimStatus::Done) << "round " << round;
    EXPECT_EQ(check_timeline(*steps->graph, *steps->times, streamed), std::vector<std::string>{});
  }
}

// What is priced by as many steps as it takes to come round is what many steps in a row take and
// hold.
TEST(StreamPricer, PricesTheLongRun) {
  Rng rng(22);
  const Machine machine = load_machine("4x1080ti");
  int came_round = 0, priced = 0;
  for (int round = 0; round < 600; ++round) {
    SCOPED_TRACE(round);
    const LayerProfile profile = synthetic_profile(rng, rng.integer(3, 12));
    ChainTables chain(profile);
    const HarmonyPlan plan =
        random_plan(rng, chain.layers(), static_cast<int32_t>(rng.integer(1, 4)));
    const int64_t minibatch = rng.integer(plan.devices, 16);
    PackStrategy strategy = random_streams(rng, plan);
    for (size_t p = 0; p < strategy.actions.size(); ++p) {
      strategy.device_update[p] = rng.chance(0.2);
      strategy.keep_shares[p] = strategy.replicas > 1 && rng.chance(0.5);
    }
    StreamPricer pricer(chain, machine, minibatch, INT64_MAX);
    const StreamCost cost = pricer.price_long_run(strategy);
    PackLowering lowering(chain, machine);
    const PackSteps* steps = lowering.lower(strategy, minibatch, kLongRunSteps, false);
    if (!steps) continue;
    ++priced;
    ASSERT_EQ(steps->graph->size(), static_cast<size_t>(kLongRunSteps) * steps->repetition.tasks);
    Simulator simulator;
    const LongRun run = read_long_run(
        *steps, simulator.run(*steps->graph, *steps->times, {.enforce_limits = false}));
    EXPECT_EQ(pricer.peaks(), run.peaks);
    if (!cost.came_round) continue;
    ++came_round;
    EXPECT_TRUE(run.periodic);
    EXPECT_EQ(cost.seconds, run.seconds);
    const StreamCost quick = pricer.price(strategy);
    EXPECT_NEAR(quick.seconds, cost.seconds, quick.came_round ? 0 : 0.1 * cost.seconds);
    // With the memory that it takes, nothing is faster than the bound says.
    StreamBounds bounds(chain, machine, minibatch, cost.peak_bytes);
    EXPECT_GE(cost.seconds * (1 + 1e-9),
              bounds.least_step({strategy.replicas, strategy.depth},
                                {{strategy.forward_microbatch}, {strategy.backward_microbatch}}));
  }
  EXPECT_GT(priced, 400);
  EXPECT_GT(came_round, priced * 9 / 10);
}

}  // namespace
}  // namespace windlass

#include "windlass/plan/degrees.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/plan/cases.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

using testing::HasSubstr;

Degrees degrees_for(const Graph& graph, const std::string& strategy, int devices) {
  const PreparedStep step =
      prepare_step(graph, parse_baseline(strategy), cases::machine(devices), {});
  return degrees_of(step.training, find_batch(graph), step.strategy, step.samples);
}

TEST(Degrees, AreThoseThatWereAskedFor) {
  const Graph graph = cases::transformer(16, 4);
  Degrees data = degrees_for(graph, "zero:stage=2", 4);
  EXPECT_EQ(data.dp, 4);
  EXPECT_EQ(data.tp, 1);
  EXPECT_EQ(data.pp, 1);
  EXPECT_EQ(data.zero, 2);
  EXPECT_EQ(data.zero_least, 2);
  EXPECT_EQ(data.micro_samples, 4);
  EXPECT_THAT(degrees_text(data),
              HasSubstr("dp 4, tp 1, pp 1, ZeRO 2, 1 micro-batch of 4 samples"));

  Degrees grid = degrees_for(graph, "megatron:tp=2,pp=2,micro=2,recompute=full", 8);
  EXPECT_EQ(grid.dp, 2);
  EXPECT_EQ(grid.tp, 2);
  EXPECT_EQ(grid.pp, 2);
  EXPECT_EQ(grid.micro_batches, 4);  // 16 samples / (2 replicas x 2)
  EXPECT_EQ(grid.micro_samples, 2);
  EXPECT_GT(grid.recomputed, 0);
  EXPECT_EQ(grid.offloaded, 0);
  EXPECT_EQ(grid.copies, 1);

  Degrees offload = degrees_for(graph, "offload-all", 2);
  EXPECT_EQ(offload.dp, 2);
  EXPECT_GT(offload.offloaded, 0);
  EXPECT_THAT(memory_methods_text(offload), HasSubstr("recompute none, offload"));

  Degrees single = degrees_for(graph, "single", 2);
  EXPECT_EQ(single.dp * single.tp * single.pp * single.copies, 1);
}

// The title of a plan says what it does.
TEST(Degrees, Titles) {
  const Graph graph = cases::transformer(8, 4);
  const auto title = [&](const std::string& name, int devices) {
    return degrees_title(degrees_for(graph, name, devices));
  };
  EXPECT_EQ(title("single", 1), "one device");
  EXPECT_EQ(title("offload-all", 2), "2-way data parallel with offload");
  EXPECT_EQ(title("zero:stage=2,recompute=full", 4), "4-way data parallel with ZeRO 2, recompute");
  EXPECT_EQ(title("megatron:tp=2,pp=2,micro-batches=2", 4),
            "2-way tensor parallel x 2-stage pipeline");
  EXPECT_EQ(title("zero:stage=3,host-weights=on,host-update=on", 2),
            "2-way data parallel with ZeRO 3, weights on the host, optimizer on the host");
}

// Named strategies say their degrees; what the ops do must come to the same.
TEST(Degrees, MultiplyToTheDevices) {
  const Graph graph = cases::transformer(16, 4);
  for (int devices : {1, 2, 4, 8})
    for (const std::string& name : usual_strategies(static_cast<size_t>(devices))) {
      PreparedStep step;
      try {
        step = prepare_step(graph, parse_baseline(name), cases::machine(devices), {});
      } catch (const Error&) {
        continue;
      }
      if (step.strategy.packs) continue;
      const Degrees found =
          degrees_of(step.training, find_batch(graph), step.strategy, step.samples);
      const int64_t product = found.dp * found.tp * found.cp * found.pp * found.copies;
      EXPECT_EQ(product, devices) << name;
    }
}

// A forward pass is a third of the arithmetic: computing all of it again adds no more than that.
TEST(Degrees, UtilisationCountsRecomputationApart) {
  const Graph graph = cases::transformer(8, 2);
  const Machine machine = cases::machine(2);
  const auto cost = analytic_cost_model();
  const auto use_of = [&](const std::string& name) {
    const PreparedStep prepared = prepare_step(graph, parse_baseline(name), machine, {});
    const SimulatedStep step = simulate_step(prepared.training, prepared.strategy, machine, *cost);
    return utilisation_of(step, machine, Flops(1e6));
  };
  const Utilisation plain = use_of("data-parallel");
  EXPECT_DOUBLE_EQ(plain.mfu, plain.hfu);
  EXPECT_GT(plain.mfu, 0);
  const Utilisation again = use_of("recompute-all");
  EXPECT_GT(again.hfu, again.mfu);
  EXPECT_LT(again.hfu, again.mfu * 4 / 3 + 1e-9);  // one forward pass more of three
}

}  // namespace
}  // namespace windlass

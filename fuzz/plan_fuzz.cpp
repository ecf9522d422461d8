// Plan files: what is read is written again, byte for byte the same from then on.

#include "fuzz/exercise.h"

#include "windlass/plan/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  fuzz::tolerate([&] {
    const Plan plan = plan_from_json(fuzz::as_text(data, size), "x.plan");
    const std::string text = plan_to_json(plan);
    const Plan again = plan_from_json(text, "x.plan");
    ensure(plan_to_json(again) == text, "a plan is not written as it was read");
    // Loops of a product, whatever the plan says they are called.
    LoopNest nest;
    for (const char* name : {"m0", "n", "k"}) nest.loops.push_back({.name = name, .size = 64});
    for (const ShardingRun& run : plan.splits)
      fuzz::tolerate([&] {
        const Sharding sharding = sharding_from_text(run.split, nest);
        ensure(sharding_from_text(sharding_to_text(sharding, nest), nest) == sharding,
               "a split is not read as it was written");
      });
  });
  return 0;
}

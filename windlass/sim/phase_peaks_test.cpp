#include "windlass/sim/phase_peaks.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "windlass/base/test_effort.h"
#include "windlass/sim/reference/random_tasks.h"

namespace windlass {
namespace {

// Whatever the phases are, the largest is the peak that the simulator has found.
TEST(PhasePeaks, TheLargestIsThePeak) {
  Simulator simulator;
  for (uint64_t seed = 0; seed < sampled(500U); ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const RandomTasks random = random_tasks(rng, static_cast<size_t>(rng.integer(1, 80)));
    const SimResult& result = simulator.run(random.graph, random.times, {.enforce_limits = false});
    if (result.status != SimStatus::Done) continue;
    for (size_t m = 0; m < random.graph.memories.size(); ++m) {
      const PhaseBytes phases = phase_peaks(random.graph, random.times, result, MemoryId(m));
      EXPECT_EQ(std::max({phases.forward, phases.backward, phases.optimizer}),
                result.peaks[m].bytes);
    }
  }
}

}  // namespace
}  // namespace windlass

#include "windlass/runtime/trainer.h"

#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>

#include "windlass/cost/cost_model.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// A small model under a strategy, with what its trainer refers to.
struct TrainedModel {
  explicit TrainedModel(const std::string& strategy)
      : model(load_model("gpt2:layers=2,hidden=32,heads=2,vocab=64", {.batch = 4, .sequence = 8})),
        machine(testing_runs::host()),
        prepared(prepare_step(model.graph, parse_baseline(strategy), machine,
                              {.optimizer = OptimizerKind::AdamW})),
        step(simulate_step(prepared.training, prepared.strategy, machine, *cost, {},
                           testing_runs::reprice)),
        trainer(model, prepared.training, step, machine, {.seed = 7}) {}

  std::vector<double> losses(int steps) {
    std::vector<double> found;
    for (int i = 0; i < steps; ++i) found.push_back(trainer.step().outcome.loss);
    return found;
  }

  const std::unique_ptr<CostModel> cost = analytic_cost_model();
  const Model model;
  const Machine machine;
  const PreparedStep prepared;
  const SimulatedStep step;
  Trainer trainer;
};

// Every lane at work: copies in and out, the device, the host.
const std::vector<std::string> kStrategies = {
    "single", "offload-all:host-weights=on,host-update=on,bucket=4KiB"};

TEST(Trainer, EvaluationChangesNothing) {
  for (const std::string& strategy : kStrategies) {
    SCOPED_TRACE(strategy);
    TrainedModel plain(strategy), watched(strategy);
    const std::vector<double> expected = plain.losses(3);
    std::vector<double> found;
    for (int i = 0; i < 3; ++i) {
      found.push_back(watched.losses(1)[0]);
      EXPECT_EQ(watched.trainer.evaluate(2), watched.trainer.evaluate(2));
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Trainer, GoesOnFromACheckpointOfAnotherStrategy) {
  const std::string path =
      (fs::temp_directory_path() / ("windlass-trainer-" + std::to_string(getpid()))).string();
  for (const std::string& strategy : kStrategies) {
    SCOPED_TRACE(strategy);
    TrainedModel whole(strategy), first(strategy);
    const std::vector<double> expected = whole.losses(4);
    first.losses(2);
    first.trainer.save_checkpoint(path);
    for (const std::string& other : kStrategies) {
      TrainedModel second(other);
      second.trainer.load_checkpoint(path);
      EXPECT_EQ(second.trainer.steps_done(), 2);
      EXPECT_EQ(second.losses(2), std::vector<double>(expected.begin() + 2, expected.end()))
          << other;
    }
  }
  fs::remove(path);
}

}  // namespace
}  // namespace windlass

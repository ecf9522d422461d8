#include "windlass/runtime/trainer.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/cost/cost_model.h"
#include "windlass/runtime/run_testing.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

std::string scratch(const std::string& name) {
  return (fs::temp_directory_path() / fmt::format("windlass-trainer-{}-{}", getpid(), name))
      .string();
}

const ModelOptions kSmall = {.batch = 4, .sequence = 8};

// A small model under a strategy, with what its trainer refers to.
struct TrainedModel {
  explicit TrainedModel(const std::string& strategy, const ModelOptions& options = kSmall,
                        const std::string& name = "gpt2:layers=2,hidden=32,heads=2,vocab=64")
      : model(load_model(name, options)),
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
const std::vector<std::string> kTrained = {
    "single", "offload-all:host-weights=on,host-update=on,bucket=4KiB"};

TEST(Trainer, EvaluationChangesNothing) {
  for (const std::string& strategy : kTrained) {
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

// The host keeps masters of 16-bit weights and makes the weights from them.
TEST(Trainer, SixteenBitsAreTheSameUnderEveryStrategy) {
  ModelOptions half = kSmall;
  half.dtype = DType::BF16;
  const std::vector<double> expected = TrainedModel("single", half).losses(3);
  for (const char* strategy :
       {"single:host-update=on", "single:host-weights=on", "single:host-weights=on,host-update=on",
        "offload-all:host-update=on,bucket=4KiB", "recompute-all:host-update=on"})
    EXPECT_EQ(TrainedModel(strategy, half).losses(3), expected) << strategy;
}

// Rows fall to experts as the data will; what was measured holds for any way they fall.
TEST(Trainer, MixturesOfExperts) {
  const std::string path = scratch("experts.json");
  std::ofstream(path) << R"({"model_type": "mixtral", "vocab_size": 50, "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})";
  for (const DType dtype : {DType::F32, DType::BF16}) {
    ModelOptions options = kSmall;
    options.dtype = dtype;
    const std::vector<double> expected = TrainedModel("single", options, path).losses(3);
    for (const char* strategy : {"recompute-all", "offload-all:host-update=on"}) {
      TrainedModel run(strategy, options, path);
      for (const double loss : expected) {
        const StepOutcome outcome = run.trainer.step().outcome;
        EXPECT_EQ(outcome.loss, loss) << strategy;
        EXPECT_LE(outcome.peaks[0], run.step.result.peaks[0].bytes) << strategy;
      }
    }
  }
  fs::remove(path);
}

TEST(Trainer, GoesOnFromACheckpointOfAnotherStrategy) {
  const std::string path = scratch("checkpoint");
  for (const std::string& strategy : kTrained) {
    SCOPED_TRACE(strategy);
    TrainedModel whole(strategy), first(strategy);
    const std::vector<double> expected = whole.losses(4);
    first.losses(2);
    first.trainer.save_checkpoint(path);
    for (const std::string& other : kTrained) {
      TrainedModel second(other);
      second.trainer.load_checkpoint(path);
      EXPECT_EQ(second.trainer.steps_done(), 2);
      EXPECT_EQ(second.losses(2), std::vector<double>(expected.begin() + 2, expected.end()))
          << other;
    }
  }
  fs::remove(path);
}

// The message of a step whose loss is not finite, after `value` was written over the beginning of a
// weight.
std::string failed_step(const std::string& strategy, const std::string& weight, float value,
                        int steps_before) {
  TrainedModel trained(strategy);
  trained.losses(steps_before);
  for (const PersistentTensor& tensor : trained.trainer.executor().persistent())
    if (tensor.kind == BufferKind::Weight &&
        trained.prepared.training.graph[tensor.tensor].name == weight) {
      std::vector<std::byte> values = tensor.values();
      for (size_t i = 0; i < 8; ++i)
        std::memcpy(values.data() + i * sizeof(float), &value, sizeof(float));
      tensor.write(values);
    }
  try {
    trained.losses(1);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Runtime);
    return error.message();
  }
  return "no error";
}

TEST(Trainer, NamesTheFirstTensorThatIsNotFinite) {
  using testing::AllOf;
  using testing::HasSubstr;
  using testing::Not;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string weight = "transformer.h.1.mlp.c_fc.weight";
  for (const std::string& strategy : kTrained) {
    SCOPED_TRACE(strategy);
    EXPECT_THAT(failed_step(strategy, weight, nan, 0),
                AllOf(HasSubstr("step 1: the loss is nan: weight \"" + weight + "\""),
                      HasSubstr("holds nan at element 0, before training began"),
                      Not(HasSubstr("learning rate"))));
    EXPECT_THAT(failed_step(strategy, weight, nan, 2),
                AllOf(HasSubstr("since the update of step 2"), HasSubstr("learning rate")));
    EXPECT_THAT(failed_step(strategy, weight, 3e38F, 0),
                AllOf(HasSubstr("the first tensor that is not finite is"),
                      HasSubstr("of finite operands"), Not(HasSubstr("learning rate"))));
  }
}

}  // namespace
}  // namespace windlass

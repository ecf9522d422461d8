// Recomputation by segments covers whole networks, whether their blocks repeat or not.

#include <gtest/gtest.h>

#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/step.h"
#include "windlass/strategy/baselines.h"
#include "windlass/strategy/stages.h"

namespace windlass {
namespace {

int64_t peak_of(const std::string& model, int64_t image, int64_t batch, const char* strategy) {
  ModelOptions options;
  options.batch = batch;
  if (image > 0) options.image = image;
  const Machine machine = load_machine("1xa100-80g");
  const PreparedStep prepared =
      prepare_step(load_model(model, options).graph, parse_baseline(strategy), machine, {});
  const auto cost = analytic_cost_model();
  const SimulatedStep step = simulate_step(prepared.training, prepared.strategy, machine, *cost,
                                           {.enforce_limits = false});
  int64_t most = 0;
  for (size_t m = 0; m < step.tasks.memories.size(); ++m)
    if (step.tasks.memories[m].team.valid()) most = std::max(most, step.whole().peaks[m].bytes);
  return most;
}

// Bytes that one sample more takes.
double slope_of(const std::string& model, int64_t image, const char* strategy) {
  return static_cast<double>(peak_of(model, image, 24, strategy) -
                             peak_of(model, image, 16, strategy)) /
         8;
}

class Segments : public testing::TestWithParam<std::pair<const char*, int64_t>> {};

TEST_P(Segments, SaveMemoryEverywhere) {
  const std::string model = GetParam().first;
  const int64_t image = GetParam().second;
  const double plain = slope_of(model, image, "single");
  EXPECT_LT(slope_of(model, image, "single:recompute=full"), 0.7 * plain);
  EXPECT_LT(slope_of(model, image, "single:recompute=sqrt"), 0.7 * plain);
}

INSTANTIATE_TEST_SUITE_P(Networks, Segments,
                         testing::Values(std::pair("swin-t", 224), std::pair("resnet-18", 224),
                                         std::pair("resnet-50", 224), std::pair("unet", 128),
                                         std::pair("densenet-121", 224),
                                         std::pair("inception-v3", 299),
                                         std::pair("efficientnet-b0", 224),
                                         std::pair("mobilenet-v2", 224),
                                         std::pair("googlenet", 224)),
                         [](const auto& test) {
                           std::string name = test.param.first;
                           std::erase(name, '-');
                           return name;
                         });

// The early stages of a Swin have no repeated blocks, and most of its bytes. Released measurements
// of Swin-L with checkpoints have 65 MiB a sample.
TEST(SegmentsOfSwin, ReachTheEarlyStages) {
  const double mebibytes = slope_of("swin-l", 224, "single:recompute=full") / (1 << 20);
  EXPECT_LT(mebibytes, 80);
  EXPECT_GT(mebibytes, 30);
}

// Embeddings and heads of transformers stay as they are: that is what the published tables count.
TEST(SegmentsOfTransformers, AreTheirLayers) {
  ModelOptions options;
  options.batch = 2;
  options.sequence = 64;
  const TrainingGraph training = differentiate(load_model("gpt2", options).graph);
  const Checkpoints checkpoints = block_checkpoints(training);
  EXPECT_EQ(checkpoints.ends.size(), 13U);  // 12 layers
  EXPECT_GT(checkpoints.first, 0U);
  EXPECT_LT(checkpoints.last, training.forward_ops);
}

}  // namespace
}  // namespace windlass

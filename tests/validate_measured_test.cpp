// `windlass validate --measured`: predictions from two batches beside steps that were carried out.

#include "tests/run_program.h"
#include <gmock/gmock.h>

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

// Times are the host's business; bytes are not.
TEST(ValidateMeasuredSlow, PeaksAreThoseOfTheRun) {
  if (hurried()) GTEST_SKIP() << "takes a minute: make test-slow";
  const ProgramResult result = run_windlass(
      {"validate", "--measured", "--only", "gpt2", "--steps", "1", "--rounds", "1", "--json"});
  ASSERT_TRUE(result.exit_code == 0 || result.exit_code == 3) << result.err;
  const nlohmann::json parsed = nlohmann::json::parse(result.out);
  for (const nlohmann::json& model : parsed["models"])
    for (const nlohmann::json& group : model["groups"]) {
      SCOPED_TRACE(model["model"].get<std::string>() + " " + group["method"].get<std::string>());
      EXPECT_GE(group["peak_r2"], 0.999);
      EXPECT_GE(group["points"].size(), 4u);
      EXPECT_NE(group["largest_batch_runs"], false);
      EXPECT_NE(group["one_more_exceeds"], false);
      for (const nlohmann::json& point : group["points"])
        EXPECT_GT(point["measured_samples_per_s"], 0);
    }
}

// Time that is up before the first point: no group is inside of its bars, and a word says why.
TEST(ValidateMeasured, EndsWhenTimeIsUp) {
  const ProgramResult result =
      run_windlass({"validate", "--measured", "--only", "gpt2", "--minutes", "0", "--json"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, testing::HasSubstr("stopped before all was measured"));
  EXPECT_TRUE(nlohmann::json::parse(result.out).contains("models"));
}

TEST(ValidateMeasured, MistakesAreNamed) {
  const ProgramResult unknown = run_windlass({"validate", "--measured", "--only", "gpt3"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, testing::HasSubstr("gpt2, resnet-18"));
  EXPECT_EQ(run_windlass({"validate", "--full"}).exit_code, 1);
  EXPECT_EQ(run_windlass({"validate", "--minutes", "1"}).exit_code, 1);
}

}  // namespace
}  // namespace windlass

// What goes wrong on one of two devices ends the program with its name, and leaves the last
// checkpoint as it was.

#include "tests/small_runs.h"

#include "windlass/base/error.h"
#include "windlass/cli/cli.h"

namespace windlass {
namespace {

using namespace small_runs;
using testing::AllOf;
using testing::HasSubstr;

class FailuresSlow : public testing::Test {
 protected:
  Arguments two_devices(const Arguments& more, const std::string& every = "1") const {
    return Arguments{"train", kModel, "--on", "local", "--devices", "2"} + kShape +
           Arguments{"--data", kText,           "--strategy", "data-parallel",
                     "--json", "--checkpoints", folder_,      "--checkpoint-every",
                     every,    "--resume",      folder_} +
           more;
  }
  // Two steps, whose checkpoint is then the last.
  void begin() {
    const ProgramResult result = run_windlass(two_devices({"--steps", "2"}));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    kept_ = read(newest_);
  }
  // That it is as it was, and that a run goes on from it.
  void expect_kept() {
    EXPECT_TRUE(read(newest_) == kept_);
    const ProgramResult after = run_windlass(two_devices({"--steps", "3"}));
    EXPECT_EQ(after.exit_code, 0) << after.err;
    EXPECT_EQ(lines_of(after.out)[0]["step"], 3);
  }

  ScratchFolder scratch_;
  const std::string folder_ = scratch_ / "run";
  const std::string newest_ = folder_ + "/checkpoint-00000002.safetensors";
  std::string kept_;
};

TEST_F(FailuresSlow, AFullDiskLeavesTheLastCheckpoint) {
  begin();
  // Checkpoints take 800 kB.
  expect_failure(run_windlass(two_devices({"--steps", "12"}), {.file_bytes = 400'000}), 3,
                 {"checkpoint-00000003.safetensors", "File too large"});
  expect_kept();
}

TEST_F(FailuresSlow, ALossThatIsNoNumberIsNamedWithItsDevice) {
  begin();
  // The third step still has a loss, and leaves nothing to go on with.
  const ProgramResult result = run_windlass(two_devices({"--steps", "9", "--lr", "1e30"}, "0"));
  expect_failure(result, 3, {"the loss is nan", "noticed by forward", ", on cpu"});
  expect_kept();
}

// A plan that says that kernels need nothing beside their operands, at the limit that would do for
// it.
TEST_F(FailuresSlow, OutOfMemoryInAKernelIsNamedWithItsDevice) {
  const std::string path = scratch_ / "plan.json";
  const ProgramResult planned = run_windlass(
      {"plan", "resnet-18:classes=10", "--image", "32", "--batch", "8", "--on", "local",
       "--devices", "2", "--memory", "400MiB", "--time-limit", "3", "-o", path});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  json plan = json::parse(read(path));
  for (json& kernel : plan["kernels"]) kernel["workspace_bytes"] = 0;
  write(path, plan.dump());
  const ProgramResult simulated = run_windlass({"simulate", path, "--json"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const int64_t peak = device_peak(json::parse(simulated.out));
  const ProgramResult result =
      run_windlass({"train", path, "--steps", "2", "--memory", std::to_string(peak)});
  expect_failure(result, 3, {"step 1: ", ", on cpu", "would exceed the limit", "alive there:"});
}

TEST(Program, AThreadThatHangsEndsItAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end_at_once(Error(ErrorKind::Runtime, "nothing has gone on for 10 min")),
              testing::ExitedWithCode(3), "windlass: nothing has gone on for 10 min");
}

}  // namespace
}  // namespace windlass

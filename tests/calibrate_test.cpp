// `windlass calibrate`: a machine file of this host that other verbs predict with.

#include <fstream>
#include <iterator>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>

namespace windlass {
namespace {

using testing::HasSubstr;

TEST(CalibrateSlow, PredictionsHaveARange) {
  const ScratchFolder folder;
  const std::string path = folder / "here.json";
  const std::vector<std::string> model = {"mlp:hidden=64,layers=2", "--batch", "16"};
  const nlohmann::json made = windlass_json({"calibrate", "--for", model[0], "--batch", "16",
                                             "--repeats", "2", "--threads", "1", "-o", path});
  EXPECT_EQ(made["rounds"], 2);
  const nlohmann::json& families =
      made["machine"]["device_types"]["cpu"]["calibration"]["families"];
  for (const char* family : {"contraction", "update", "compression"})
    EXPECT_TRUE(families.contains(family)) << family;
  const nlohmann::json step = windlass_json({"simulate", model[0], model[1], model[2], "--on", path,
                                             "--strategy", "single:recompute=full"});
  EXPECT_LE(step["step_time_low_s"], step["step_time_s"]);
  EXPECT_GE(step["step_time_high_s"], step["step_time_s"]);
  EXPECT_THAT(run_windlass({"plan", model[0], model[1], model[2], "--on", path}).out,
              HasSubstr("as the device was calibrated"));
  // It says what copies take, and what an op takes at least.
  const nlohmann::json& device = made["machine"]["device_types"]["cpu"];
  EXPECT_GT(device["launch_overhead"].get<double>(), 0);
  EXPECT_TRUE(device["calibration"].contains("workspace"));
  EXPECT_EQ(device["calibration"].contains("copies"), !device.contains("copies_itself"));
  // Plans made with it run here.
  const std::string plan = folder / "plan.json";
  EXPECT_EQ(
      run_windlass({"plan", model[0], model[1], model[2], "--on", path, "-o", plan}).exit_code, 0);
  const ProgramResult trained =
      run_windlass({"train", plan, "--data", "synthetic", "--steps", "2", "--threads", "1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  const ProgramResult named =
      run_windlass({"train", model[0], model[1], model[2], "--on", path, "--strategy", "single",
                    "--data", "synthetic", "--steps", "1", "--threads", "1"});
  EXPECT_EQ(named.exit_code, 0) << named.err;
  // Files are hostile.
  std::ifstream stream(path);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto refused = [&](const std::string& old, const std::string& instead) {
    const size_t at = text.find(old);
    ASSERT_NE(at, std::string::npos) << old;
    std::string broken = text;
    broken.replace(at, old.size(), instead);
    std::ofstream(folder / "broken.json") << broken;
    const ProgramResult result = run_windlass({"simulate", model[0], model[1], model[2], "--on",
                                               folder / "broken.json", "--strategy", "single"});
    EXPECT_EQ(result.exit_code, 1) << instead << result.err;
    EXPECT_THAT(result.err, HasSubstr("broken.json"));
  };
  refused("\"analytic\":", "\"analytik\":");
  refused("\"beside_copies\":", "\"beside_copies\": -1, \"x\":");
  refused("\"ratio\":", "\"ratio\": 1e300, \"y\":");
}

TEST(Calibrate, MistakesAreNamed) {
  const ProgramResult result = run_windlass({"calibrate", "--batch", "4"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("--for"));
}

}  // namespace
}  // namespace windlass

// `windlass advise`: which way to save memory pays.

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace windlass {
namespace {

using testing::HasSubstr;

nlohmann::json advised(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "advise");
  return windlass_json(std::move(arguments));
}

const nlohmann::json& method_of(const nlohmann::json& parsed, const std::string& name) {
  for (const nlohmann::json& entry : parsed["methods"])
    if (entry["method"] == name) return entry;
  throw std::runtime_error("no method " + name);
}

const std::vector<std::string> kSmallAdvice = {
    "resnet-18", "--image", "64", "--on", "1x1080ti", "--memory", "600MiB", "--time-limit", "1"};

// What fits by `simulate` fits here, and one sample more does not.
TEST(Advise, LargestBatchesAreExact) {
  const nlohmann::json parsed = advised(kSmallAdvice);
  for (const auto& [name, strategy] :
       std::map<std::string, std::string>{{"plain", "single"},
                                          {"recompute", "single:recompute=full"},
                                          {"offload", "single:offload=on"}}) {
    SCOPED_TRACE(name);
    const auto largest = method_of(parsed, name)["largest_batch"].get<int64_t>();
    const auto fits = [&, spec = strategy](int64_t batch) {
      return run_windlass({"simulate", "resnet-18", "--image", "64", "--on", "1x1080ti", "--memory",
                           "600MiB", "--strategy", spec, "--batch", std::to_string(batch)})
                 .exit_code == 0;
    };
    EXPECT_TRUE(fits(largest)) << largest;
    EXPECT_FALSE(fits(largest + 1)) << largest;
  }
}

// Verdicts follow from the simulated steps, and each prediction is that of `simulate`.
TEST(Advise, VerdictsFollowFromThroughput) {
  const nlohmann::json parsed = advised(kSmallAdvice);
  EXPECT_EQ(parsed["runner"], "windlass");
  const double plain = method_of(parsed, "plain")["best_samples_per_s"];
  for (const nlohmann::json& entry : parsed["methods"]) {
    SCOPED_TRACE(entry["method"].get<std::string>());
    double best = 0;
    for (const nlohmann::json& point : entry["points"]) {
      if (point["fits"]) best = std::max(best, point["samples_per_s"].get<double>());
      EXPECT_EQ(point["peak_bytes"].get<int64_t>(),
                std::max({point["forward_peak_bytes"].get<int64_t>(),
                          point["backward_peak_bytes"].get<int64_t>(),
                          point["optimizer_peak_bytes"].get<int64_t>()}));
      EXPECT_EQ(point["fits"].get<bool>(),
                !entry["largest_batch"].is_null() &&
                    point["batch"].get<int64_t>() <= entry["largest_batch"].get<int64_t>());
    }
    EXPECT_EQ(entry["best_samples_per_s"].get<double>(), best);
    if (entry["method"] == "plain") continue;
    EXPECT_EQ(entry["pays"].get<bool>(), best > plain * (1 + 1e-6));
    EXPECT_FALSE(entry["because"].get<std::string>().empty());
    // Peaks are affine in each phase but for workspaces that have a most, and where copies wait for
    // memory. A mixture is another plan at each batch.
    EXPECT_EQ(entry.contains("model"), entry["method"] != "mixture");
    if (entry["method"] == "mixture" || entry["method"] == "offload") continue;
    EXPECT_LT(entry["model"]["peak"]["largest_error"].get<double>(), 0.1);
  }
  // The mixture is never worse than plain, recomputation or offload at their best.
  for (const char* name : {"plain", "recompute", "offload"})
    EXPECT_GE(method_of(parsed, "mixture")["best_samples_per_s"].get<double>(),
              0.999 * method_of(parsed, name)["best_samples_per_s"].get<double>())
        << name;
}

TEST(Advise, ComputesUnderTheRunner) {
  std::vector<std::string> arguments = kSmallAdvice;
  arguments.insert(arguments.end(), {"--methods", "recompute", "--runner", "pytorch"});
  const nlohmann::json parsed = advised(arguments);
  EXPECT_EQ(parsed["runner"], "pytorch");
  EXPECT_EQ(parsed["methods"].size(), 2U);
  EXPECT_LT(parsed["limit_bytes"].get<double>(), 600.0 * (1 << 20));
  // The floor is the host's: 2 ms and some 60 ops of 135 us each.
  EXPECT_GT(method_of(parsed, "plain")["model"]["time"]["floor_s"].get<double>(), 8e-3);
}

TEST(Advise, DrawsAndExplains) {
  const ScratchFolder folder;
  std::vector<std::string> arguments = kSmallAdvice;
  arguments.insert(arguments.begin(), "advise");
  arguments.insert(arguments.end(),
                   {"--methods", "recompute", "offload", "--svg", folder / "plot.svg"});
  const ProgramResult result = run_windlass(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* text : {"largest batch", "does not pay, because", "samples a second, by batch",
                           "the models", "PAPAYA", "run by windlass", "p plain  r recompute"})
    EXPECT_THAT(result.out, HasSubstr(text));
  std::ifstream file(folder / "plot.svg");
  const std::string svg{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(svg, HasSubstr("<svg"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, HasSubstr("recompute"));
}

TEST(Advise, NothingFits) {
  const ProgramResult result = run_windlass({"advise", "gpt2", "--on", "1x1080ti", "--memory",
                                             "1MiB", "--time-limit", "1", "--seq", "16"});
  EXPECT_EQ(result.exit_code, 2) << result.err;
  EXPECT_THAT(result.out, HasSubstr("not even one sample fits"));
}

TEST(Advise, RefusesABatch) {
  const ProgramResult result = run_windlass({"advise", "mlp", "--on", "1x3090", "--batch", "8"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("--batches"));
}

// Two measured steps of plain training move everything: times by what they took longer.
TEST(Advise, MeasuredStepsMoveThePrediction) {
  const ScratchFolder folder;
  std::vector<std::string> arguments = kSmallAdvice;
  arguments.insert(arguments.end(), {"--methods", "recompute", "--batches", "8", "32"});
  const nlohmann::json before = advised(arguments);
  std::ofstream file(folder / "steps.csv");
  file << "batch,method,peak_bytes,step_time_s\n";
  for (const nlohmann::json& point : method_of(before, "plain")["points"])
    file << point["batch"] << ",plain," << point["peak_bytes"].get<int64_t>() + 1000000 << ","
         << 2 * point["step_time_s"].get<double>() << "\n";
  file.close();
  arguments.insert(arguments.end(), {"--measured", folder / "steps.csv"});
  const nlohmann::json after = advised(arguments);
  for (const char* name : {"plain", "recompute"})
    for (size_t i = 0; i < 2; ++i) {
      const nlohmann::json& was = method_of(before, name)["points"][i];
      const nlohmann::json& is = method_of(after, name)["points"][i];
      EXPECT_NEAR(is["step_time_s"].get<double>(), 2 * was["step_time_s"].get<double>(), 1e-6);
      EXPECT_NEAR(is["peak_bytes"].get<double>(), was["peak_bytes"].get<double>() + 1e6, 2e4);
    }
  EXPECT_LE(method_of(after, "plain")["largest_batch"].get<int64_t>(),
            method_of(before, "plain")["largest_batch"].get<int64_t>());
}

TEST(Advise, SharesBatchesAmongDevices) {
  const nlohmann::json parsed =
      advised({"mlp", "--on", "4x3090", "--max-batch", "64", "--methods", "recompute"});
  for (const nlohmann::json& point : method_of(parsed, "plain")["points"])
    EXPECT_EQ(point["batch"].get<int64_t>() % 4, 0);
}

}  // namespace
}  // namespace windlass

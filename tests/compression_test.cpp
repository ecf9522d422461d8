// Saved tensors in fewer bits: what it does to a step, to a search, and to learning.

#include "tests/small_runs.h"

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

using namespace small_runs;

const Arguments kLossyStep = {
    "gpt2:layers=4,hidden=64,vocab=500", "--seq", "32", "--batch", "16", "--on", "1x3090"};

// Memory for fewer bits, and time for both ways; under PyTorch many times as much.
TEST(Compression, HasItsPrice) {
  const auto step = [](const std::string& strategy, const std::string& runner) {
    return windlass_json(Arguments{"simulate"} + kLossyStep +
                         Arguments{"--strategy", strategy, "--runner", runner});
  };
  for (const char* runner : {"windlass", "pytorch"}) {
    SCOPED_TRACE(runner);
    json last = step("single", runner);
    for (const char* bits : {"8", "4", "2"}) {
      json next = step("single:compress=" + std::string(bits), runner);
      EXPECT_LT(device_peak(next), device_peak(last)) << bits;
      EXPECT_GT(next["step_time_s"], step("single", runner)["step_time_s"]) << bits;
      last = std::move(next);
    }
  }
}

TEST(Compression, SearchUsesWhatIsAllowed) {
  const ScratchFolder folder;
  const Arguments problem = {"plan", "gpt2:layers=6", "--seq", "256", "--batch",
                             "4",    "--on",          "1x3090"};
  const auto plan_with = [&](const Arguments& allow) {
    const std::string path = folder / "plan.json";
    const json plan =
        windlass_json(problem +
                      Arguments{"--memory", "1500MiB", "--fix", "offload=off,host-update=off",
                                "--micro-batches", "1", "--effort", "0.1", "-o", path} +
                      allow);
    return std::pair(plan["step_time_s"].get<double>(), read(path));
  };
  const auto exact = plan_with({}), four = plan_with({"--allow", "compress=4"}),
             any = plan_with({"--allow", "compress"});
  EXPECT_EQ(exact.second.find("compress"), std::string::npos);
  EXPECT_NE(four.second.find("\"compress4\""), std::string::npos);
  EXPECT_EQ(four.second.find("\"compress2\""), std::string::npos);
  EXPECT_NE(any.second.find("\"compress2\""), std::string::npos);
  EXPECT_LT(four.first, exact.first);
  EXPECT_LT(any.first, exact.first);
  EXPECT_EQ(run_windlass(problem + Arguments{"--allow", "compress=3"}).exit_code, 1);
}

// Mean loss over the part of the text that is kept for it, after so many steps.
double learnt(const std::string& strategy, int64_t steps, int seed) {
  const std::string count = std::to_string(steps);
  const ProgramResult result =
      run_windlass(Arguments{"train",          "gpt2:layers=2,hidden=32,heads=2,vocab=128",
                             "--seq",          "16",
                             "--batch",        "8",
                             "--data",         kText,
                             "--strategy",     strategy,
                             "--steps",        count,
                             "--lr",           "3e-3",
                             "--seed",         std::to_string(seed),
                             "--threads",      "1",
                             "--eval-every",   count,
                             "--eval-batches", "20",
                             "--json"} +
                   kOneDevice);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const json& line : lines_of(result.out))
    if (line.contains("eval_loss")) return line["eval_loss"];
  return -1;
}

// What rounding adds to gradients has no bias, so that a run with 8 or 4 bits learns what the plain
// one learns: both fall from log 128 = 4.85 to about 2.3, and differ by less than runs from other
// seeds do. With 2 bits this network learns at first, then diverges at this learning rate: that
// much is known, and no promise.
TEST(CompressionSlow, LearnsAsWell) {
  const int64_t steps = thorough() ? 1000 : 400;
  const int seeds = thorough() ? 3 : 1;
  const std::vector<std::string> all = {"single:compress=8", "single:compress=4"};
  for (const std::string& strategy : thorough() ? all : std::vector{all.back()}) {
    double plain = 0, lossy = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      plain += learnt("single", steps, seed) / seeds;
      lossy += learnt(strategy, steps, seed) / seeds;
    }
    RecordProperty(strategy, std::to_string(lossy - plain));
    EXPECT_LT(plain, 2.6);
    EXPECT_LT(lossy, plain + 0.1) << strategy << " against " << plain;
    EXPECT_GT(lossy, plain - 0.2) << strategy << " against " << plain;
  }
}

}  // namespace
}  // namespace windlass

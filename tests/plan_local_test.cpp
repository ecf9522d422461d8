// `windlass plan` for one device of this host, as a user runs it.

#include "tests/small_runs.h"
#include <fmt/format.h>

namespace windlass {
namespace {

using namespace small_runs;
using testing::HasSubstr;

TEST(PlanSlow, JsonHasTheKeysProgramsRelyOn) {
  const json found = plan_json({"--memory", "500KiB"});
  ASSERT_TRUE(found.is_object());
  EXPECT_THAT((std::vector<std::string>{"optimal", "feasible"}),
              testing::Contains(found["termination"].get<std::string>()));
  const double step = found["step_time_s"];
  EXPECT_GT(step, 0);
  EXPECT_NEAR(found["samples_per_s"].get<double>(), 4 / step, 1e-6 * 4 / step);
  EXPECT_GE(found["lower_bound_s"], 0);
  EXPECT_LE(found["lower_bound_s"].get<double>(), step);
  EXPECT_NEAR(found["gap"].get<double>(), 1 - found["lower_bound_s"].get<double>() / step, 1e-9);
  ASSERT_EQ(found["devices"].size(), 1u);
  EXPECT_EQ(found["devices"][0]["limit_bytes"], 500 * 1024);
  EXPECT_GT(found["devices"][0]["peak_bytes"], 0);
  EXPECT_LE(found["devices"][0]["peak_bytes"], 500 * 1024);
  // So little memory needs the host's, and a link to it.
  EXPECT_GT(found["host"]["peak_bytes"], 0);
  ASSERT_FALSE(found["links"].empty());
  EXPECT_GT(found["links"][0]["bytes"], 0);
  EXPECT_GE(found["search"]["seconds"], 0);
  EXPECT_GT(found["search"]["proposals"], 0);
}

TEST(PlanSlow, TellsPeopleTheSame) {
  const ProgramResult result = plan({"--memory", "500KiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"strategies tried", "saved for the backward pass", "where the time goes",
                           "memory at its peak"})
    EXPECT_THAT(result.out, HasSubstr(part));
}

// What is called the least limit is one, to the byte.
TEST(PlanSlow, SaysTheLeastLimitExactly) {
  const json refused = plan_json({"--memory", "100KiB"}, 2);
  ASSERT_TRUE(refused.is_object());
  EXPECT_EQ(refused["termination"], "infeasible");
  EXPECT_EQ(refused["limit_bytes"], 100 * 1024);
  EXPECT_THAT(refused["reason"].get<std::string>(), HasSubstr("missing"));
  const int64_t least = refused["minimum_limit_bytes"];
  EXPECT_GT(least, 100 * 1024);
  const json fits = plan_json({"--memory", std::to_string(least)});
  EXPECT_LE(device_peak(fits), least);
  const json tight = plan_json({"--memory", std::to_string(least - 1)}, 2);
  EXPECT_EQ(tight["minimum_limit_bytes"], least);

  const ProgramResult text = plan({"--memory", "100KiB"});
  EXPECT_EQ(text.exit_code, 2);
  for (const std::string& part : {std::string("no plan fits 100 KiB"),
                                  fmt::format("({} bytes)", least), std::string("what helps")})
    EXPECT_THAT(text.out, HasSubstr(part));
}

// Kernels are measured again for each plan, so times are not compared: with enough memory nothing
// is moved or computed twice, and with less everything that fits less is still inside the limit.
TEST(PlanSlow, MoreMemoryIsUsedToDoLess) {
  const json all = plan_json({});
  EXPECT_EQ(all["termination"], "feasible");
  const int64_t enough = device_peak(all);
  const json same = plan_json({"--memory", std::to_string(enough)});
  for (const json* found : {&all, &same}) {
    EXPECT_EQ((*found)["decisions"]["weights_on_host"], 0);
    EXPECT_EQ((*found)["decisions"]["updated_on_host"], 0);
    EXPECT_EQ((*found)["decisions"]["saved"].size(), 1u);
    EXPECT_TRUE((*found)["decisions"]["saved"].contains("keep"));
    EXPECT_EQ((*found)["breakdown"]["recompute_s"], 0);
    EXPECT_EQ((*found)["breakdown"]["swap_s"], 0);
  }
  for (const int64_t limit : {enough - 1, enough * 3 / 4, enough / 2, enough / 3}) {
    const json found = plan_json({"--memory", std::to_string(limit)});
    EXPECT_LE(device_peak(found), limit);
    const json& decisions = found["decisions"];
    EXPECT_TRUE(decisions["updated_on_host"] > 0 || decisions["saved"].size() > 1 ||
                decisions["micro_batches"] > 1)
        << limit;
  }
}

TEST(PlanSlow, WritesPlansThatAreCheckedAndTrained) {
  const ScratchFolder scratch;
  const std::string path = scratch / "plan.json";
  const json found = plan_json({"--memory", "600KiB", "-o", path});
  EXPECT_EQ(found["plan"], path);
  const ProgramResult checked = run_windlass({"check", path});
  EXPECT_EQ(checked.exit_code, 0) << checked.err << checked.out;
  const ProgramResult trained =
      run_windlass({"train", path, "--data", kText, "--steps", "3", "--json"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::vector<json> lines = lines_of(trained.out);
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < 3; ++i) EXPECT_LE(device_peak(lines[i]), device_peak(found));
  // The strategy that cuts the batch alike; dropout depends on the cut.
  const int64_t samples = 4 / found["decisions"]["micro_batches"].get<int64_t>();
  EXPECT_EQ(
      losses_of(trained.out),
      trained_losses(train_arguments({"--steps", "3"}, fmt::format("single:micro={}", samples))));
  // A tighter limit than the plan was made for is refused before anything runs.
  expect_failure(run_windlass({"train", path, "--data", kText, "--memory", "100KiB"}), 2,
                 {"does not fit", "100 KiB"});
}

TEST(PlanSlow, TrainingElsewhereIsRefusedWithAHint) {
  const Arguments model = Arguments{"plan", kModel} + kShape;
  expect_failure(run_windlass(model), 1, {"--on"});
  expect_failure(run_windlass(model + Arguments{"--on", "4x3090", "--search", "one-device"}), 1,
                 {"4x3090 has 4 devices", "--devices 1"});
  const Arguments trained = Arguments{"train", kModel, "--data", kText} + kShape;
  expect_failure(run_windlass(trained + Arguments{"--on", "4x3090"}), 1,
                 {"4x3090: training runs on CPU devices", "--on local --devices N"});
}

// The second time nothing is measured, and the prices are those of the first.
TEST(PlanSlow, PricesOfKernelsAreKept) {
  const ScratchFolder scratch;
  const ProgramOptions cached = {.cache = scratch / "cache"};
  const auto kernels_of = [&](const Arguments& more) {
    const std::string path = scratch / "plan.json";
    const ProgramResult result = run_windlass(
        Arguments{"plan", kModel, "--json", "-o", path} + kShape + kOneDevice + more, cached);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(read(path))["kernels"];
  };
  EXPECT_FALSE(kernels_of({"--no-cache"}).empty());
  EXPECT_FALSE(fs::exists(cached.cache));
  const json first = kernels_of({});
  const std::vector<std::string> files = files_in(cached.cache + "/windlass");
  ASSERT_EQ(files.size(), 1u);
  const std::string file = cached.cache + "/windlass/" + files[0], kept = read(file);
  for (const json& kernel : first)
    EXPECT_THAT(kept, HasSubstr(kernel["kernel"].dump())) << "not kept";
  const json second = kernels_of({});
  EXPECT_EQ(read(file), kept) << "something was measured";
  for (const json& kernel : second)
    EXPECT_THAT(kept, HasSubstr(fmt::format("\"time_ns\": {}", kernel["time_ns"].dump())));
  kernels_of({"--fresh"});
  EXPECT_NE(read(file), kept);

  // What somebody else put there is told of, and does not count.
  write(file, "{\"format\": \"something\"}");
  const ProgramResult told =
      run_windlass(Arguments{"plan", kModel, "--json"} + kShape + kOneDevice, cached);
  EXPECT_EQ(told.exit_code, 0);
  EXPECT_THAT(told.err, AllOf(HasSubstr(file), HasSubstr("kernels are measured anew")));
}

}  // namespace
}  // namespace windlass

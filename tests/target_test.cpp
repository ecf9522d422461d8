// `plan --for SYSTEM`: what is found can be told to the system, word for word.

#include <string>
#include <vector>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace windlass {
namespace {

using testing::HasSubstr;
using Arguments = std::vector<std::string>;

const std::string kTargetModel = "gpt2:layers=4,hidden=256,heads=4,vocab=1024,dropout=0";

Arguments planned_for(const std::string& system, const std::string& memory, const std::string& path,
                      const Arguments& more = {}) {
  Arguments arguments = {"plan",     kTargetModel, "--seq", "128",      "--batch", "16", "--on",
                         "4x1080ti", "--for",      system,  "--memory", memory,    "-o", path};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Targets, NothingIsLostOfAPlanThatWasMadeForThem) {
  const ScratchFolder folder;
  const std::string path = folder / "plan.json";
  for (const char* system :
       {"deepspeed", "megatron", "torchtitan", "accelerate", "trainer", "pytorch"}) {
    double before = 0;
    for (const char* memory : {"700MiB", "120MiB", "60MiB"}) {
      const ProgramResult made = run_windlass(planned_for(system, memory, path));
      if (made.exit_code == 2) {
        EXPECT_THAT(made.out, HasSubstr("no plan fits")) << system;
        continue;
      }
      ASSERT_EQ(made.exit_code, 0) << system << " " << made.err;
      EXPECT_THAT(made.out, HasSubstr(std::string("--to ") + system));
      const nlohmann::json told = windlass_json({"export", path, "--to", system});
      EXPECT_TRUE(told["lost"].empty()) << system << " in " << memory << told["lost"].dump(1);
      EXPECT_DOUBLE_EQ(told["step_time_s"].get<double>(), told["plan_step_time_s"].get<double>())
          << system << " in " << memory;
      EXPECT_TRUE(told["fits"]) << system << " in " << memory;
      EXPECT_EQ(told["micro_batch"].get<int64_t>() * told["accumulation"].get<int64_t>() *
                    told["dp"].get<int64_t>(),
                16);
      const double time = told["step_time_s"];
      EXPECT_GE(time, before) << system << ": less memory, no faster";
      before = time;
    }
    EXPECT_GT(before, 0) << system << ": nothing fitted at all";
  }
}

// A number of layers that the stages do not divide: each stage has whole ones, and at least one.
TEST(Targets, StagesHaveWholeLayers) {
  const ScratchFolder folder;
  const std::string path = folder / "plan.json";
  for (const std::string pp : {"2", "4"}) {
    const ProgramResult made = run_windlass(
        {"plan", "gpt2:layers=5,hidden=64,heads=4,vocab=999", "--seq", "32", "--batch", "16",
         "--on", "4x1080ti", "--for", "torchtitan", "--fix", "pp=" + pp, "-o", path});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const nlohmann::json told = windlass_json({"export", path, "--to", "torchtitan"});
    EXPECT_TRUE(told["lost"].empty()) << told["lost"].dump(1);
    EXPECT_DOUBLE_EQ(told["step_time_s"].get<double>(), told["plan_step_time_s"].get<double>());
  }
}

TEST(Targets, DecisionsOfTheUserStay) {
  const ScratchFolder folder;
  const std::string path = folder / "plan.json";
  ASSERT_EQ(
      run_windlass(planned_for("megatron", "700MiB", path, {"--fix", "pp=2,tp=2,recompute=full"}))
          .exit_code,
      0);
  const nlohmann::json told = windlass_json({"export", path, "--to", "megatron"});
  EXPECT_EQ(told["pp"], 2);
  EXPECT_EQ(told["tp"], 2);
  EXPECT_TRUE(told["lost"].empty()) << told["lost"].dump(1);
  EXPECT_THAT(told["text"].get<std::string>(), HasSubstr("--recompute-granularity full"));
}

TEST(Targets, MistakesAreTold) {
  const ScratchFolder folder;
  const std::string path = folder / "plan.json";
  ProgramResult result = run_windlass(planned_for("nemo", "700MiB", path));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("--for"));
  result = run_windlass(planned_for("megatron", "700MiB", path, {"--search", "exact"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("leave --search out"));
  result = run_windlass(planned_for("megatron", "700MiB", path, {"--allow", "compress"}));
  EXPECT_EQ(result.exit_code, 1);
  result = run_windlass(planned_for("trainer", "1MiB", path));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.out, HasSubstr("least limit"));
}

TEST(HostReserve, IsKeptBackAndPrinted) {
  const Arguments plan = {"plan", kTargetModel, "--seq",        "128", "--batch",  "16",
                          "--on", "4x1080ti",   "--time-limit", "1",   "--effort", "0.02"};
  const auto with = [&](Arguments more) {
    Arguments all = plan;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const auto limit_of = [](const nlohmann::json& said) {
    for (const auto& memory : said["memories"])
      if (memory["name"] == "host") return memory["limit_bytes"].get<int64_t>();
    return int64_t{0};
  };
  const Arguments moved = {"simulate", kTargetModel, "--seq",    "128",        "--batch",
                           "16",       "--on",       "4x1080ti", "--strategy", "offload-all"};
  Arguments all_of_it = moved;
  all_of_it.insert(all_of_it.end(), {"--host-reserve", "0"});
  const int64_t whole = limit_of(windlass_json(all_of_it)), less = limit_of(windlass_json(moved));
  ASSERT_GT(whole, 0);
  EXPECT_NEAR(static_cast<double>(less), 0.85 * static_cast<double>(whole), 2);
  EXPECT_THAT(run_windlass(plan).out, HasSubstr("15 % kept back (--host-reserve)"));
  EXPECT_EQ(windlass_json(with({"--host-reserve", "20"}))["host_reserve_percent"], 20);
  EXPECT_EQ(run_windlass(with({"--host-memory", "10GiB"})).out.find("kept back"),
            std::string::npos);
  EXPECT_EQ(run_windlass(with({"--host-reserve", "100"})).exit_code, 1);
  // A machine that is written to a file is the whole machine.
  EXPECT_EQ(
      windlass_json({"machine", "show", "4x1080ti"})["nodes"][0]["host"]["memory"].get<int64_t>(),
      whole);
}

}  // namespace
}  // namespace windlass

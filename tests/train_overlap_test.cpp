// `windlass train --overlap-steps`, as a user runs it.

#include "tests/small_runs.h"
#include <fmt/format.h>

namespace windlass {
namespace {

using namespace small_runs;
using testing::HasSubstr;

Arguments overlap_arguments(const std::string& strategy, const Arguments& more) {
  return Arguments{
             "train", kModel,   "--on", "local",      "--devices", "2",     "--link-bandwidth",
             "1GB/s", "--data", kText,  "--strategy", strategy,    "--json"} +
         kShape + more;
}

// Everything that is said of steps but what they take.
std::vector<json> without_times(const std::string& out) {
  std::vector<json> steps;
  for (json line : lines_of(out)) {
    if (!line.contains("loss")) continue;
    for (const char* key : {"step_time_s", "samples_per_s", "devices", "host", "peak_bytes"})
      line.erase(key);
    steps.push_back(std::move(line));
  }
  return steps;
}

// With clipping, a learning rate that changes from step to step, evaluations and checkpoints inside
// of what would be a row, and one that is cut short at the end.
TEST(TrainOverlapSlow, RowsTrainTheSame) {
  const ScratchFolder scratch;
  const std::string host_updated = "data-parallel:host-weights=on,host-update=on,bucket=4KiB";
  for (const std::string& strategy : {std::string("harmony:mode=pp,micro=1"), host_updated}) {
    SCOPED_TRACE(strategy);
    // Packs cannot be clipped. What is clipped is updated last, so that much is gained.
    const bool clips = strategy == host_updated;
    const auto run = [&](const std::string& name, const Arguments& more) {
      fs::remove_all(scratch / name);
      Arguments all = {"--steps",
                       "11",
                       "--lr",
                       "3e-3",
                       "--warm-up",
                       "3",
                       "--schedule",
                       "cosine",
                       "--eval-every",
                       "4",
                       "--eval-batches",
                       "1",
                       "--checkpoints",
                       scratch / name,
                       "--checkpoint-every",
                       "5",
                       "--save",
                       scratch / (name + ".safetensors"),
                       "--log",
                       scratch / (name + ".jsonl")};
      if (clips) all = all + Arguments{"--clip", "1"};
      const ProgramResult result = run_windlass(overlap_arguments(strategy, all + more));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return result.out;
    };
    const std::string plain = run("plain", {}), rows = run("rows", {"--overlap-steps", "3"});
    EXPECT_EQ(without_times(rows), without_times(plain));
    EXPECT_EQ(without_times(read(scratch / "rows.jsonl")),
              without_times(read(scratch / "plain.jsonl")));
    EXPECT_TRUE(read(scratch / "rows.safetensors") == read(scratch / "plain.safetensors"));
    for (const std::string& file : files_in(scratch / "plain"))
      EXPECT_TRUE(read(scratch / ("rows/" + file)) == read(scratch / ("plain/" + file))) << file;
    EXPECT_EQ(files_in(scratch / "rows"), files_in(scratch / "plain"));

    const json last = lines_of(rows).back();
    if (clips) {
      EXPECT_EQ(last["overlap"]["steps"], 3) << last["overlap"];
      EXPECT_LT(last["overlap"]["predicted_step_time_s"], last["overlap"]["predicted_alone_s"]);
    }
    EXPECT_FALSE(lines_of(plain).back().contains("overlap"));
    for (size_t d = 0; d < 2; ++d)
      EXPECT_LE(last["measured"]["devices"][d]["peak_bytes"],
                last["predicted"]["devices"][d]["peak_bytes"]);
    EXPECT_EQ(last["measured"]["links"], last["predicted"]["links"]);
  }
}

TEST(TrainOverlapSlow, SaysWhereStepsCannot) {
  const ProgramResult paged = run_windlass(
      overlap_arguments("lru", {"--steps", "2", "--overlap-steps", "2", "--memory", "1MiB"}));
  EXPECT_EQ(paged.exit_code, 0) << paged.err;
  const json overlap = lines_of(paged.out).back()["overlap"];
  EXPECT_EQ(overlap["steps"], 1);
  EXPECT_THAT(overlap["note"].get<std::string>(), HasSubstr("pages"));
  for (const char* steps : {"0", "-1", "65", "many"})
    expect_failure(train({"--overlap-steps", steps}), 1, {"--overlap-steps"});
}

// In words.
TEST(TrainOverlapSlow, SaysWhatIsPredicted) {
  Arguments arguments =
      overlap_arguments("data-parallel:host-weights=on,host-update=on,bucket=4KiB",
                        {"--steps", "4", "--overlap-steps", "2", "--clip", "1"});
  std::erase(arguments, "--json");
  const ProgramResult result = run_windlass(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, testing::AllOf(HasSubstr("steps overlap: in rows of 2, predicted "),
                                         HasSubstr("from the end of the step before it")));
}

}  // namespace
}  // namespace windlass

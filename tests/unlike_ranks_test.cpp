// Ranks that were asked for different runs, and checkpoints of many ranks whose parts do not belong
// together: named before the first step, instead of numbers that nobody asked for.

#include <filesystem>
#include <fstream>
#include <sys/stat.h>

#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;
using namespace rank_runs;
using testing::AllOf;
using testing::HasSubstr;

Words two_ranks(const std::string& strategy, const Words& more) {
  return tiny(strategy, joined({"--threads", "1", "--hosts", "2"}, more));
}

// Rank 0 plans; another rank that was asked for another model or plan would train what it was not
// asked for.
TEST(UnlikeRanks, WhatEachWasAskedForIsCompared) {
  const Words usual = two_ranks("data-parallel", {"--steps", "2"});
  Words model = usual, batch = usual;
  std::ranges::replace(model, kTiny, std::string("gpt2:layers=3,hidden=32,heads=2,vocab=256"));
  std::ranges::replace(batch, std::string("8"), std::string("16"));
  const struct {
    Words unusual;
    std::string message;
  } cases[] = {
      {model, "rank 1 has another model, or flag"},
      {two_ranks("megatron:tp=2", {"--steps", "2"}), "rank 1 has another strategy or machine"},
      {joined(usual, {"--clip", "1"}), "rank 1 has another model, or flag"},
      {batch, "rank 1 has another model, or flag"},
      {joined(usual, {"--optimizer", "sgd"}), "rank 1 has another model, or flag"},
      {joined(usual, {"--freeze", "*wte*"}), "rank 1 has another model, or flag"},
  };
  const size_t tried = hurried() ? 2 : std::size(cases);
  for (size_t i = 0; i < tried; ++i) {
    SCOPED_TRACE(i);
    RankPrograms ranks(2);
    ranks.start(0, usual);
    ranks.start(1, cases[i].unusual);
    for (int rank : {0, 1}) {
      const ProgramResult result = ranks[rank].wait();
      EXPECT_EQ(result.exit_code, 3);
      EXPECT_THAT(result.err, AllOf(HasSubstr(fmt::format("rank {}: comparing settings: ", rank)),
                                    HasSubstr(cases[i].message)));
    }
  }
}

// A file that each reaches by another path is one model, if its content is.
TEST(UnlikeRanks, PathsMayDiffer) {
  const ScratchFolder folder;
  fs::create_directory(folder / "model");
  std::ofstream(folder / "model/config.json")
      << R"({"model_type":"gpt2","n_embd":32,"n_head":2,"vocab_size":256,"n_positions":64,)"
      << R"("n_layer":1})";
  const auto run = [&](const std::string& path) {
    return training(path, {"--seq", "16", "--batch", "8", "--on", "local", "--hosts", "2",
                           "--memory", "64MiB", "--strategy", "data-parallel", "--steps", "2"});
  };
  RankPrograms ranks(2);
  ranks.start(0, run(folder / "model"));
  ranks.start(1, run("./model/"), {.folder = folder / "."});
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

class PartsOfCheckpointsSlow : public testing::Test {
 protected:
  PartsOfCheckpointsSlow() {
    run_well(two_ranks("data-parallel:zero=3", {"--steps", "4", "--checkpoints", folder_ / "kept",
                                                "--checkpoint-every", "2"}));
  }
  Words resume(const std::string& path, const Words& more = {}) const {
    return two_ranks("data-parallel:zero=3", joined({"--steps", "6", "--resume", path}, more));
  }
  static std::string part(const std::string& folder, int number) {
    const std::string end = fmt::format("-0000{}-of-00002.safetensors", number);
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().string().ends_with(end)) return entry.path().string();
    ADD_FAILURE() << "no part " << number << " in " << folder;
    return {};
  }
  // The run goes on from the one before, to the weights of an undisturbed run; by its own name what
  // is damaged is refused.
  void expect_passed_over(const std::string& message) const {
    const ProgramResult result =
        run_windlass(resume(folder_ / "kept", {"--save", folder_ / "resumed"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("passed over: " + newest_), HasSubstr(message),
                                  HasSubstr("going on from " + before_)));
    run_well(two_ranks("data-parallel:zero=3", {"--steps", "6", "--save", folder_ / "straight"}));
    EXPECT_TRUE(bytes_of(folder_ / "straight") == bytes_of(folder_ / "resumed"));
    const ProgramResult named = run_windlass(resume(newest_ + "/model.safetensors.index.json"));
    EXPECT_EQ(named.exit_code, 1);
    EXPECT_THAT(named.err, HasSubstr(message));
  }

  const ScratchFolder folder_;
  const std::string newest_ = folder_ / "kept/checkpoint-00000004";
  const std::string before_ = folder_ / "kept/checkpoint-00000002";
};

TEST_F(PartsOfCheckpointsSlow, OfTwoStepsAreNotOneCheckpoint) {
  fs::copy_file(part(before_, 1), part(newest_, 1), fs::copy_options::overwrite_existing);
  expect_passed_over("are parts of different checkpoints");
}

// What opens a pipe would wait for whoever writes to it.
TEST_F(PartsOfCheckpointsSlow, APipeIsNone) {
  const std::string path = part(newest_, 2);
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  expect_passed_over("not a regular file");
}

}  // namespace
}  // namespace windlass

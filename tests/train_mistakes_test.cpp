// What `windlass train` says to mistakes.

#include "tests/small_runs.h"
#include <fmt/format.h>

namespace windlass {
namespace {

using namespace small_runs;
using testing::HasSubstr;

TEST(TrainSlow, MistakesInDataAreNamed) {
  const ScratchFolder scratch;
  const Arguments model = Arguments{"train", kModel, "--strategy", "single"} + kShape;
  const std::string text = scratch / "short.txt";
  write(text, "sixteen letters.");  // 17 are needed: each has one that follows
  expect_failure(run_windlass(model + Arguments{"--data", text}), 1, {text, "16 tokens", "17"});
  const std::string missing = scratch / "missing.txt";
  expect_failure(run_windlass(model + Arguments{"--data", missing}), 1, {missing, "no such file"});
  expect_failure(run_windlass(model + Arguments{"--data", scratch / ""}), 1,
                 {scratch / "", "MNIST"});
  expect_failure(run_windlass(model + Arguments{"--data", kDigits}), 1, {kDigits, "images"});
  const Arguments narrow = Arguments{"train",      "gpt2:layers=1,hidden=32,heads=2,vocab=64",
                                     "--strategy", "single",
                                     "--data",     kText} +
                           kShape;
  expect_failure(run_windlass(narrow), 1, {kText, "token", "position", "vocabulary of 64"});
  // Labels, too.
  expect_failure(run_windlass({"train", "mlp:hidden=8,layers=2,classes=3", "--batch", "4", "--data",
                               kDigits, "--strategy", "single"}),
                 1, {"labels", "3 classes"});
}

TEST(TrainSlow, MistakesInWeightsAreNamed) {
  const ScratchFolder scratch;
  const std::string weights = scratch / "weights.safetensors";
  ASSERT_EQ(train({"--steps", "1", "--save", weights}).exit_code, 0);
  const auto with = [&](const std::string& model) {
    return run_windlass(
        Arguments{"train", model, "--strategy", "single", "--weights", weights, "--data", kText} +
        kShape);
  };
  expect_failure(with("gpt2:layers=2,hidden=64,heads=2,vocab=256"), 1,
                 {weights, "transformer.", "32", "64"});
  expect_failure(with("gpt2:layers=3,hidden=32,heads=2,vocab=256"), 1,
                 {weights, "has no tensor", "transformer.h.2."});
  expect_failure(train({"--weights", scratch / "none.safetensors"}), 1, {scratch / "none"});
}

TEST(TrainSlow, MistakesInPlansAreNamed) {
  const ScratchFolder scratch;
  const std::string path = scratch / "plan.json";
  plan_json({"-o", path});
  const Arguments run = {"train", path, "--data", kText, "--steps", "1"};
  expect_failure(run_windlass(run + Arguments{"--on", "4x3090"}), 1, {path, "another machine"});
  expect_failure(run_windlass(run + Arguments{"--strategy", "single"}), 1, {path, "--strategy"});
  // What the plan decides cannot be said again.
  expect_failure(run_windlass(run + Arguments{"--batch", "8"}), 1, {path, "--batch"});
  expect_failure(run_windlass(run + Arguments{"--optimizer", "adam"}), 1, {path, "--optimizer"});
  expect_failure(run_windlass(run + Arguments{"--no-fuse"}), 1, {path, "--no-fuse"});
  expect_failure(run_windlass({"simulate", path, "--seq", "8"}), 1, {path, "--seq"});

  std::string text = read(path);
  const size_t at = text.find("hidden=32");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 9, "hidden=64");
  write(path, text);
  expect_failure(run_windlass(run), 1, {path, "another model"});
}

// Before anything is trained.
TEST(TrainSlow, WhatCannotBeWrittenIsNamed) {
  const ScratchFolder scratch;
  const std::string file = scratch / "file";
  write(file, "in the way");
  for (const char* flag : {"--log", "--save", "--trace", "--checkpoints", "--tensorboard"}) {
    const std::string inside = file + "/inside";
    const ProgramResult result = train({"--steps", "2", flag, inside});
    expect_failure(result, 1, {inside});
    EXPECT_EQ(result.out, "") << flag;
  }
  for (const char* flag : {"--save", "--trace"}) {
    const ProgramResult result = train({"--steps", "2", flag, scratch / ""});
    expect_failure(result, 1, {"folder"});
    EXPECT_EQ(result.out, "") << flag;
  }
  expect_failure(train({"--steps", "2", "--log", "/dev/full"}), 3, {"/dev/full", "disk full"});
  // Nothing is left of looking.
  EXPECT_THAT(files_in(scratch / ""), testing::ElementsAre("file"));
}

TEST(TrainSlow, MistakesInFlagsAreNamed) {
  const struct {
    Arguments arguments;
    Arguments parts;
  } cases[] = {
      {{"--steps", "0"}, {"--steps: \"0\" is no number above 0"}},
      {{"--steps", "-3"}, {"--steps"}},
      {{"--steps", "many"}, {"--steps"}},
      {{"--schedule", "cosin"}, {"schedule \"cosin\"", "cosine"}},
      {{"--clip", "-1"}, {"--clip"}},
      {{"--warm-up", "-1"}, {"--warm-up"}},
      {{"--eval-every", "-1"}, {"--eval-every", "from 0 on"}},
      {{"--eval-batches", "0"}, {"--eval-batches"}},
      {{"--checkpoint-every", "5"}, {"--checkpoint-every", "--checkpoints"}},
      {{"--mean", "0,x"}, {"--mean", "\"x\""}},
      {{"--threads", "0"}, {"--threads"}},
      {{"--time-limit", "-1"}, {"--time-limit"}},
  };
  for (const auto& [arguments, parts] : cases) expect_failure(train(arguments), 1, parts);
  expect_failure(run_windlass({"train", kModel, "--strategy", "singel", "--data", kText}), 1,
                 {"singel"});
}

TEST(TrainSlow, WhatDoesNotFitIsNotStarted) {
  const Arguments run = Arguments{"train", kModel, "--data", kText, "--memory", "100KiB"} + kShape;
  expect_failure(run_windlass(run), 2, {"no plan fits 100 KiB", "bytes"});
  expect_failure(run_windlass(run + Arguments{"--strategy", "single"}), 2,
                 {"does not fit", "limit of 100 KiB"});
}

}  // namespace
}  // namespace windlass

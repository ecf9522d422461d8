// Runs that are interrupted, killed or fail, and go on from their checkpoints.

#include <chrono>
#include <csignal>
#include <random>
#include <thread>
#include <unistd.h>

#include "tests/small_runs.h"
#include <fmt/format.h>

namespace windlass {
namespace {

using namespace small_runs;
using testing::HasSubstr;

class CheckpointsSlow : public testing::Test {
 protected:
  // The weights after 12 steps without interruption.
  std::string straight() {
    const std::string path = scratch_ / "straight.safetensors";
    const ProgramResult result = train(kRun + Arguments{"--save", path});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return read(path);
  }
  // The same run, in pieces.
  Arguments pieces() const {
    return kRun + Arguments{"--checkpoints",
                            folder_,
                            "--checkpoint-every",
                            "1",
                            "--resume",
                            folder_,
                            "--save",
                            pieced_,
                            "--log",
                            log_path_};
  }

  inline static const Arguments kRun = {"--steps", "12",         "--lr",   "3e-3",      "--clip",
                                        "1",       "--schedule", "cosine", "--warm-up", "3"};
  ScratchFolder scratch_;
  const std::string folder_ = scratch_ / "run";
  const std::string pieced_ = scratch_ / "pieced.safetensors";
  const std::string log_path_ = scratch_ / "log.csv";
};

TEST_F(CheckpointsSlow, RunsThatWereKilledEndTheSame) {
  const std::string expected = straight();
  std::mt19937 random(7);
  bool done = false;
  // Killed at once, then after a few steps and a little more: also while a checkpoint is written.
  for (int attempt = 0; attempt < 40 && !done; ++attempt) {
    RunningProgram running(train_arguments(pieces()));
    if (attempt > 0) {
      const auto lines = static_cast<int64_t>(1 + random() % 3);
      running.wait_for_lines(lines);
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));
    }
    running.signal(SIGKILL);
    const ProgramResult result = running.wait();
    ASSERT_TRUE(result.exit_code == -1 || result.exit_code == 0) << result.err;
    done = result.exit_code == 0;
    EXPECT_TRUE(attempt > 0 || !done);
  }
  const ProgramResult last = run_windlass(train_arguments(pieces()));
  ASSERT_EQ(last.exit_code, 0) << last.err;
  EXPECT_EQ(read(pieced_), expected);
  // Each step stands in the log once.
  std::istringstream log(read(log_path_));
  std::string row;
  std::getline(log, row);
  for (int step = 1; step <= 12; ++step) {
    ASSERT_TRUE(std::getline(log, row));
    EXPECT_EQ(std::stoi(row), step);
  }
  EXPECT_FALSE(std::getline(log, row));
}

// What a kill in the middle of writing leaves is neither read nor kept.
TEST_F(CheckpointsSlow, UnfinishedFilesAreNotCheckpoints) {
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_}).exit_code, 0);
  const std::string whole = read(folder_ + "/checkpoint-00000002.safetensors");
  write(folder_ + "/checkpoint-00000003.safetensors.a1B2c3", whole.substr(0, whole.size() / 2));
  write(folder_ + "/notes.txt", "mine");
  const ProgramResult result =
      train({"--steps", "4", "--checkpoints", folder_, "--resume", folder_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(lines_of(result.out)[0]["step"], 3);
  EXPECT_THAT(files_in(folder_),
              testing::ElementsAre("checkpoint-00000002.safetensors",
                                   "checkpoint-00000004.safetensors", "notes.txt"));
}

TEST_F(CheckpointsSlow, InterruptsFinishTheStepAndSave) {
  for (const int number : {SIGINT, SIGTERM}) {
    fs::remove_all(folder_);
    const Arguments run = {"--steps", "100000", "--checkpoints", folder_};
    RunningProgram running(train_arguments(run));
    ASSERT_TRUE(running.wait_for_lines(3));
    running.signal(number);
    const ProgramResult result = running.wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("stopped after step"));
    const std::vector<json> lines = lines_of(result.out);
    ASSERT_GE(lines.size(), 4u);
    const int64_t done = lines[lines.size() - 2]["step"];
    EXPECT_EQ(lines.back()["steps"], done);
    EXPECT_THAT(files_in(folder_),
                testing::ElementsAre(fmt::format("checkpoint-{:08}.safetensors", done)));
    const ProgramResult more = train({"--steps", std::to_string(done + 2), "--resume", folder_});
    ASSERT_EQ(more.exit_code, 0) << more.err;
    const ProgramResult all = train({"--steps", std::to_string(done + 2)});
    ASSERT_EQ(all.exit_code, 0) << all.err;
    const std::vector<double> expected = losses_of(all.out), found = losses_of(more.out);
    ASSERT_EQ(found.size(), 2u);
    EXPECT_EQ(found, std::vector<double>(expected.end() - 2, expected.end()));
  }
}

TEST_F(CheckpointsSlow, ARunThatIsDoneSaysSo) {
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_}).exit_code, 0);
  const ProgramResult result = train({"--steps", "2", "--resume", folder_, "--save", pieced_});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["steps"], 2);
  EXPECT_TRUE(fs::exists(pieced_));
}

// A checkpoint is of the model and the optimizer, not of the way they were laid out.
TEST_F(CheckpointsSlow, AnotherStrategyGoesOn) {
  const std::vector<double> expected = trained_losses(train_arguments({"--steps", "4"}));
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_}).exit_code, 0);
  const std::vector<double> found = trained_losses(train_arguments(
      {"--steps", "4", "--resume", folder_}, "single:host-weights=on,host-update=on"));
  EXPECT_EQ(found, std::vector<double>(expected.begin() + 2, expected.end()));
}

// But the batch is cut as before: rounding depends on it.
TEST_F(CheckpointsSlow, ASearchKeepsTheCutOfTheBatch) {
  const std::string cut = "single:micro=1";
  const std::vector<double> all = trained_losses(train_arguments({"--steps", "4"}, cut));
  const std::vector<double> expected(all.begin() + 2, all.end());
  ASSERT_EQ(trained_losses(train_arguments({"--steps", "2", "--checkpoints", folder_}, cut)).size(),
            2u);
  const Arguments run =
      Arguments{"train", kModel, "--data", kText, "--steps", "4", "--json", "--resume", folder_} +
      kShape;
  EXPECT_EQ(trained_losses(run), expected);
  EXPECT_EQ(trained_losses(run + Arguments{"--memory", "600KiB"}), expected);
  // Who names another one is told.
  const ProgramResult other = train({"--steps", "4", "--resume", folder_});
  EXPECT_EQ(other.exit_code, 0);
  EXPECT_THAT(other.err, HasSubstr("with 4 micro-batches"));
  EXPECT_THAT(other.err, HasSubstr("not bit for bit"));
}

TEST_F(CheckpointsSlow, AFullDiskLeavesThePreviousOne) {
  const Arguments run = {"--checkpoints", folder_, "--checkpoint-every", "1", "--resume", folder_};
  ASSERT_EQ(train(Arguments{"--steps", "2"} + run).exit_code, 0);
  const std::vector<std::string> before = files_in(folder_);
  const std::string newest = folder_ + "/checkpoint-00000002.safetensors";
  const std::string kept = read(newest);
  // Checkpoints take 800 kB.
  expect_failure(train(Arguments{"--steps", "12"} + run, {.file_bytes = 400'000}), 3,
                 {"checkpoint-00000003.safetensors", "File too large"});
  EXPECT_EQ(files_in(folder_), before);
  EXPECT_EQ(read(newest), kept);
  const ProgramResult after = train(Arguments{"--steps", "4"} + run);
  EXPECT_EQ(after.exit_code, 0) << after.err;
  EXPECT_EQ(lines_of(after.out)[0]["step"], 3);
}

TEST_F(CheckpointsSlow, DivergenceLeavesTheLastOne) {
  const Arguments run = {"--checkpoints", folder_, "--checkpoint-every", "1", "--resume", folder_};
  ASSERT_EQ(train(Arguments{"--steps", "2"} + run).exit_code, 0);
  const ProgramResult diverged = train(Arguments{"--steps", "9", "--lr", "1e30"} + run);
  expect_failure(diverged, 3, {"the loss is", "nan", "learning rate", "last checkpoint"});
  EXPECT_TRUE(fs::exists(folder_ + "/checkpoint-00000002.safetensors"));
  const ProgramResult after =
      train({"--steps", "4", "--resume", folder_ + "/checkpoint-00000002.safetensors"});
  EXPECT_EQ(losses_of(after.out), [] {
    const std::vector<double> all = trained_losses(train_arguments({"--steps", "4"}));
    return std::vector<double>(all.begin() + 2, all.end());
  }());
}

TEST_F(CheckpointsSlow, OthersAndDamagedOnesAreRefused) {
  const std::string weights = scratch_ / "weights.safetensors";
  ASSERT_EQ(train({"--steps", "2", "--checkpoints", folder_, "--save", weights}).exit_code, 0);
  const std::string newest = folder_ + "/checkpoint-00000002.safetensors";
  const std::string whole = read(newest);
  const Arguments resume = {"--steps", "4", "--resume", folder_};

  const Arguments other = Arguments{"train",      "gpt2:layers=1,hidden=32,heads=2,vocab=256",
                                    "--strategy", "single",
                                    "--data",     kText} +
                          kShape;
  expect_failure(run_windlass(other + resume), 1, {newest, "another model"});
  expect_failure(train(resume + Arguments{"--optimizer", "momentum"}), 1,
                 {newest, "optimizer adam", "momentum"});
  expect_failure(train(resume + Arguments{"--seed", "5"}), 1, {newest, "--seed 0", "5"});
  expect_failure(train({"--resume", weights}), 1, {weights, "--weights"});
  expect_failure(train({"--resume", folder_ + "/none.safetensors"}), 1,
                 {folder_ + "/none.safetensors", "No such file"});

  const std::string damaged = scratch_ / "damaged.safetensors";
  const Arguments from_damaged = {"--steps", "4", "--resume", damaged};
  for (const size_t place : {whole.size() - 100, whole.size() / 2}) {
    std::string flipped = whole;
    flipped[place] = static_cast<char>(flipped[place] ^ 0x10);
    write(damaged, flipped);
    expect_failure(train(from_damaged), 1, {damaged, "check sum differs", "older checkpoint"});
  }
  for (const size_t size : {whole.size() - 1, size_t{5000}, size_t{4}}) {
    write(damaged, whole.substr(0, size));
    expect_failure(train(from_damaged), 1, {damaged});
  }
  // Whatever a byte of the header says then, it is refused or harmless, but no bug.
  std::mt19937 random(3);
  for (int i = 0; i < 3; ++i) {
    std::string flipped = whole;
    flipped[random() % 2000] ^= static_cast<char>(1 << random() % 7);
    write(damaged, flipped);
    const ProgramResult result = train(from_damaged);
    EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 1) << result.err;
  }
}

TEST_F(CheckpointsSlow, ADamagedNewestOneIsPassedOver) {
  const Arguments run = {"--checkpoints", folder_, "--checkpoint-every", "1", "--resume", folder_};
  ASSERT_EQ(train(run + Arguments{"--steps", "2"}).exit_code, 0);
  const std::string first = folder_ + "/checkpoint-00000001.safetensors";
  const std::string newest = folder_ + "/checkpoint-00000002.safetensors";
  std::string bytes = read(newest);
  bytes[bytes.size() - 100] ^= 1;
  write(newest, bytes);
  const ProgramResult result = train(run + Arguments{"--steps", "4", "--save", pieced_});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("passed over: " + newest), HasSubstr("check sum"),
                                HasSubstr("going on from " + first)));
  const std::string whole = scratch_ / "whole.safetensors";
  ASSERT_EQ(train({"--steps", "4", "--save", whole}).exit_code, 0);
  EXPECT_EQ(read(pieced_), read(whole));
}

}  // namespace
}  // namespace windlass

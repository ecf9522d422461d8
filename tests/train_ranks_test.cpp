// `windlass train` in several processes, as a user runs it: the weights of one process, and what
// happens when one of them is lost or is not like the others.

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <memory>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include "windlass/base/test_effort.h"
#include "windlass/base/test_places.h"

namespace windlass {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;

const std::string kRankText = source_folder() + "/examples/data/harbour.txt";
const std::string kTiny = "gpt2:layers=2,hidden=32,heads=2,vocab=256";

Words joined(Words all, const Words& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Words training(const std::string& what, const Words& more) {
  return joined({"train", what, "--data", kRankText, "--lr", "3e-3"}, more);
}

Words tiny(const std::string& strategy, const Words& more) {
  return training(kTiny, joined({"--seq", "16", "--batch", "8", "--on", "local", "--memory",
                                 "64MiB", "--strategy", strategy},
                                more));
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void run_well(const Words& arguments) {
  const ProgramResult result = run_windlass(arguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
}

// Nobody listens there at the moment.
int free_port() {
  const int number = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(bind(number, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(number, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(number);
  return ntohs(address.sin_port);
}

// Ranks as torchrun starts them.
class RankPrograms {
 public:
  explicit RankPrograms(int count) : count_(count), port_(free_port()) {}

  void start(int rank, const Words& arguments, ProgramOptions options = {}) {
    options.environment["RANK"] = std::to_string(rank);
    options.environment["WORLD_SIZE"] = std::to_string(count_);
    options.environment["MASTER_ADDR"] = "127.0.0.1";
    options.environment["MASTER_PORT"] = std::to_string(port_);
    programs_[rank] = std::make_unique<RunningProgram>(arguments, options);
  }
  void start_all(const Words& arguments) {
    for (int rank = 0; rank < count_; ++rank) start(rank, arguments);
  }
  RunningProgram& operator[](int rank) { return *programs_.at(rank); }

 private:
  const int count_, port_;
  std::map<int, std::unique_ptr<RunningProgram>> programs_;
};

TEST(TrainRanks, EndWithTheWeightsOfOneProcess) {
  const ScratchFolder folder;
  const std::vector<std::pair<int, std::string>> ways = {
      {2, "data-parallel"},
      {2, "data-parallel:zero=3,micro-batches=2"},
      {4, "megatron:tp=2,pp=2,micro-batches=2"},
      {4, "data-parallel"},
      {2, "megatron:tp=2"},
      {2, "gpipe:micro-batches=4"},
      {2, "data-parallel:zero=1"},
      {2, "data-parallel:zero=2"},
      {4, "data-parallel:zero=3"},
  };
  const size_t tried = sampled(ways.size());
  for (size_t i = 0; i < tried; ++i) {
    const auto& [count, strategy] = ways[i];
    SCOPED_TRACE(strategy);
    const std::string one = folder / "one", many = folder / "many";
    const std::string number = std::to_string(count);
    run_well(tiny(strategy, {"--steps", "3", "--devices", number, "--save", one}));
    run_well(tiny(strategy, {"--steps", "3", "--hosts", number, "--save", many}));
    EXPECT_TRUE(bytes_of(one) == bytes_of(many));
  }
}

// Packs have one copy of the weights on the host, which is the first process's.
TEST(TrainRanks, AProcessForEachDeviceOfOneHost) {
  const ScratchFolder folder;
  const std::string plan = folder / "plan.json";
  run_well({"plan", kTiny, "--seq", "16", "--batch", "8", "--on", "local", "--devices", "2",
            "--memory", "64MiB", "--search", "harmony", "-o", plan});
  run_well(training(plan, {"--steps", "3", "--save", folder / "one"}));
  run_well(training(plan, {"--steps", "3", "--hosts", "2", "--save", folder / "two"}));
  EXPECT_TRUE(bytes_of(folder / "one") == bytes_of(folder / "two"));
  const ProgramResult wrong = run_windlass(training(plan, {"--steps", "3", "--hosts", "3"}));
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("3 processes: the plan is for 1 host with 2 devices in all"));
}

TEST(TrainRanks, StartedAsByTorchrun) {
  const ScratchFolder folder;
  const Words arguments = tiny("data-parallel", {"--steps", "4", "--hosts", "2"});
  run_well(joined(arguments, {"--save", folder / "own"}));
  RankPrograms ranks(2);
  ranks.start_all(joined(arguments, {"--save", folder / "theirs"}));
  for (int rank = 0; rank < 2; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (rank == 1) {
      EXPECT_EQ(result.out, "");
    }
  }
  EXPECT_TRUE(bytes_of(folder / "own") == bytes_of(folder / "theirs"));
}

// Trains until a rank is lost, which `lose` does after some steps. All others end with exit code 3
// and name it; the last checkpoint is whole: the run goes on from it, in one process, and ends with
// the weights of a run that was not disturbed.
void lose_a_rank(int lost, int number, const std::string& expected) {
  const ScratchFolder folder;
  const Words run = tiny("data-parallel", {"--hosts", "2", "--time-out", "5"});
  RankPrograms ranks(2);
  ranks.start_all(joined(run, {"--steps", "1000000", "--json", "--checkpoints", folder / "kept",
                               "--checkpoint-every", "3"}));
  ASSERT_TRUE(ranks[0].wait_for_lines(8)) << ranks[0].wait().err;
  ranks[lost].signal(number);
  const auto begin = std::chrono::steady_clock::now();
  const ProgramResult other = ranks[1 - lost].wait();
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_THAT(other.err, HasSubstr(expected));
  EXPECT_THAT(other.err, HasSubstr("step "));
  EXPECT_LT(took, std::chrono::seconds(60));
  if (number == SIGSTOP) {
    ranks[lost].signal(SIGCONT);
    const ProgramResult result = ranks[lost].wait();
    EXPECT_EQ(result.exit_code, 3) << result.err;
  }
  ranks[lost].wait();
  run_well(
      tiny("data-parallel", {"--devices", "2", "--steps", "30", "--checkpoints", folder / "whole",
                             "--checkpoint-every", "10", "--save", folder / "undisturbed"}));
  // What was kept may be beyond step 30 on a fast machine: then only that it can be read.
  const ProgramResult resumed =
      run_windlass(tiny("data-parallel", {"--devices", "2", "--steps", "30", "--resume",
                                          folder / "kept", "--save", folder / "resumed"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  if (resumed.out.find("nothing left to do") == std::string::npos) {
    EXPECT_TRUE(bytes_of(folder / "undisturbed") == bytes_of(folder / "resumed"));
  }
}

TEST(TrainRanks, AKilledRankEndsTheRun) { lose_a_rank(1, SIGKILL, "rank 1 is gone"); }
TEST(TrainRanks, ARankThatStopsEndsTheRun) {
  lose_a_rank(1, SIGSTOP, "rank 1 is lost: no sign of life for 5 s");
}
// It keeps the store where all meet.
TEST(TrainRanks, TheFirstRankMayStopToo) { lose_a_rank(0, SIGSTOP, "rank 0"); }

TEST(TrainRanks, ARankThatNeverComesIsNamed) {
  RankPrograms ranks(3);
  const Words run = tiny("data-parallel", {"--hosts", "3"});
  ranks.start(0, run);
  ranks.start(2, run);
  for (int rank : {0, 2}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err,
                AnyOf(HasSubstr("rank 1 of 3 has not come within 30 s"), HasSubstr("meeting")));
  }
}

TEST(TrainRanks, WhoeverDiffersIsNamedByAll) {
  const ScratchFolder folder;
  std::ofstream(folder / "other.txt") << std::string(4000, 'x');
  const std::string plan = folder / "plan.json", other = folder / "other.json";
  const Words planning = {"plan",     kTiny,   "--seq",        "16", "--batch",  "8",
                          "--on",     "local", "--hosts",      "2",  "--memory", "64MiB",
                          "--search", "grid",  "--time-limit", "1"};
  run_well(joined(planning, {"-o", plan}));
  {
    std::string text = bytes_of(plan);
    const size_t at = text.find("\"seed\": 0");
    ASSERT_NE(at, std::string::npos);
    std::ofstream(other) << text.replace(at, 9, "\"seed\": 1");
  }
  const struct {
    Words usual, unusual;
    std::string message;
  } cases[] = {
      {training(plan, {}), training(other, {}), "rank 1 has another plan than rank 0"},
      {training(plan, {}),
       {"train", plan, "--data", folder / "other.txt", "--lr", "3e-3"},
       "rank 1 has another data set than rank 0"},
      {training(plan, {}), training(plan, {"--seed", "7"}), "rank 1 has another seed than rank 0"},
  };
  for (const auto& [usual, unusual, message] : cases) {
    SCOPED_TRACE(message);
    RankPrograms ranks(2);
    ranks.start(0, joined(usual, {"--steps", "2"}));
    ranks.start(1, joined(unusual, {"--steps", "2"}));
    for (int rank : {0, 1}) {
      const ProgramResult result = ranks[rank].wait();
      EXPECT_EQ(result.exit_code, 3);
      EXPECT_THAT(result.err, HasSubstr(message));
    }
  }
}

// The file of a checkpoint is larger than what the disk has left.
TEST(TrainRanks, AFullDiskEndsTheRunOnAllRanks) {
  const ScratchFolder folder;
  const Words run = tiny("data-parallel", {"--hosts", "2", "--steps", "50", "--checkpoints",
                                           folder / "kept", "--checkpoint-every", "2"});
  RankPrograms ranks(2);
  ranks.start(0, run, {.file_bytes = 100'000});
  ranks.start(1, run);
  EXPECT_EQ(ranks[0].wait().exit_code, 3);
  const ProgramResult other = ranks[1].wait();
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_THAT(other.err, HasSubstr("rank 0 has failed: "));
}

// Those that this process starts itself: one is killed, and all start again from the last
// checkpoint.
TEST(TrainRanks, StartAgainFromTheLastCheckpoint) {
  const ScratchFolder folder;
  const auto run = [&](const Words& more) {
    return tiny("data-parallel", joined({"--hosts", "2", "--steps", "40", "--json"}, more));
  };
  run_well(run({"--save", folder / "undisturbed"}));
  RunningProgram disturbed(run({"--save", folder / "disturbed", "--checkpoints", folder / "kept",
                                "--checkpoint-every", "2", "--restarts", "3", "--time-out", "5"}));
  ASSERT_TRUE(disturbed.wait_for_lines(5));
  std::ifstream list("/proc/" + std::to_string(disturbed.pid()) + "/task/" +
                     std::to_string(disturbed.pid()) + "/children");
  int child = 0;
  if (!(list >> child)) GTEST_SKIP() << "the system does not say which processes were started";
  kill(child, SIGKILL);
  const ProgramResult result = disturbed.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("was ended by signal 9"));
  EXPECT_THAT(result.err, HasSubstr("start 2 of 4, from the last checkpoint"));
  EXPECT_TRUE(bytes_of(folder / "undisturbed") == bytes_of(folder / "disturbed"));
}

}  // namespace
}  // namespace windlass

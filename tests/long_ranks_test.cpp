// Several processes that are killed again and again, or paused at random: no step is lost, and the
// weights are those of a run that nobody disturbed.

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <sstream>
#include <thread>

#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <fmt/format.h>

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

using namespace rank_runs;

// As the environment says, for longer tries.
int64_t wanted(const char* name, int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoll(text, nullptr, 10);
}

void pause_for(std::mt19937& random, int64_t least, int64_t most) {
  std::uniform_int_distribution<int64_t> drawn(least, most);
  std::this_thread::sleep_for(std::chrono::microseconds(drawn(random)));
}

Words long_run(const std::string& way, const Words& more) {
  return tiny("data-parallel:zero=1", joined({way, "2", "--threads", "1"}, more));
}

// While they start, while a step runs, while a checkpoint is written.
TEST(KilledRanksSlow, EndWithTheWeightsOfAnUndisturbedRun) {
  const ScratchFolder folder;
  const std::string kept = folder / "kept";
  const int64_t rounds = wanted("WINDLASS_KILL_ROUNDS", hurried() ? 4 : 50);
  const std::string steps = std::to_string(10 + 12 * rounds);
  const Words run = long_run(
      "--hosts", {"--steps", steps, "--json", "--time-out", "5", "--checkpoints", kept,
                  "--checkpoint-every", "1", "--resume", kept, "--save", folder / "disturbed"});
  std::mt19937 random(11);
  for (int64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    RankPrograms ranks(2);
    ranks.start_all(run);
    ranks[0].wait_for_lines(static_cast<int64_t>(random() % 8));
    pause_for(random, 0, 20'000);
    const int killed = static_cast<int>(random() % 2);
    ranks[killed].signal(SIGKILL);
    const ProgramResult gone = ranks[killed].wait(), other = ranks[1 - killed].wait();
    // Whoever had all its steps done has ended before.
    EXPECT_TRUE(gone.exit_code == -1 || gone.exit_code == 0) << gone.err;
    EXPECT_TRUE(other.exit_code == 3 || other.exit_code == 0) << other.err;
  }
  run_well(run);
  run_well(long_run("--devices", {"--steps", steps, "--save", folder / "undisturbed"}));
  EXPECT_TRUE(bytes_of(folder / "undisturbed") == bytes_of(folder / "disturbed"));
}

int64_t resident_bytes(int process) {
  std::ifstream file(fmt::format("/proc/{}/statm", process));
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Below the time-out nobody is lost, and nothing grows.
TEST(PausedRanksSlow, GoOnAsIfNothingWas) {
  const ScratchFolder folder;
  const auto length = std::chrono::seconds(wanted("WINDLASS_SOAK_SECONDS", hurried() ? 8 : 120));
  RankPrograms ranks(2);
  ranks.start_all(long_run(
      "--hosts", {"--steps", "100000000", "--json", "--time-out", "20", "--checkpoints",
                  folder / "kept", "--checkpoint-every", "500", "--save", folder / "paused"}));
  ASSERT_TRUE(ranks[0].wait_for_lines(50)) << ranks[0].wait().err;
  std::mt19937 random(5);
  const auto begin = std::chrono::steady_clock::now();
  int64_t before[2] = {0, 0};
  while (std::chrono::steady_clock::now() < begin + length) {
    const int paused = static_cast<int>(random() % 2);
    ranks[paused].signal(SIGSTOP);
    pause_for(random, 1'000, 1'500'000);
    ranks[paused].signal(SIGCONT);
    pause_for(random, 1'000, 1'000'000);
    for (int rank : {0, 1})
      if (before[rank] == 0 && std::chrono::steady_clock::now() > begin + length / 4)
        before[rank] = resident_bytes(ranks[rank].pid());
  }
  constexpr int64_t kSlack = int64_t{16} << 20;
  for (int rank : {0, 1})
    EXPECT_LT(resident_bytes(ranks[rank].pid()), before[rank] + kSlack) << "rank " << rank;
  ranks[0].signal(SIGTERM);
  const ProgramResult first = ranks[0].wait(), second = ranks[1].wait();
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(second.exit_code, 0) << second.err;
  std::istringstream said(first.err.substr(first.err.find("stopped after step ")));
  std::string word;
  int64_t steps = 0;
  said >> word >> word >> word >> steps;
  ASSERT_GT(steps, 50) << first.err;
  run_well(
      long_run("--devices", {"--steps", std::to_string(steps), "--save", folder / "undisturbed"}));
  EXPECT_TRUE(bytes_of(folder / "undisturbed") == bytes_of(folder / "paused"));
}

}  // namespace
}  // namespace windlass

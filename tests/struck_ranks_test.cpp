// Ranks that are killed or stopped at any time from their start on, many while they start, meet and
// connect: all others end in time and name the one that is lost, and the last checkpoint is whole.
// WINDLASS_STRIKE_SECONDS: for so long, with a line for each; WINDLASS_STRIKE_SEED: others.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "windlass/base/test_effort.h"
#include "windlass/run/checkpoint_folder.h"

namespace windlass {
namespace {

using namespace rank_runs;
using StrikeClock = std::chrono::steady_clock;
using testing::AnyOf;
using testing::HasSubstr;

constexpr double kTimeOut = 4;
// Beyond the time-out: for programs to start, to end what is under way, and for a machine that has
// other work.
constexpr double kMoreSeconds = 20;

// Part of the data is kept for it, so that runs with and without train otherwise.
const Words kEvaluation = {"--eval-every", "4", "--eval-batches", "1"};

struct StruckRun {
  const char* name;
  int ranks;
  const char* strategy;  // empty: packs of layers
};
void PrintTo(const StruckRun& run, std::ostream* out) { *out << run.name; }

int64_t number_of(const char* name, int64_t usual) {
  const char* text = std::getenv(name);
  return text == nullptr ? usual : std::strtoll(text, nullptr, 10);
}

double seconds_since(StrikeClock::time_point begin) {
  return std::chrono::duration<double>(StrikeClock::now() - begin).count();
}

class StruckRanksSlow : public testing::TestWithParam<StruckRun> {
 protected:
  StruckRanksSlow()
      : run_(folder_ / ".", GetParam().ranks, GetParam().strategy),
        random_(static_cast<unsigned>(number_of("WINDLASS_STRIKE_SEED", 1))) {}

  Words disturbed() const {
    return run_.ranks(joined(
        kEvaluation, {"--steps", "100000000", "--json", "--time-out", fmt::format("{}", kTimeOut),
                      "--checkpoints", kept_, "--checkpoint-every", "3", "--resume", kept_}));
  }

  // Three of five in the first two seconds.
  double draw_delay() {
    const bool early = random_() % 5 < 3;
    return std::uniform_real_distribution<double>(early ? 0 : 2, early ? 2 : 5)(random_);
  }

  void expect_end(const std::string& who, const ProgramResult& result, int struck) const {
    EXPECT_EQ(result.exit_code, 3) << who << ": " << result.err;
    EXPECT_THAT(result.err, AnyOf(HasSubstr(fmt::format("rank {}", struck)),
                                  HasSubstr("a rank that has the file where all meet")))
        << who;
  }

  // As torchrun starts them. Returns how long the last one took.
  double strike_one_of(int struck, int signal, double delay) {
    const int count = GetParam().ranks;
    RankPrograms ranks(count);
    ranks.start_all(disturbed());
    std::this_thread::sleep_for(std::chrono::duration<double>(delay));
    ranks[struck].signal(signal);
    const auto begin = StrikeClock::now();
    for (int rank = 0; rank < count; ++rank)
      if (rank != struck) expect_end(fmt::format("rank {}", rank), ranks[rank].wait(), struck);
    const double took = seconds_since(begin);
    // It was asleep while the others ended; what it finds is nobody.
    ranks[struck].signal(SIGCONT);
    if (signal == SIGSTOP) {
      EXPECT_EQ(ranks[struck].wait().exit_code, 3);
    }
    return took;
  }

  // Those that a run starts itself. Without a value: there was none yet.
  std::optional<double> strike_a_child(int struck, int signal, double delay) {
    RunningProgram all(disturbed());
    std::this_thread::sleep_for(std::chrono::duration<double>(delay));
    const std::vector<int> children = children_of(all.pid());
    if (children.size() <= static_cast<size_t>(struck)) return std::nullopt;
    kill(children[static_cast<size_t>(struck)], signal);
    const auto begin = StrikeClock::now();
    expect_end("all", all.wait(), struck);
    return seconds_since(begin);
  }

  // One process goes on from what there is, to the weights of an undisturbed run.
  void expect_whole() {
    if (!std::filesystem::exists(kept_)) return;
    const FoundCheckpoint found = find_checkpoint(kept_);
    if (found.path.empty()) return;
    EXPECT_TRUE(found.passed_over.empty()) << found.passed_over[0];
    const std::string digits = found.path.substr(found.path.find("checkpoint-") + 11, 8);
    const std::string steps = std::to_string(std::stoll(digits) + 1);
    run_well(run_.alone(
        joined(kEvaluation, {"--steps", steps, "--resume", kept_, "--save", folder_ / "resumed"})));
    run_well(run_.alone(joined(kEvaluation, {"--steps", steps, "--save", folder_ / "straight"})));
    EXPECT_TRUE(bytes_of(folder_ / "straight") == bytes_of(folder_ / "resumed"));
  }

  const ScratchFolder folder_;
  const std::string kept_ = folder_ / "kept";
  const SmallRun run_;
  std::mt19937 random_;
};

TEST_P(StruckRanksSlow, EndInTime) {
  const double length = static_cast<double>(number_of("WINDLASS_STRIKE_SECONDS", 0));
  const int least = hurried() ? 3 : 12;
  const auto begin = StrikeClock::now();
  double slowest = 0;
  for (int round = 0; round < least || seconds_since(begin) < length; ++round) {
    const int struck = static_cast<int>(random_() % static_cast<unsigned>(GetParam().ranks));
    const int signal = random_() % 2 == 0 ? SIGKILL : SIGSTOP;
    const bool children = random_() % 3 == 0;
    const double delay = draw_delay();
    const std::string what = fmt::format(
        "{}: rank {} of {} {} after {:.3f} s{}", GetParam().name, struck, GetParam().ranks,
        signal == SIGKILL ? "killed" : "stopped", delay, children ? ", of --hosts" : "");
    SCOPED_TRACE(what);
    const std::optional<double> took =
        children ? strike_a_child(struck, signal, delay) : strike_one_of(struck, signal, delay);
    if (length > 0 && took) {
      fmt::print("{}: all ended after {:.1f} s\n", what, *took);
      std::fflush(stdout);  // what is left in it programs would print again
    }
    EXPECT_LT(took.value_or(0), kTimeOut + kMoreSeconds);
    slowest = std::max(slowest, took.value_or(0));
  }
  if (length > 0) fmt::print("{}: at most {:.1f} s\n", GetParam().name, slowest);
  expect_whole();
}

// Each fourth is part of `make test`.
INSTANTIATE_TEST_SUITE_P(
    Ways, StruckRanksSlow,
    testing::Values(StruckRun{"dp", 2, "data-parallel"}, StruckRun{"tp", 2, "megatron:tp=2"},
                    StruckRun{"pp", 2, "gpipe:micro-batches=4"}, StruckRun{"packs", 2, ""},
                    StruckRun{"tp x pp", 4, "megatron:tp=2,pp=2,micro-batches=2"},
                    StruckRun{"ZeRO-3", 2, "data-parallel:zero=3"},
                    StruckRun{"ZeRO-3 of four", 4, "data-parallel:zero=3"},
                    StruckRun{"packs of four", 4, ""}));

}  // namespace
}  // namespace windlass

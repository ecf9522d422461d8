// `windlass train` in several processes, as a user runs it: the weights of one process, and what
// happens when one of them is lost or is not like the others.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

using namespace rank_runs;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;

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

// Addresses of a process's sockets in a state, as the system has them: "0100007F:8F5C" is a port of
// 127.0.0.1.
constexpr const char* kConnected = "01";
constexpr const char* kListening = "0A";
std::set<std::string> addresses_of(int process, const std::string& state) {
  std::set<std::string> own, found;
  std::error_code ignored;
  const std::string folder = "/proc/" + std::to_string(process);
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd", ignored))
    own.insert(std::filesystem::read_symlink(entry.path(), ignored).string());
  for (const char* family : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream table(folder + family);
    std::string line;
    while (std::getline(table, line)) {
      std::istringstream words(line);
      std::vector<std::string> word(10);
      for (std::string& one : word) words >> one;
      if (word[3] == state && own.contains("socket:[" + word[9] + "]")) found.insert(word[1]);
    }
  }
  return found;
}

// Of local processes no other host reaches a port: Gloo listens on loopback while they connect, and
// there they talk.
TEST(ListeningRanks, LocalProcessesKeepToLoopback) {
  RunningProgram run(tiny("data-parallel", {"--hosts", "2", "--steps", "1000000", "--json"}));
  std::set<std::string> listening, connected;
  // Until both talk, and a while longer.
  for (int look = 0, talked = 0; look < 12'000 && talked < 20; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::vector<int> all = children_of(run.pid());
    all.push_back(run.pid());
    for (int process : all) {
      listening.merge(addresses_of(process, kListening));
      connected.merge(addresses_of(process, kConnected));
    }
    if (!connected.empty()) ++talked;
  }
  ASSERT_FALSE(connected.empty()) << run.wait().err;
  for (const std::string& address : connected) EXPECT_THAT(address, StartsWith("0100007F:"));
  for (const std::string& address : listening) EXPECT_THAT(address, StartsWith("0100007F:"));
  // Once they train, they end when they are asked to.
  ASSERT_TRUE(run.wait_for_lines(2)) << run.wait().err;
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait().exit_code, 0);
}

// Trains until a rank is lost, which `lose` does after some steps. All others end with exit code 3
// and name it; the last checkpoint is whole: the run goes on from it, in one process, and ends with
// the weights of a run that was not disturbed.
void lose_a_rank(int lost, int number, const std::string& expected) {
  const ScratchFolder folder;
  const Words run = tiny("data-parallel", {"--hosts", "2", "--time-out", "3"});
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

TEST(LostRanks, AKilledRankEndsTheRun) { lose_a_rank(1, SIGKILL, "rank 1 is gone"); }
TEST(StoppedRanks, ARankThatStopsEndsTheRun) {
  lose_a_rank(1, SIGSTOP, "rank 1 is lost: no sign of life for 3 s");
}
// It keeps the store where all meet.
TEST(StoppedRanks, TheFirstRankMayStopToo) { lose_a_rank(0, SIGSTOP, "rank 0"); }

TEST(MissingRanks, ARankThatNeverComesIsNamed) {
  RankPrograms ranks(3);
  const Words run = tiny("data-parallel", {"--hosts", "3"});
  ranks.start(0, run);
  ranks.start(2, run);
  for (int rank : {0, 2}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, AnyOf(HasSubstr("rank 1 of 3 has not come within 25 s"),
                                  HasSubstr("where all meet, is gone")));
  }
}

// Nobody waits for those who cannot come.
TEST(DifferentRanks, SlipsOfWhoeverStartsThemAreNamedAtOnce) {
  const Words run = tiny("data-parallel", {"--hosts", "2", "--steps", "2"});
  {
    RankPrograms ranks(2);
    ranks.start(0, run);
    ranks.start(1, run, {}, {{"WORLD_SIZE", "3"}});
    const ProgramResult first = ranks[0].wait(), second = ranks[1].wait();
    EXPECT_EQ(first.exit_code, 3);
    EXPECT_EQ(second.exit_code, 3);
    EXPECT_THAT(first.err, HasSubstr("rank 1 was started as one of 3 ranks, this rank 0 as one "));
    EXPECT_THAT(second.err, HasSubstr("rank 0 was started as one of 2 ranks, this rank 1 as one "));
  }
  RankPrograms ranks(3);
  ranks.start(0, run);
  ranks.start(1, run);
  ranks.start(2, run, {}, {{"RANK", "1"}});
  int named = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    named += result.err.find("two processes were started as rank 1") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(named, 3);
}

TEST(DifferentRanks, WhoeverDiffersIsNamedByAll) {
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

// Each has a file of that name on its own disk.
TEST(DifferentRanks, AnotherModelFileIsNamedByAll) {
  const ScratchFolder folder;
  const auto write_model = [&](const std::string& place, int layers) {
    std::filesystem::create_directories(folder / (place + "/model"));
    std::ofstream(folder / (place + "/model/config.json"))
        << R"({"model_type":"gpt2","n_embd":32,"n_head":2,"vocab_size":256,"n_positions":64,)"
        << "\"n_layer\":" << layers << "}";
  };
  write_model("here", 2);
  write_model("there", 3);
  const Words run =
      training("model", {"--seq", "16", "--batch", "8", "--on", "local", "--hosts", "2", "--memory",
                         "64MiB", "--strategy", "data-parallel", "--steps", "2"});
  RankPrograms ranks(2);
  ranks.start(0, run, {.folder = folder / "here"});
  ranks.start(1, run, {.folder = folder / "there"});
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("another model file than rank 0"));
    EXPECT_THAT(result.err, HasSubstr("rank 1"));
  }
}

// The file of a checkpoint is larger than what the disk has left.
TEST(LostRanks, AFullDiskEndsTheRunOnAllRanks) {
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

// One of the processes that a run starts itself is killed after some steps; the run must end well.
// Returns what it says; nothing if the system does not say which processes they are.
std::optional<std::string> with_a_child_killed(const Words& run) {
  RunningProgram disturbed(run);
  EXPECT_TRUE(disturbed.wait_for_lines(5));
  const int child = first_child(disturbed.pid());
  if (child == 0) return std::nullopt;
  kill(child, SIGKILL);
  const ProgramResult result = disturbed.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.err;
}

// Those that this process starts itself: one is killed, and all start again from the last
// checkpoint.
TEST(LostRanks, StartAgainFromTheLastCheckpoint) {
  const ScratchFolder folder;
  const auto run = [&](const Words& more) {
    return tiny("data-parallel", joined({"--hosts", "2", "--steps", "40", "--json"}, more));
  };
  run_well(run({"--save", folder / "undisturbed"}));
  const auto said =
      with_a_child_killed(run({"--save", folder / "disturbed", "--checkpoints", folder / "kept",
                               "--checkpoint-every", "2", "--restarts", "3", "--time-out", "5"}));
  if (!said) GTEST_SKIP() << "the system does not say which processes were started";
  EXPECT_THAT(*said, HasSubstr("was ended by signal 9"));
  EXPECT_THAT(*said, HasSubstr("start 2 of 4, from the last checkpoint"));
  EXPECT_TRUE(bytes_of(folder / "undisturbed") == bytes_of(folder / "disturbed"));
}

// What a run of two wrote is gone on from by one process, by two and by four, each with its own
// form of checkpoint; parts are files of both ranks, and an index that names them.
TEST(TrainRanks, CheckpointsAreWrittenByAllAndReadByAnyNumber) {
  namespace fs = std::filesystem;
  const ScratchFolder folder;
  const std::string strategy = "data-parallel:zero=3", kept = folder / "kept";
  run_well(tiny(strategy, {"--hosts", "2", "--steps", "4", "--checkpoints", kept,
                           "--checkpoint-every", "2"}));
  const std::string newest = kept + "/checkpoint-00000004";
  const nlohmann::json index =
      nlohmann::json::parse(bytes_of(newest + "/model.safetensors.index.json"));
  std::set<std::string> parts;
  int64_t bytes = 0;
  for (const auto& item : index["weight_map"].items()) parts.insert(item.value());
  for (const auto& entry : fs::directory_iterator(newest))
    if (entry.path().extension() == ".safetensors")
      bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(parts.size(), 2u);
  EXPECT_TRUE(index["weight_map"].contains("transformer.wte.weight"));
  EXPECT_GT(bytes, index["metadata"]["total_size"].get<int64_t>());
  for (const std::string& part : parts) {
    EXPECT_GT(fs::file_size(newest + "/" + part), static_cast<uintmax_t>(bytes) / 4);
    EXPECT_THAT(bytes_of(newest + "/" + part), HasSubstr("\"format\":\"pt\""));
  }
  run_well(tiny(strategy, {"--devices", "2", "--steps", "8", "--save", folder / "straight"}));
  for (const Words& way : {Words{"--devices", "2"}, Words{"--hosts", "2"}}) {
    const std::string copy = folder / "copy";
    fs::remove_all(copy);
    fs::copy(kept, copy, fs::copy_options::recursive);
    run_well(tiny(strategy, joined(way, {"--steps", "8", "--resume", copy, "--checkpoints", copy,
                                         "--save", folder / "resumed"})));
    EXPECT_TRUE(bytes_of(folder / "straight") == bytes_of(folder / "resumed")) << way[0];
  }
  // Another number of ranks rounds its sums in another way, from the same place.
  for (const Words& way : {Words{"--devices", "4"}, Words{"--hosts", "4"}})
    run_well(tiny("data-parallel", joined(way, {"--steps", "6", "--resume", kept, "--save",
                                                folder / ("four" + way[0])})));
  EXPECT_TRUE(bytes_of(folder / "four--devices") == bytes_of(folder / "four--hosts"));
}

// The newest is damaged, and one after it unfinished: the run goes on from the one before, says so,
// and ends with the weights of an undisturbed one. What was left unfinished goes.
TEST(TrainRanks, DamagedPartsArePassedOver) {
  namespace fs = std::filesystem;
  const ScratchFolder folder;
  const std::string kept = folder / "kept";
  run_well(tiny("data-parallel", {"--hosts", "2", "--steps", "4", "--checkpoints", kept,
                                  "--checkpoint-every", "2"}));
  fs::copy(kept + "/checkpoint-00000004", kept + "/checkpoint-00000006");
  fs::remove(kept + "/checkpoint-00000006/model.safetensors.index.json");
  for (const auto& entry : fs::directory_iterator(kept + "/checkpoint-00000004"))
    if (entry.path().extension() == ".safetensors") {
      fs::resize_file(entry.path(), entry.file_size() - 4);
      break;
    }
  const ProgramResult result =
      run_windlass(tiny("data-parallel", {"--hosts", "2", "--steps", "8", "--resume", kept,
                                          "--checkpoints", kept, "--save", folder / "resumed"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("passed over: " + kept + "/checkpoint-00000004"));
  EXPECT_THAT(result.err, HasSubstr("going on from " + kept + "/checkpoint-00000002"));
  EXPECT_FALSE(fs::exists(kept + "/checkpoint-00000006"));
  run_well(
      tiny("data-parallel", {"--devices", "2", "--steps", "8", "--save", folder / "straight"}));
  EXPECT_TRUE(bytes_of(folder / "straight") == bytes_of(folder / "resumed"));
}

TEST(TrainRanks, StartedByMpirun) {
  if (!std::filesystem::exists("/usr/bin/mpirun")) GTEST_SKIP() << "no mpirun here";
  const ScratchFolder folder;
  const Words run = tiny("data-parallel", {"--steps", "4", "--hosts", "2"});
  run_well(joined(run, {"--save", folder / "own"}));
  Words words = {"--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2",
                 program_path()};
  RunningProgram programs(joined(words, joined(run, {"--save", folder / "theirs"})),
                          {.program = "/usr/bin/mpirun",
                           .environment = {{"MASTER_PORT", std::to_string(free_port())}}});
  const ProgramResult result = programs.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(bytes_of(folder / "own") == bytes_of(folder / "theirs"));
}

// A rank is killed, and the others go on without its host: from the last checkpoint, with a plan
// for what is left.
TEST(LostRanks, FewerHostsGoOn) {
  const ScratchFolder folder;
  const std::string kept = folder / "kept";
  const auto run = [&](const Words& more) {
    return tiny("data-parallel", joined({"--threads", "1", "--steps", "40", "--json"}, more));
  };
  const auto said = with_a_child_killed(run(
      {"--hosts", "2", "--save", folder / "disturbed", "--checkpoints", kept, "--checkpoint-every",
       "40", "--restarts", "1", "--least-hosts", "1", "--time-out", "5"}));
  if (!said) GTEST_SKIP() << "the system does not say which processes were started";
  EXPECT_THAT(*said, HasSubstr("start 2 of 2, with 1 host, from the last checkpoint"));
  // It was killed before the first one: all of it is what one host does.
  run_well(run({"--save", folder / "one"}));
  EXPECT_TRUE(bytes_of(folder / "one") == bytes_of(folder / "disturbed"));
}

}  // namespace
}  // namespace windlass

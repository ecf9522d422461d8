// `windlass machine probe` in several processes, as a user runs it, and what becomes of the file.

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/host_network.h"
#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>

namespace windlass {
namespace {

using namespace rank_runs;
using nlohmann::json;
using testing::HasSubstr;

const Words kProbe = {"machine", "probe"};

void write_file(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

// Of a machine file that several processes have found: hosts in all, and where the network's
// figures come from.
void expect_hosts(const std::string& text, int64_t hosts) {
  const json machine = json::parse(text, nullptr, false);
  ASSERT_TRUE(machine.is_object()) << text;
  int64_t found = 0;
  for (const json& node : machine["nodes"]) found += node["count"].get<int64_t>();
  EXPECT_EQ(found, hosts);
  EXPECT_GT(machine["network"]["bandwidth"].get<double>(), 0);
  EXPECT_GT(machine["network"]["latency"].get<double>(), 0);
  EXPECT_THAT(machine["description"].get<std::string>(),
              HasSubstr(fmt::format("measured between {} processes over c10d", hosts)));
}

// Processes of this host, and a plan and a training run on what they found.
TEST(ProbeRanks, TheFileIsPlannedForAndTrainedOn) {
  const ScratchFolder folder;
  const std::string file = folder / "two.json", plan = folder / "plan.json";
  const ProgramResult probed =
      run_windlass(joined(kProbe, {"--hosts", "2", "--devices", "1", "--memory", "64MiB"}));
  ASSERT_EQ(probed.exit_code, 0) << probed.err;
  expect_hosts(probed.out, 2);
  write_file(file, probed.out);
  run_well({"machine", "show", file});
  const Words model = {kTiny, "--seq", "16", "--batch", "8", "--on", file};
  run_well(joined(joined({"plan"}, model), {"-o", plan}));
  const Words how = {"--data", kRankText, "--lr", "3e-3", "--steps", "3"};
  run_well(joined(joined({"train", plan}, how), {"--hosts", "2"}));
  // The same strategy on the file, by two processes and by one.
  const Words parallel = joined(joined({"train"}, model), {"--strategy", "data-parallel"});
  run_well(joined(joined(parallel, how), {"--hosts", "2", "--save", folder / "two"}));
  run_well(joined(joined(parallel, how), {"--save", folder / "one"}));
  EXPECT_TRUE(bytes_of(folder / "one") == bytes_of(folder / "two"));
}

TEST(ProbeRanks, StartedAsByTorchrun) {
  RankPrograms ranks(3);
  ranks.start_all(kProbe);
  for (int rank = 0; rank < 3; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (rank == 0)
      expect_hosts(result.out, 3);
    else
      EXPECT_EQ(result.out, "");
  }
}

TEST(ProbeRanks, StartedByMpirun) {
  if (!std::filesystem::exists("/usr/bin/mpirun")) GTEST_SKIP() << "no mpirun here";
  ProgramOptions options;
  options.program = "/usr/bin/mpirun";
  options.environment["MASTER_PORT"] = std::to_string(free_port());
  const ProgramResult result = run_windlass(
      joined({"--allow-run-as-root", "--oversubscribe", "-n", "2", program_path()}, kProbe),
      options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_hosts(result.out, 2);
}

// Each namespace is a host of its own; the one behind the narrow link has a connection of its own
// in the file, of at most what the link lets through.
TEST(ProbeHosts, ASlowHostIsSeen) {
  HostNetwork network(3);
  SKIP_WITHOUT(network);
  if (!network.slow(2, "8mbit")) GTEST_SKIP() << "links cannot be made slower here";
  RankPrograms ranks(3, HostNetwork::address(0));
  network.start_all(ranks, kProbe);
  std::string text, notes;
  for (int rank = 0; rank < 3; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (rank == 0) text = result.out, notes = result.err;
  }
  expect_hosts(text, 3);
  const json machine = json::parse(text);
  EXPECT_EQ(machine["name"], "cluster");
  EXPECT_THAT(notes, HasSubstr("ranks 0 and 2 share a computer, but not its network"));
  const json& last = machine["nodes"].back();
  ASSERT_TRUE(last.contains("network")) << text;
  EXPECT_LE(last["network"]["bandwidth"].get<double>(), 1.2e6);  // 8 Mbit/s are 1 MB/s
  EXPECT_GT(machine["network"]["bandwidth"].get<double>(), 1.2e6);
}

// A process for each of two devices of a host: the first of each host measures.
TEST(ProbeHosts, SeveralProcessesOfAHostAreItsDevices) {
  HostNetwork network(2);
  SKIP_WITHOUT(network);
  RankPrograms ranks(4, HostNetwork::address(0));
  for (int rank = 0; rank < 4; ++rank) network.start_at(ranks, rank, rank / 2, kProbe);
  std::string text;
  for (int rank = 0; rank < 4; ++rank) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (rank == 0) text = result.out;
  }
  expect_hosts(text, 2);
  for (const json& node : json::parse(text)["nodes"]) EXPECT_EQ(node["devices"][0]["count"], 2);
  // The other way round they would not stand where the machine has them.
  RankPrograms mixed(4, HostNetwork::address(0));
  for (int rank = 0; rank < 4; ++rank) network.start_at(mixed, rank, rank % 2, kProbe);
  for (int rank = 0; rank < 4; ++rank) {
    const ProgramResult result = mixed[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("number the processes of a host one behind the other"));
  }
}

TEST(ProbeRanks, MistakesAreTold) {
  const ProgramResult share = run_windlass(joined(kProbe, {"--hosts", "2", "--memory", "50%"}));
  EXPECT_EQ(share.exit_code, 1);
  EXPECT_THAT(share.err, HasSubstr("--memory 50%: a probe takes bytes"));
  RankPrograms ranks(2);
  ranks.start(0, joined(kProbe, {"--devices", "2"}));
  ranks.start(1, joined(kProbe, {"--devices", "1"}));
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, HasSubstr("rank 1 has another memory, number of devices"));
    EXPECT_EQ(result.out, "");
  }
  RankPrograms more(2);
  more.start_all(joined(kProbe, {"--hosts", "3"}));
  for (int rank : {0, 1}) {
    const ProgramResult result = more[rank].wait();
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, HasSubstr("--hosts 3: 2 processes were started"));
  }
}

// A link that is so slow that the probe takes a while, in the midst of which a rank is lost.
TEST(ProbeHosts, ALostRankEndsTheProbe) {
  for (int number : {SIGKILL, SIGSTOP}) {
    HostNetwork network(2);
    SKIP_WITHOUT(network);
    if (!network.slow(1, "100kbit")) GTEST_SKIP() << "links cannot be made slower here";
    RankPrograms ranks(2, HostNetwork::address(0));
    network.start_all(ranks, joined(kProbe, {"--time-out", "4"}));
    std::this_thread::sleep_for(std::chrono::seconds(4));
    ranks[1].signal(number);
    const ProgramResult other = ranks[0].wait();
    EXPECT_EQ(other.exit_code, 3);
    EXPECT_THAT(other.err, testing::AnyOf(HasSubstr("rank 1"), HasSubstr("ranks 0 and 1")));
    EXPECT_EQ(other.out, "");
    ranks[1].signal(SIGKILL);
  }
}

}  // namespace
}  // namespace windlass

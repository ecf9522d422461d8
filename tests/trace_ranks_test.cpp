// Traces and sums of runs in several processes, as a user asks for them.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <set>

#include "tests/host_network.h"
#include "tests/rank_programs.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>

#include "windlass/base/test_effort.h"

namespace windlass {
namespace {

using namespace rank_runs;
using nlohmann::json;

struct TraceSlice {
  double start = 0, end = 0;  // microseconds
  std::string category;
};

// By process of the trace ("node0.cpu0: measured"), then by task.
using TraceSlices = std::map<std::string, std::map<int64_t, TraceSlice>>;

TraceSlices slices_of(const json& trace) {
  std::map<int64_t, std::string> names;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("name") == "process_name") names[event.at("pid")] = event.at("args").at("name");
  TraceSlices slices;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event.at("args").contains("task")) {
      const double start = event.at("ts");
      slices[names.at(event.at("pid"))][event.at("args").at("task")] = {
          start, start + event.at("dur").get<double>(), event.at("cat")};
    }
  return slices;
}

std::set<int64_t> tasks_of(const TraceSlices& slices, const std::string& process) {
  std::set<int64_t> tasks;
  const auto found = slices.find(process);
  if (found != slices.end())
    for (const auto& [task, slice] : found->second) tasks.insert(task);
  return tasks;
}

// Each device has measured what was predicted of it, however many processes there were.
void expect_all_devices(const TraceSlices& slices, int devices) {
  for (int i = 0; i < devices; ++i) {
    const std::string name = "node" + std::to_string(i) + ".cpu0";
    SCOPED_TRACE(name);
    EXPECT_FALSE(tasks_of(slices, name + ": predicted").empty());
    EXPECT_EQ(tasks_of(slices, name + ": predicted"), tasks_of(slices, name + ": measured"));
  }
}

// What two devices add up together neither has before the other has begun.
void expect_in_turn(const TraceSlices& slices, double error_us) {
  const auto& first = slices.at("node0.cpu0: measured");
  const auto& second = slices.at("node1.cpu0: measured");
  size_t together = 0;
  for (const auto& [task, slice] : first) {
    const auto other = second.find(task);
    if (other == second.end() || (slice.category != "reduce" && slice.category != "collective"))
      continue;
    ++together;
    EXPECT_GE(slice.end + error_us, other->second.start) << task;
    EXPECT_GE(other->second.end + error_us, slice.start) << task;
  }
  EXPECT_GT(together, 0u);
}

TEST(TraceRanks, HaveTheTasksOfAllProcesses) {
  const ScratchFolder folder;
  const std::string path = folder / "trace.json";
  run_well(tiny("data-parallel", {"--steps", "4", "--hosts", "2", "--trace", path}));
  const TraceSlices two = slices_of(json::parse(bytes_of(path)));
  expect_all_devices(two, 2);
  expect_in_turn(two, 0.001);  // one clock, and times to the nanosecond
  run_well(tiny("megatron:tp=2,pp=2,micro-batches=2",
                {"--steps", "4", "--hosts", "4", "--trace", path}));
  expect_all_devices(slices_of(json::parse(bytes_of(path))), 4);
}

// Hosts of their own have clocks of their own, and say what these may be apart.
TEST(TraceHosts, StateTheErrorOfTheirClocks) {
  const HostNetwork network(2);
  SKIP_WITHOUT(network);
  const ScratchFolder folder;
  const std::string path = folder / "trace.json";
  RankPrograms ranks(2, HostNetwork::address(0));
  network.start_all(ranks,
                    tiny("data-parallel", {"--steps", "4", "--hosts", "2", "--trace", path}));
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const json trace = json::parse(bytes_of(path));
  const double error = trace.at("otherData").at("clock_error_s");
  EXPECT_GT(error, 0);
  expect_all_devices(slices_of(trace), 2);
  expect_in_turn(slices_of(trace), error * 1e6 + 0.001);
}

// The numbers of a file of fp32 weights.
std::vector<float> numbers_of(const std::string& path) {
  const std::string bytes = bytes_of(path);
  uint64_t header = 0;
  if (bytes.size() < sizeof(header)) return {};
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header > bytes.size() - sizeof(header)) return {};
  std::vector<float> numbers((bytes.size() - sizeof(header) - header) / sizeof(float));
  std::memcpy(numbers.data(), bytes.data() + sizeof(header) + header,
              numbers.size() * sizeof(float));
  return numbers;
}

// Adding up in another order changes the last bits: plain gradient descent carries them on as they
// are. All ranks still have the same weights, or their checkpoints would not fit together.
TEST(FastSums, AgreeToRounding) {
  const ScratchFolder folder;
  const std::vector<std::pair<int, std::string>> ways = {
      {2, "data-parallel"}, {4, "data-parallel"}, {4, "megatron:tp=2,pp=2,micro-batches=2"}};
  for (const auto& [count, strategy] : ways) {
    if (hurried() && strategy == "data-parallel" && count == 4) continue;
    SCOPED_TRACE(strategy);
    const std::string number = std::to_string(count);
    const Words how = {"--optimizer", "sgd", "--steps", "4", "--eval-every", "2"};
    run_well(tiny(strategy, joined(how, {"--devices", number, "--save", folder / "one"})));
    run_well(
        tiny(strategy, joined(how, {"--hosts", number, "--fast-sums", "--save", folder / "many"})));
    const std::vector<float> one = numbers_of(folder / "one"), many = numbers_of(folder / "many");
    ASSERT_EQ(one.size(), many.size());
    ASSERT_GT(one.size(), 1000u);
    double most = 0, apart = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(one[i])));
      apart = std::max(apart, std::abs(static_cast<double>(one[i]) - many[i]));
    }
    EXPECT_LE(apart, 1e-5 * most);
  }
}

TEST(FastSums, AllRanksMustWantThem) {
  RankPrograms ranks(2);
  const Words run = tiny("data-parallel", {"--steps", "2", "--hosts", "2"});
  ranks.start(0, run);
  ranks.start(1, joined(run, {"--fast-sums"}));
  for (int rank : {0, 1}) {
    const ProgramResult result = ranks[rank].wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_THAT(result.err, testing::HasSubstr("rank 1 has another way to add up (--fast-sums)"));
  }
}

// A rank that is killed or stops in the midst of them ends the run as it does without.
TEST(FastSums, ALostRankEndsTheRun) {
  for (int number : {SIGKILL, SIGSTOP})
    for (int lost : {0, 1}) {
      if (hurried() && lost != (number == SIGKILL ? 1 : 0)) continue;
      RankPrograms ranks(2);
      ranks.start_all(tiny("data-parallel", {"--hosts", "2", "--time-out", "3", "--steps",
                                             "1000000", "--json", "--fast-sums"}));
      ASSERT_TRUE(ranks[0].wait_for_lines(8)) << ranks[0].wait().err;
      ranks[lost].signal(number);
      const ProgramResult other = ranks[1 - lost].wait();
      EXPECT_EQ(other.exit_code, 3);
      EXPECT_THAT(other.err, testing::HasSubstr("step "));
      EXPECT_THAT(other.err, testing::HasSubstr("rank"));
      ranks[lost].signal(SIGKILL);
    }
}

}  // namespace
}  // namespace windlass

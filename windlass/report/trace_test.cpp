#include "windlass/report/trace.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"
#include "windlass/sim/reference/random_tasks.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

SimulatedStep random_step(uint64_t seed, size_t tasks) {
  RandomTasks random = training_like_tasks(seed, tasks, 3, 50);
  SimulatedStep step;
  step.result = Simulator().run(random.graph, random.times, {.enforce_limits = false});
  step.tasks = std::move(random.graph);
  step.times = std::move(random.times);
  return step;
}

struct Written {
  nlohmann::json events;
  TraceSummary summary;
};

Written written(const SimulatedStep& step, const TraceOptions& options = {}) {
  std::string text;
  Written result;
  result.summary = write_trace(
      step, nullptr, Machine(), [&](std::string_view piece) { text += piece; }, options);
  result.events = nlohmann::json::parse(text).at("traceEvents");
  return result;
}

int64_t nanoseconds(const nlohmann::json& microseconds) {
  return static_cast<int64_t>(std::llround(microseconds.get<double>() * 1000));
}

TEST(Trace, TracksDoNotOverlap) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const SimulatedStep step = random_step(seed, 600);
    std::map<std::pair<int, int>, std::vector<std::pair<int64_t, int64_t>>> tracks;
    size_t on_lanes = 0;
    for (const auto& event : written(step).events) {
      if (event.at("ph") != "X") continue;
      const int64_t start = nanoseconds(event.at("ts"));
      tracks[{event.at("pid"), event.at("tid")}].emplace_back(start,
                                                              start + nanoseconds(event.at("dur")));
      on_lanes += event.at("cat") != "link";
    }
    EXPECT_EQ(on_lanes, step.tasks.task_lanes.size());
    for (auto& [track, slices] : tracks) {
      std::sort(slices.begin(), slices.end());
      for (size_t i = 1; i < slices.size(); ++i)
        EXPECT_GE(slices[i].first, slices[i - 1].second) << "track " << track.second;
      EXPECT_LE(slices.back().second, step.result.makespan);
    }
  }
}

TEST(Trace, CountersReachThePeaks) {
  const SimulatedStep step = random_step(7, 600);
  std::map<int, int64_t> most;
  for (const auto& event : written(step).events)
    if (event.at("ph") == "C")
      most[event.at("pid")] =
          std::max(most[event.at("pid")], event.at("args").at("bytes").get<int64_t>());
  // Processes of teams are numbered from 1.
  for (size_t t = 0; t < step.tasks.teams.size(); ++t)
    EXPECT_EQ(most[static_cast<int>(t) + 1],
              step.result.peaks[step.tasks.teams[t].memory.index()].bytes);
}

TEST(Trace, IsCutByTimeWhenTooLong) {
  const SimulatedStep step = random_step(3, 2000);
  const Written whole = written(step);
  EXPECT_FALSE(whole.summary.cut);
  const Written part = written(step, {.max_events = 500});
  EXPECT_TRUE(part.summary.cut);
  EXPECT_LE(part.summary.events, 520u);
  EXPECT_GE(part.summary.events, 300u);
  for (const auto& event : part.events) {
    if (event.at("ph") != "X" || event.at("cat") == "link") continue;
    EXPECT_LE(event.at("ts").get<double>() * 1e-6, part.summary.until.value);
  }
}

TEST(AtomicFile, AppearsWholeOrNotAtAll) {
  const fs::path folder =
      fs::temp_directory_path() / ("windlass-atomic-" + std::to_string(getpid()));
  fs::create_directory(folder);
  const std::string path = (folder / "file").string();
  const auto text = [&] {
    std::ifstream stream(path);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const auto files = [&] {
    return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  };
  {
    AtomicFile file(path);
    file.write("half");
  }
  EXPECT_EQ(files(), 0);
  {
    AtomicFile file(path);
    file.write("first");
    file.commit();
  }
  EXPECT_EQ(text(), "first");
  {
    AtomicFile file(path);
    file.write("sec");
    EXPECT_EQ(text(), "first");
    file.write("ond");
    file.commit();
  }
  EXPECT_EQ(text(), "second");
  EXPECT_EQ(files(), 1);
  EXPECT_THROW(AtomicFile(folder.string()), Error);
  EXPECT_THROW(AtomicFile((folder / "no" / "file").string()), Error);
  AtomicFile("/dev/null").commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace windlass

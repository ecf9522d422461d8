// What a step on several devices leaves as a record: the trace and the comparison with the
// prediction are made of it, and nothing of it is lost.

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "windlass/base/test_effort.h"
#include "windlass/graph/batch.h"
#include "windlass/plan/random_step.h"
#include "windlass/plan/step.h"
#include "windlass/report/comparison.h"
#include "windlass/report/trace.h"
#include "windlass/runtime/step_runner.h"
#include "windlass/sim/summary.h"

namespace windlass {
namespace {

using Json = nlohmann::json;

// A random step that was simulated and then run.
struct RecordedStep {
  explicit RecordedStep(uint64_t seed) : random(cases::random_step(seed)) {
    if (random.machine.nodes.size() > 1) return;
    random.begin(seed);
    predicted =
        simulate_step(random.training, random.strategy, random.machine, *analytic_cost_model());
    outcome = testing_runs::run_steps(random.training, random.machine, predicted.tasks,
                                      predicted.times, predicted.result, random.start,
                                      testing_runs::batch_of_network(random.training),
                                      {.pace = seed % 2 == 0})
                  .outcome;
    ran = true;
  }

  cases::RandomStep random;
  SimulatedStep predicted;
  StepOutcome outcome;
  bool ran = false;
};

int64_t nanoseconds_of(const Json& microseconds) {
  return static_cast<int64_t>(std::llround(microseconds.get<double>() * 1000));
}

template <class Check>
void for_recorded_steps(size_t count, Check&& check) {
  for (uint64_t seed = 1; count > 0 && !testing::Test::HasFailure(); ++seed) {
    const RecordedStep step(seed);
    if (!step.ran) continue;
    --count;
    SCOPED_TRACE(step.random.name);
    check(step);
  }
}

// Every part of every task stands on its device's track, when it ran, and nothing else does.
TEST(RunRecord, TheTraceHasEveryPartOnItsDevice) {
  for_recorded_steps(sampled<size_t>(16), [](const RecordedStep& step) {
    const TaskGraph& tasks = step.predicted.tasks;
    const Machine& machine = step.random.machine;
    std::string text;
    write_run_trace(step.predicted, step.outcome, &step.random.training.graph, machine,
                    [&](std::string_view piece) { text += piece; });
    const Json events = Json::parse(text).at("traceEvents");

    // Process, track, task, start, end.
    using Slice = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t>;
    std::multiset<Slice> expected, found;
    const auto expect = [&](const std::string& side, TaskId task, DeviceId only, Nanoseconds start,
                            Nanoseconds end) {
      for (LaneId lane : tasks.lanes_of(task)) {
        const int64_t track = lane.value + 1;
        if (tasks[lane].kind == LaneKind::Host) {
          expected.insert({"host: " + side, track, task.value, start, end});
          continue;
        }
        for (DeviceId device : tasks[tasks[lane].team].devices)
          if (!only.valid() || device == only)
            expected.insert({machine[device].name + ": " + side, track, task.value, start, end});
      }
    };
    for (size_t i = 0; i < tasks.size(); ++i)
      expect("predicted", TaskId(i), {}, step.predicted.result.start[i],
             step.predicted.result.end[i]);
    for (const PartTime& part : step.outcome.parts)
      expect("measured", part.task, part.device, part.start, part.end);

    std::map<int64_t, std::string> processes;
    for (const Json& event : events)
      if (event.at("name") == "process_name")
        processes[event.at("pid")] = event.at("args").at("name");
    std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<int64_t, int64_t>>> tracks;
    for (const Json& event : events) {
      if (event.at("ph") != "X") continue;
      const int64_t start = nanoseconds_of(event.at("ts"));
      const int64_t end = start + nanoseconds_of(event.at("dur"));
      tracks[{event.at("pid"), event.at("tid")}].emplace_back(start, end);
      if (event.at("cat") != "link")
        found.insert({processes.at(event.at("pid")), event.at("tid"), event.at("args").at("task"),
                      start, end});
    }
    EXPECT_TRUE(found == expected) << found.size() << " slices, expected " << expected.size();
    // Lanes overlap each other; on a lane tasks come one after the other.
    for (auto& [track, slices] : tracks) {
      std::ranges::sort(slices);
      for (size_t i = 1; i < slices.size(); ++i)
        EXPECT_GE(slices[i].first, slices[i - 1].second)
            << processes[track.first] << ", track " << track.second;
    }
  });
}

TEST(RunRecord, PartsAreThoseOfTheTasks) {
  for_recorded_steps(sampled<size_t>(16), [](const RecordedStep& step) {
    const TaskGraph& tasks = step.predicted.tasks;
    std::vector<std::set<DeviceId>> devices(tasks.size());
    std::vector<Nanoseconds> last(tasks.size(), -1);
    for (const PartTime& part : step.outcome.parts) {
      EXPECT_LE(part.start, part.end);
      EXPECT_GE(part.start, 0);
      EXPECT_LE(part.end, step.outcome.time);
      EXPECT_TRUE(devices[part.task.index()].insert(part.device).second) << "twice";
      last[part.task.index()] = std::max(last[part.task.index()], part.end);
    }
    for (size_t i = 0; i < tasks.size(); ++i) {
      EXPECT_EQ(last[i], step.outcome.end[i]);
      const std::vector<DeviceId> own = devices_of(tasks, TaskId(i));
      const bool together = devices[i] == std::set<DeviceId>{DeviceId()};
      EXPECT_TRUE(together || devices[i] == std::set<DeviceId>(own.begin(), own.end()));
    }
  });
}

// Bytes on links are those that were predicted, times of all kinds are there.
TEST(RunRecord, TheComparisonHasAllOfIt) {
  for_recorded_steps(sampled<size_t>(16), [](const RecordedStep& step) {
    const std::vector<LinkLoad> planned = link_bytes(step.predicted.tasks, step.predicted.result);
    ASSERT_EQ(step.outcome.links.size(), planned.size());
    for (size_t i = 0; i < planned.size(); ++i) {
      EXPECT_EQ(step.outcome.links[i].direction, planned[i].direction);
      EXPECT_EQ(step.outcome.links[i].bytes.value, planned[i].bytes.value);
    }
    MeasuredSteps steps;
    steps.add(step.outcome);
    const Comparison comparison = compare(step.predicted, steps.result(), step.random.machine);
    ASSERT_EQ(comparison.links.size(), planned.size());
    for (const Comparison::LinkUse& link : comparison.links)
      EXPECT_EQ(link.predicted, link.measured);
    Seconds parts, kinds;
    for (const PartTime& part : step.outcome.parts) {
      const size_t places =
          part.device.valid()
              ? 1
              : std::max<size_t>(1, devices_of(step.predicted.tasks, part.task).size());
      parts += Seconds(static_cast<double>((part.end - part.start)) * 1e-9 *
                       static_cast<double>(places));
    }
    for (const Comparison::Place& place : comparison.places) {
      EXPECT_GT(place.measured, 0) << place.name;
      EXPECT_LE(place.predicted, place.limit) << place.name;
      for (const Comparison::Kind& kind : place.kinds) kinds += kind.measured;
    }
    EXPECT_NEAR(kinds.value, parts.value, 1e-9 * static_cast<double>(step.outcome.parts.size()));
    const Json document = comparison_json(comparison);
    for (const char* side : {"predicted", "measured"}) {
      EXPECT_EQ(document[side]["links"].size(), planned.size());
      EXPECT_EQ(document[side]["devices"].size() + 1, comparison.places.size());
    }
    EXPECT_FALSE(comparison_text(comparison).empty());
  });
}

}  // namespace
}  // namespace windlass

#include "windlass/sim/timeline_check.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "windlass/sim/hand_made.h"

namespace windlass {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// Task 0 runs from 0 to 10, task 1 follows on its lane until 30, task 2 copies from 10 to 110.
HandMade example() {
  HandMade made({LaneKind::Compute, LaneKind::SwapOut});
  const TaskId first = made.compute(10, {}, {made.buffer(30)});
  made.compute(20, {}, {made.buffer(40)});
  made.task(TaskKind::SwapOut, {1}, 0, {first}, {BufferId(0)},
            made.traffic(100, {{made.link(1), kLoadUnit}}));
  return made;
}

std::vector<std::string> complaints_after(const std::function<void(SimResult&)>& damage) {
  const HandMade made = example();
  SimResult result = Simulator().run(made.graph, made.times);
  damage(result);
  return check_timeline(made.graph, made.times, result);
}

TEST(TimelineCheck, FindsNothingWrong) {
  EXPECT_THAT(complaints_after([](SimResult&) {}), IsEmpty());
}

TEST(TimelineCheck, FindsEachFault) {
  const auto expect = [](const char* complaint, const std::function<void(SimResult&)>& damage) {
    EXPECT_THAT(complaints_after(damage), Contains(HasSubstr(complaint)));
  };
  expect("before its predecessor 0", [](SimResult& r) { r.start[2] = 9; });
  expect("before the task before it on its lane", [](SimResult& r) { r.start[1] = 5; });
  expect("when nothing ends", [](SimResult& r) { r.start[1] = 11; });
  expect("task 1 takes 21, not 20", [](SimResult& r) { r.end[1] = 31; });
  expect("its traffic alone takes 100", [](SimResult& r) { r.end[2] = 60; });
  expect("more than it can", [](SimResult& r) { r.end[2] = 60; });
  expect("has its peak of 70 bytes at 10", [](SimResult& r) { r.peaks[0].bytes = 71; });
  expect("has its peak of 70 bytes at 10", [](SimResult& r) { r.peaks[0].time = 0; });
  expect("does not start at its peak", [](SimResult& r) { r.peaks[0].task = TaskId(0); });
  expect("the makespan is 111", [](SimResult& r) { r.makespan = 111; });
  expect("task 1 never ran", [](SimResult& r) { r.start[1] = r.end[1] = -1; });
  expect("not of this graph", [](SimResult& r) { r.end.pop_back(); });
}

}  // namespace
}  // namespace windlass

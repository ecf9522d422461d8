#include "windlass/task/order.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

Strategy pipeline(ScheduleKind kind, int groups, int stages, int64_t micro_batches) {
  Strategy strategy;
  strategy.schedule = kind;
  strategy.micro_batches = micro_batches;
  for (int g = 0; g < groups; ++g) strategy.groups.push_back({DeviceId(g)});
  for (int s = 0; s < stages; ++s)
    strategy.stages.push_back({static_cast<size_t>(s), static_cast<size_t>(s + 1), s % groups});
  return strategy;
}

std::string text(const std::vector<WorkItem>& items) {
  std::string result;
  for (const WorkItem& item : items)
    result += fmt::format("{}{}.{} ", item.backward ? "B" : "F", item.stage, item.micro_batch);
  if (!result.empty()) result.pop_back();
  return result;
}

TEST(Order, KnownSchedules) {
  EXPECT_EQ(text(group_orders(pipeline(ScheduleKind::AllAtOnce, 1, 1, 3))[0]),
            "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2");
  EXPECT_EQ(text(group_orders(pipeline(ScheduleKind::GPipe, 2, 2, 3))[1]),
            "F1.0 F1.1 F1.2 B1.2 B1.1 B1.0");
  const auto one = group_orders(pipeline(ScheduleKind::OneFOneB, 3, 3, 4));
  EXPECT_EQ(text(one[0]), "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3");
  EXPECT_EQ(text(one[2]), "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3");
  // Two devices, two chunks each, four micro-batches: rank 0 warms up with
  // (2 - 0 - 1) * 2 + (2 - 1) * 2 = 4 forward passes.
  const auto interleaved = group_orders(pipeline(ScheduleKind::OneFOneB, 2, 4, 4));
  EXPECT_EQ(text(interleaved[0]),
            "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3");
}

// Every item once, after what it depends on, in the order of its group.
TEST(Order, GlobalOrderIsValid) {
  struct Case {
    ScheduleKind kind;
    int groups, stages;
    int64_t micro_batches;
  };
  for (const Case& c :
       {Case{ScheduleKind::AllAtOnce, 1, 1, 5}, Case{ScheduleKind::GPipe, 4, 4, 7},
        Case{ScheduleKind::OneFOneB, 4, 4, 1}, Case{ScheduleKind::OneFOneB, 4, 4, 9},
        Case{ScheduleKind::OneFOneB, 4, 12, 8}, Case{ScheduleKind::OneFOneB, 3, 6, 3}}) {
    const Strategy strategy = pipeline(c.kind, c.groups, c.stages, c.micro_batches);
    SCOPED_TRACE(
        fmt::format("{} {} {} {}", schedule_name(c.kind), c.groups, c.stages, c.micro_batches));
    std::map<std::tuple<int32_t, int32_t, bool>, size_t> at;
    const auto order = global_order(strategy);
    EXPECT_EQ(order.size(), static_cast<size_t>(2 * c.stages * c.micro_batches));
    for (size_t i = 0; i < order.size(); ++i)
      EXPECT_TRUE(at.emplace(std::tuple(order[i].stage, order[i].micro_batch, order[i].backward), i)
                      .second);
    for (const auto& [key, i] : at) {
      const auto [stage, micro_batch, backward] = key;
      if (!backward && stage > 0) {
        EXPECT_LT(at.at({stage - 1, micro_batch, false}), i);
      }
      if (backward) {
        EXPECT_LT(at.at({stage, micro_batch, false}), i);
      }
      if (backward && stage + 1 < c.stages) {
        EXPECT_LT(at.at({stage + 1, micro_batch, true}), i);
      }
    }
    for (const auto& items : group_orders(strategy))
      for (size_t i = 1; i < items.size(); ++i)
        EXPECT_LT(at.at({items[i - 1].stage, items[i - 1].micro_batch, items[i - 1].backward}),
                  at.at({items[i].stage, items[i].micro_batch, items[i].backward}));
  }
}

TEST(Order, InterleavingWantsWholeRuns) {
  EXPECT_THROW(global_order(pipeline(ScheduleKind::OneFOneB, 2, 4, 3)), Error);
  EXPECT_THROW(global_order(pipeline(ScheduleKind::OneFOneB, 2, 3, 4)), Error);
}

}  // namespace
}  // namespace windlass

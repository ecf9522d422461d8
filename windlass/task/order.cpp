#include "windlass/task/order.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using Items = std::vector<WorkItem>;

// Stages of each group, in order.
std::vector<std::vector<int32_t>> stages_by_group(const Strategy& strategy) {
  std::vector<std::vector<int32_t>> stages(strategy.groups.size());
  for (size_t s = 0; s < strategy.stages.size(); ++s)
    stages[static_cast<size_t>(strategy.stages[s].group)].push_back(static_cast<int32_t>(s));
  return stages;
}

Items gpipe(const std::vector<int32_t>& stages, int32_t micro_batches) {
  Items items;
  for (int32_t stage : stages)
    for (int32_t m = 0; m < micro_batches; ++m) items.push_back({stage, m, false});
  for (size_t s = stages.size(); s-- > 0;)
    for (int32_t m = micro_batches; m-- > 0;) items.push_back({stages[s], m, true});
  return items;
}

// `rank` of `ranks` groups in the pipeline.
Items one_f_one_b(int32_t stage, int32_t rank, int32_t ranks, int32_t micro_batches) {
  Items items;
  const int32_t warm_up = std::min(micro_batches, ranks - rank - 1);
  int32_t forward = 0, backward = 0;
  while (forward < warm_up) items.push_back({stage, forward++, false});
  while (forward < micro_batches) {
    items.push_back({stage, forward++, false});
    items.push_back({stage, backward++, true});
  }
  while (backward < micro_batches) items.push_back({stage, backward++, true});
  return items;
}

// Several chunks of the model on each rank; micro-batches go through the chunks in runs of `ranks`.
Items interleaved(const std::vector<int32_t>& stages, int32_t rank, int32_t ranks,
                  int32_t micro_batches) {
  const auto chunks = static_cast<int32_t>(stages.size());
  const int32_t total = micro_batches * chunks;
  const auto item = [&](int32_t k, bool backward) {
    const int32_t run = ranks * chunks;
    int32_t chunk = k % run / ranks;
    if (backward) chunk = chunks - 1 - chunk;
    return WorkItem{stages[static_cast<size_t>(chunk)], k / run * ranks + k % ranks, backward};
  };
  const int32_t warm_up = micro_batches == ranks
                              ? total
                              : std::min(total, (ranks - rank - 1) * 2 + (chunks - 1) * ranks);
  Items items;
  int32_t forward = 0, backward = 0;
  while (forward < warm_up) items.push_back(item(forward++, false));
  while (forward < total) {
    items.push_back(item(forward++, false));
    items.push_back(item(backward++, true));
  }
  while (backward < total) items.push_back(item(backward++, true));
  return items;
}

}  // namespace

std::vector<Items> group_orders(const Strategy& strategy) {
  const auto micro_batches = static_cast<int32_t>(strategy.micro_batches);
  const auto stages = stages_by_group(strategy);
  // The rank of a group in the pipeline: by its first stage.
  std::vector<size_t> groups;
  for (size_t g = 0; g < stages.size(); ++g)
    if (!stages[g].empty()) groups.push_back(g);
  std::ranges::sort(groups, {}, [&](size_t g) { return stages[g].front(); });
  const auto ranks = static_cast<int32_t>(groups.size());

  std::vector<Items> orders(strategy.groups.size());
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const size_t g = groups[static_cast<size_t>(rank)];
    const size_t chunks = stages[g].size();
    if (strategy.schedule == ScheduleKind::GPipe) {
      orders[g] = gpipe(stages[g], micro_batches);
    } else if (chunks == 1) {
      const bool alone = strategy.schedule == ScheduleKind::AllAtOnce;
      orders[g] = one_f_one_b(stages[g][0], alone ? 0 : rank, alone ? 1 : ranks, micro_batches);
    } else {
      for (size_t other : groups)
        if (stages[other].size() != chunks)
          fail_input("interleaved 1F1B needs the same number of stages on each group");
      if (micro_batches % ranks != 0)
        fail_input("interleaved 1F1B needs a multiple of {} micro-batches, found {}", ranks,
                   micro_batches);
      orders[g] = interleaved(stages[g], rank, ranks, micro_batches);
    }
  }
  return orders;
}

std::vector<WorkItem> global_order(const Strategy& strategy) {
  const std::vector<Items> orders = group_orders(strategy);
  const size_t stages = strategy.stages.size();
  const auto micro_batches = static_cast<size_t>(strategy.micro_batches);
  std::vector<char> done(2 * stages * micro_batches, 0);
  const auto slot = [&](size_t stage, size_t m, bool backward) {
    return (backward ? stages * micro_batches : 0) + stage * micro_batches + m;
  };
  const auto ready = [&](const WorkItem& item) {
    const auto s = static_cast<size_t>(item.stage), m = static_cast<size_t>(item.micro_batch);
    if (!item.backward) return s == 0 || done[slot(s - 1, m, false)] != 0;
    return s + 1 == stages ? done[slot(s, m, false)] != 0 : done[slot(s + 1, m, true)] != 0;
  };
  std::vector<size_t> next(orders.size(), 0);
  size_t left = 0;
  for (const Items& items : orders) left += items.size();
  Items result;
  result.reserve(left);
  while (left > 0) {
    const size_t before = left;
    for (size_t g = 0; g < orders.size(); ++g) {
      if (next[g] == orders[g].size() || !ready(orders[g][next[g]])) continue;
      const WorkItem& item = orders[g][next[g]++];
      done[slot(static_cast<size_t>(item.stage), static_cast<size_t>(item.micro_batch),
                item.backward)] = 1;
      result.push_back(item);
      --left;
    }
    if (left == before)
      fail_input("the schedule {} cannot go on: the groups wait for each other",
                 schedule_name(strategy.schedule));
  }
  return result;
}

}  // namespace windlass

#include "windlass/runtime/plain_sums.h"

#include <algorithm>
#include <cstring>

namespace windlass {

std::vector<std::vector<int32_t>> plain_sums(const ProgramTask& task, const Ownership& own) {
  if (task.apart || task.sums.empty() || !task.receives.empty() || !task.copies.empty() ||
      !task.merges.empty())
    return {};
  for (const Part& part : task.parts)
    if (!part.flat_copies.empty() || !part.part_copies.empty()) return {};
  const auto owners = [&](const std::vector<TermSum::Where>& list) {
    std::vector<int32_t> found;
    for (const TermSum::Where& where : list)
      found.push_back(own.of_slot[static_cast<size_t>(where.slot)]);
    std::ranges::sort(found);
    return found;
  };
  std::vector<std::vector<int32_t>> all;
  for (const TermSum& sum : task.sums) {
    all.push_back(owners(sum.terms));
    const bool once = std::ranges::adjacent_find(all.back()) == all.back().end();
    const bool adds = std::ranges::any_of(sum.results, &TermSum::Where::adds);
    if (sum.dtype != DType::F32 || sum.combine != CombineFn::Sum || sum.count == 0 || !once ||
        adds || all.back().size() < 2 || owners(sum.results) != all.back())
      return {};
  }
  return all;
}

PlainSums::PlainSums(const Program& program, const TaskGraph& tasks, const Ownership& own,
                     Ranks& ranks)
    : program_(program), own_(own) {
  using Lanes = std::vector<LaneId>;
  std::map<std::pair<Lanes, std::vector<int32_t>>, Ranks::SumGroup*> known;
  for (size_t t = 0; t < program.tasks.size(); ++t) {
    const std::vector<std::vector<int32_t>> sums = plain_sums(program.tasks[t], own);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (std::ranges::find(sums[i], own.rank) == sums[i].end()) continue;
      const auto lanes = tasks.lanes_of(TaskId(t));
      const auto [entry, fresh] =
          known.try_emplace({Lanes(lanes.begin(), lanes.end()), sums[i]}, nullptr);
      if (fresh) {
        groups_.push_back(ranks.make_sum_group(sums[i]));
        entry->second = groups_.back().get();
      }
      if (entry->second == nullptr) {
        of_task_.clear();
        return;
      }
      of_task_[TaskId(t)].push_back({static_cast<int32_t>(i), entry->second});
    }
  }
}

bool PlainSums::run(TaskId task, Slots& slots) {
  const auto found = of_task_.find(task);
  if (found == of_task_.end()) return false;
  for (const Sum& one : found->second) {
    const TermSum& sum = program_.tasks[task.index()].sums[static_cast<size_t>(one.sum)];
    const auto mine = [&](const std::vector<TermSum::Where>& list) {
      const auto where =
          std::ranges::find_if(list, [&](const TermSum::Where& w) { return own_.mine(w.slot); });
      return slots.bytes(where->slot).data() + where->at;
    };
    std::byte* to = mine(sum.results);
    const std::byte* from = mine(sum.terms);
    const auto count = static_cast<size_t>(sum.count);
    if (from != to) std::memcpy(to, from, count * sizeof(float));
    one.group->add_up({reinterpret_cast<float*>(to), count});
  }
  return true;
}

}  // namespace windlass

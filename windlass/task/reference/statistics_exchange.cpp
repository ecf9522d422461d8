#include "windlass/task/reference/statistics_exchange.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass::reference {

const Use* StatisticsExchange::find(TaskId id) const {
  const auto uses = tasks_.uses_of(id);
  const auto found = std::ranges::find(uses, UseKind::Statistics, &Use::kind);
  return found == uses.end() ? nullptr : &*found;
}

void StatisticsExchange::begin(TaskId id, const Exchange& exchange, int64_t member, Array array) {
  const Use* use = find(id);
  ensure(use != nullptr && exchange.needed() && array.shape == exchange.type.shape,
         "an op begins without statistics to exchange");
  ensure(byte_size(exchange.type) <= tasks_[use->buffer].bytes, "statistics are too large");
  unmerged_[{use->buffer.value, member}] = exchange;
  held_.put(use->buffer, member, {std::move(array)});
}

const Array* StatisticsExchange::of(TaskId id, int64_t member) {
  const Use* use = find(id);
  if (use == nullptr) return nullptr;
  ensure(!unmerged_.contains({use->buffer.value, member}), "statistics were not exchanged");
  return &held_.at(use->buffer, member)[0];
}

void StatisticsExchange::merge(TaskId id) {
  const Movement& movement = tasks_.movements[static_cast<size_t>(tasks_[id].how)];
  const auto& digits = tasks_.digit_sets[static_cast<size_t>(movement.digits)];
  std::map<int64_t, BufferId> buffer_of;  // by member
  for (const Use& use : tasks_.uses_of(id))
    for (int64_t member : held_.members(use.buffer)) buffer_of[member] = use.buffer;
  std::map<int64_t, Array> merged;
  for (const auto& [member, buffer] : buffer_of) {
    const auto exchange = unmerged_.find({buffer.value, member});
    ensure(exchange != unmerged_.end(), "there is nothing to merge");
    std::vector<Array> parts;
    for (int64_t peer : peers_of(digits, member))
      parts.push_back(held_.at(buffer_of.at(peer), peer)[0]);
    merged[member] = merge_statistics(exchange->second, parts);
  }
  for (auto& [member, array] : merged) {
    unmerged_.erase({buffer_of[member].value, member});
    held_.put(buffer_of[member], member, {std::move(array)});
  }
}

}  // namespace windlass::reference

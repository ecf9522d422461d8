#include "windlass/runtime/crossings.h"

#include <map>
#include <tuple>

namespace windlass {

TaskCrossings::TaskCrossings(const ProgramTask& task, int32_t part, const Ownership& own)
    : own_(own) {
  for (size_t p = 0; p < task.parts.size(); ++p) {
    if (part >= 0 && part != static_cast<int32_t>(p)) continue;
    for (const FlatCopy& copy : task.parts[p].flat_copies) note_bytes(copy);
    for (const PartCopy& copy : task.parts[p].part_copies)
      note(Kind::Copy, copy.from.slot, copy.to,
           copy.overlap.elements() * element_bytes(copy.from.type.dtype), &copy);
  }
  if (part < 0) {
    for (const Receive& receive : task.receives)
      for (const Receive::Source& source : receive.sources)
        note(Kind::Source, source.from.slot, receive.to,
             source.overlap.elements() * element_bytes(source.from.type.dtype), &source);
    for (const FlatCopy& copy : task.copies) note_bytes(copy);
    for (const StatisticsMerge& merge : task.merges) {
      merges_.push_back(&merge);
      for (int32_t slot : merge.slots) ranks_.push_back(owner(slot));
    }
    for (const TermSum& sum : task.sums) note_sum(sum);
  }
  index();
  find_repetitions();
  std::ranges::sort(ranks_);
  ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
}

void TaskCrossings::note(Kind kind, int32_t from, int32_t to, int64_t bytes, const void* key) {
  if (owner(from) == owner(to) || bytes == 0) return;
  items_.push_back({kind, owner(from), owner(to), key, nullptr, bytes});
}

// A sum that more than two ranks want is divided among them.
void TaskCrossings::note_sum(const TermSum& sum) {
  Sum& made = sums_.emplace_back();
  made.sum = &sum;
  bool adds = false;
  for (const TermSum::Where& result : sum.results) {
    made.wanting.push_back(owner(result.slot));
    adds |= result.adds;
  }
  std::ranges::sort(made.wanting);
  made.wanting.erase(std::unique(made.wanting.begin(), made.wanting.end()), made.wanting.end());
  for (size_t t = 0; t < sum.terms.size(); ++t)
    made.terms.emplace_back(owner(sum.terms[t].slot), static_cast<int32_t>(t));
  if (!std::ranges::is_sorted(made.terms)) std::ranges::sort(made.terms);
  made.divided = made.wanting.size() >= 3 && !adds;
  ranks_.insert(ranks_.end(), made.wanting.begin(), made.wanting.end());
  for (const auto& [rank, term] : made.terms)
    if (ranks_.empty() || ranks_.back() != rank) ranks_.push_back(rank);
}

// What a rank wants of the same bytes twice, for two of its slots, comes once.
void TaskCrossings::find_repetitions() {
  const bool any =
      std::ranges::any_of(items_, [](const Item& item) { return item.kind == Kind::Flat; });
  std::vector<int32_t> sent_to(any ? own_.of_slot.size() : 0, -1);  // by slot: the rank at hand
  for (int32_t rank = 0; any && rank < own_.ranks; ++rank) {
    std::map<std::tuple<int32_t, int64_t, int64_t>, const void*> first;
    bool twice = false;
    const auto for_items = [&](auto&& visit) {
      const auto at = static_cast<size_t>(rank);
      for (uint32_t i = begin_[at]; i < begin_[at + 1]; ++i)
        if (Item& item = items_[of_rank_[i]]; item.kind == Kind::Flat && item.to == rank)
          visit(item, *static_cast<const FlatCopy*>(item.key));
    };
    for_items([&](const Item&, const FlatCopy& copy) {
      int32_t& known = sent_to[static_cast<size_t>(copy.from)];
      twice |= known == rank;
      known = rank;
    });
    if (!twice) continue;
    for_items([&](Item& item, const FlatCopy& copy) {
      const auto [entry, fresh] =
          first.try_emplace({copy.from, copy.from_at, copy.bytes}, item.key);
      if (!fresh) item.first = entry->second;
    });
  }
}

void TaskCrossings::index() {
  begin_.assign(static_cast<size_t>(own_.ranks) + 1, 0);
  for (const Item& item : items_) {
    ++begin_[static_cast<size_t>(item.from) + 1];
    ++begin_[static_cast<size_t>(item.to) + 1];
  }
  for (size_t r = 0; r + 1 < begin_.size(); ++r) {
    if (begin_[r + 1] > 0) ranks_.push_back(static_cast<int32_t>(r));
    begin_[r + 1] += begin_[r];
  }
  of_rank_.resize(2 * items_.size());
  std::vector<uint32_t> next(begin_.begin(), begin_.end() - 1);
  for (size_t i = 0; i < items_.size(); ++i)
    for (int32_t rank : {items_[i].from, items_[i].to})
      of_rank_[next[static_cast<size_t>(rank)]++] = static_cast<uint32_t>(i);
}

Parcel TaskCrossings::parcel_of(const Item& item) {
  if (item.kind == Kind::Flat) {
    const auto& copy = *static_cast<const FlatCopy*>(item.key);
    return {.slot = copy.from, .at = copy.from_at, .bytes = item.bytes};
  }
  const auto* source =
      item.kind == Kind::Source ? static_cast<const Receive::Source*>(item.key) : nullptr;
  const auto* copy = item.kind == Kind::Copy ? static_cast<const PartCopy*>(item.key) : nullptr;
  const Operand& from = source != nullptr ? source->from : copy->from;
  const Overlap& overlap = source != nullptr ? source->overlap : copy->overlap;
  return {.operand = &from, .overlap = &overlap, .slot = from.slot, .bytes = item.bytes};
}

}  // namespace windlass

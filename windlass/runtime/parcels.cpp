#include "windlass/runtime/parcels.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace windlass {
namespace {

class ParcelMaker {
 public:
  explicit ParcelMaker(const Ownership& own) : own_(own) {}

  TaskParcels make(const ProgramTask& task, int32_t part) {
    for (size_t p = 0; p < task.parts.size(); ++p)
      if (part < 0 || part == static_cast<int32_t>(p)) copies_of(task.parts[p]);
    if (part >= 0) return std::move(made_);
    for (const StatisticsMerge& merge : task.merges) statistics(merge);
    for (const Receive& receive : task.receives)
      for (const Receive::Source& source : receive.sources)
        elements(source.from, source.overlap, receive.to, &source);
    for (size_t i = 0; i < task.sums.size(); ++i) sum(task.sums[i], static_cast<int32_t>(i));
    for (const FlatCopy& copy : task.copies)
      bytes(copy.from, copy.from_at, copy.bytes, copy.to, &copy);
    return std::move(made_);
  }

 private:
  int32_t owner(int32_t slot) const { return own_.of_slot[static_cast<size_t>(slot)]; }

  // From rank to rank. Both ends come here in the same order.
  void add(size_t round, int32_t from, int32_t to, Parcel parcel, TaskParcels::Place* place) {
    if (from == to || parcel.bytes == 0 || (from != own_.rank && to != own_.rank)) return;
    const bool sends = from == own_.rank;
    std::vector<RankMessage>& list = sends ? made_.sends[round] : made_.receives[round];
    const int32_t peer = sends ? to : from;
    auto message = std::ranges::find(list, peer, &RankMessage::peer);
    if (message == list.end()) message = list.insert(list.end(), {.peer = peer});
    parcel.offset = message->bytes;
    constexpr int64_t kAligned = 16;
    message->bytes += (parcel.bytes + kAligned - 1) / kAligned * kAligned;
    if (!sends && place != nullptr)
      *place = {static_cast<size_t>(message - list.begin()), parcel.offset};
    message->parcels.push_back(parcel);
  }
  void arrives(int32_t from, int32_t to, const Parcel& parcel, const void* key) {
    TaskParcels::Place place;
    add(0, from, to, parcel, &place);
    if (from != to && to == own_.rank && parcel.bytes > 0) made_.arrived[key] = place;
  }

  void elements(const Operand& from, const Overlap& overlap, int32_t to, const void* key) {
    const int64_t size = overlap.elements() * element_bytes(from.type.dtype);
    arrives(owner(from.slot), owner(to),
            {.operand = &from, .overlap = &overlap, .slot = from.slot, .bytes = size}, key);
  }

  // What a rank wants of the same bytes twice comes once.
  void bytes(int32_t from, int64_t at, int64_t size, int32_t to, const void* key) {
    const auto entry = std::tuple{from, at, size, owner(to)};
    const auto known = sent_.find(entry);
    if (known == sent_.end()) {
      sent_[entry] = key;
      arrives(owner(from), owner(to), {.slot = from, .at = at, .bytes = size}, key);
    } else if (const auto found = made_.arrived.find(known->second); found != made_.arrived.end()) {
      made_.arrived[key] = found->second;
    }
  }

  void copies_of(const Part& part) {
    for (const FlatCopy& copy : part.flat_copies)
      bytes(copy.from, copy.from_at, copy.bytes, copy.to, &copy);
    for (const PartCopy& copy : part.part_copies) elements(copy.from, copy.overlap, copy.to, &copy);
  }

  void statistics(const StatisticsMerge& merge) {
    std::set<int32_t> ranks;
    for (int32_t slot : merge.slots) ranks.insert(owner(slot));
    const int64_t size = byte_size(merge.exchange.type).value;
    for (const int32_t& slot : merge.slots)
      for (int32_t rank : ranks) arrives(owner(slot), rank, {.slot = slot, .bytes = size}, &slot);
  }

  // Of those to whom a rank sends, the ones that this process has to know of.
  std::vector<int32_t> concerned(int32_t from, const std::set<int32_t>& to) const {
    if (from == own_.rank) return {to.begin(), to.end()};
    if (to.contains(own_.rank)) return {own_.rank};
    return {};
  }

  void sum(const TermSum& sum, int32_t index) {
    std::set<int32_t> all, wanting;
    for (const TermSum::Where& term : sum.terms) all.insert(owner(term.slot));
    bool adds = false;
    for (const TermSum::Where& result : sum.results) {
      wanting.insert(owner(result.slot));
      adds |= result.adds;
    }
    all.insert(wanting.begin(), wanting.end());
    const int64_t each = element_bytes(sum.dtype);
    if (wanting.size() < 3 || adds) {
      for (const TermSum::Where& term : sum.terms)
        for (int32_t rank : concerned(owner(term.slot), wanting))
          arrives(owner(term.slot), rank,
                  {.slot = term.slot, .at = term.at, .bytes = sum.count * each}, &term);
      return;
    }
    std::vector<TaskParcels::Chunk> chunks;
    const auto count = static_cast<int64_t>(wanting.size());
    for (int32_t rank : wanting) {
      const auto i = static_cast<int64_t>(chunks.size());
      chunks.push_back({rank, {sum.count * i / count, sum.count * (i + 1) / count}});
    }
    for (TaskParcels::Chunk& chunk : chunks) {
      const int64_t size = chunk.elements.size() * each;
      for (const TermSum::Where& term : sum.terms)
        if (owner(term.slot) == own_.rank || chunk.rank == own_.rank)
          arrives(owner(term.slot), chunk.rank,
                  {.slot = term.slot, .at = term.at + chunk.elements.begin * each, .bytes = size},
                  &term);
      for (int32_t rank : concerned(chunk.rank, wanting))
        add(1, chunk.rank, rank, {.sum = index, .bytes = size}, &chunk.place);
    }
    if (wanting.contains(own_.rank)) made_.divided[index] = std::move(chunks);
  }

  const Ownership& own_;
  TaskParcels made_;
  std::map<std::tuple<int32_t, int64_t, int64_t, int32_t>, const void*> sent_;
};

}  // namespace

TaskParcels make_parcels(const Program& program, const Ownership& own, TaskId task, int32_t part) {
  return ParcelMaker(own).make(program.tasks[task.index()], part);
}

}  // namespace windlass

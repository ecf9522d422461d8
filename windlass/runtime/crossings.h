// What crosses from process to process in a task, looked up by rank: of the steps of a program that
// thousands of ranks have a part in, each rank has to do with few.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "windlass/runtime/ownership.h"
#include "windlass/runtime/program.h"

namespace windlass {

// Elements that an overlap has of an operand, one run behind the other; or bytes of a slot; or
// those of a sum that was made.
struct Parcel {
  const Operand* operand = nullptr;
  const Overlap* overlap = nullptr;
  int32_t slot = -1;
  int64_t at = 0;    // of the slot
  int32_t sum = -1;  // of ProgramTask::sums: its chunk that was made here
  int64_t bytes = 0;
  int64_t offset = 0;  // in the message
};

// What a parcel takes of a message: each begins at a multiple of it.
constexpr int64_t room_in_message(int64_t bytes) {
  constexpr int64_t kAligned = 16;
  return (bytes + kAligned - 1) / kAligned * kAligned;
}

// Refers to its arguments; the rank of `own` does not matter.
class TaskCrossings {
 public:
  // Of a part of a task, or of all of it (-1).
  TaskCrossings(const ProgramTask& task, int32_t part, const Ownership& own);

  // Ranks that send or receive something, ascending.
  const std::vector<int32_t>& ranks() const { return ranks_; }

  // Tells a sink what one rank sends or receives, in an order that is the same at both ends:
  // - add(from, to, parcel, key), one of the two being the rank; `key` is the address of what the
  //   parcel is for (a source, a copy, a term, a slot of statistics),
  // - again(key, first): the rank gets what it got for `first`, once,
  // - chunk(sum, ranks, i, elements): of a sum that is divided among ranks, the i-th makes these
  //   elements, and what crosses for it follows; pass_on(from, to, parcel): what it has made, in a
  //   second round.
  template <class Sink>
  void tell(int32_t rank, Sink&& sink) const {
    for (uint32_t i = begin_[static_cast<size_t>(rank)]; i < begin_[static_cast<size_t>(rank) + 1];
         ++i) {
      const Item& item = items_[of_rank_[i]];
      if (item.first != nullptr) {
        if (item.to == rank) sink.again(item.key, item.first);
        continue;
      }
      sink.add(item.from, item.to, parcel_of(item), item.key);
    }
    for (const StatisticsMerge* merge : merges_) tell_merge(*merge, rank, sink);
    for (size_t s = 0; s < sums_.size(); ++s) tell_sum(s, rank, sink);
  }

 private:
  // The elements of a chunk.
  static Range chunk_of(int64_t elements, size_t i, size_t count) {
    const auto n = static_cast<int64_t>(count), k = static_cast<int64_t>(i);
    return {elements * k / n, elements * (k + 1) / n};
  }

  enum class Kind : uint8_t { Flat, Copy, Source };
  struct Item {
    Kind kind = Kind::Flat;
    int32_t from = 0, to = 0;     // ranks
    const void* key = nullptr;    // FlatCopy, PartCopy or Receive::Source
    const void* first = nullptr;  // the same bytes come for this one
    int64_t bytes = 0;
  };
  struct Sum {
    const TermSum* sum = nullptr;
    std::vector<int32_t> wanting;                    // ranks, ascending
    std::vector<std::pair<int32_t, int32_t>> terms;  // owner and term, ascending
    bool divided = false;
  };

  int32_t owner(int32_t slot) const { return own_.of_slot[static_cast<size_t>(slot)]; }
  void note(Kind kind, int32_t from, int32_t to, int64_t bytes, const void* key);
  void note_bytes(const FlatCopy& copy) { note(Kind::Flat, copy.from, copy.to, copy.bytes, &copy); }
  void note_sum(const TermSum& sum);
  void find_repetitions();
  void index();
  static Parcel parcel_of(const Item& item);

  template <class Sink>
  void tell_merge(const StatisticsMerge& merge, int32_t rank, Sink& sink) const {
    bool has = false;
    for (int32_t slot : merge.slots) has |= owner(slot) == rank;
    if (!has) return;
    const int64_t size = byte_size(merge.exchange.type).value;
    std::vector<int32_t> all;
    for (int32_t slot : merge.slots) all.push_back(owner(slot));
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    for (const int32_t& slot : merge.slots) {
      const Parcel parcel = {.slot = slot, .bytes = size};
      if (owner(slot) != rank)
        sink.add(owner(slot), rank, parcel, &slot);
      else
        for (int32_t to : all)
          if (to != rank) sink.add(rank, to, parcel, &slot);
    }
  }

  template <class Sink>
  void tell_sum(size_t index, int32_t rank, Sink& sink) const {
    const Sum& of = sums_[index];
    const TermSum& sum = *of.sum;
    const bool wants = std::ranges::binary_search(of.wanting, rank);
    // Mostly each rank has one.
    const auto at = static_cast<size_t>(rank);
    const bool own_each = at < of.terms.size() && of.terms[at].first == rank &&
                          (at == 0 || of.terms[at - 1].first != rank);
    const auto begin = own_each ? of.terms.begin() + rank
                                : std::ranges::lower_bound(of.terms, std::pair{rank, int32_t{-1}});
    auto end = begin;
    while (end != of.terms.end() && end->first == rank) ++end;
    if (!wants && begin == end) return;
    const int64_t each = element_bytes(sum.dtype);
    // All terms of these elements go to one rank.
    const auto bring = [&](int32_t to, const Range& part) {
      const auto send = [&](int32_t from, const TermSum::Where& term) {
        sink.add(
            from, to,
            {.slot = term.slot, .at = term.at + part.begin * each, .bytes = part.size() * each},
            &term);
      };
      if (part.size() == 0) return;
      if (to == rank) {
        for (const auto& [from, term] : of.terms)
          if (from != rank) send(from, sum.terms[static_cast<size_t>(term)]);
      } else {
        for (auto own = begin; own != end; ++own)
          send(rank, sum.terms[static_cast<size_t>(own->second)]);
      }
    };
    if (!of.divided) {
      for (int32_t to : of.wanting) bring(to, {0, sum.count});
      return;
    }
    for (size_t i = 0; i < of.wanting.size(); ++i) {
      const int32_t adds = of.wanting[i];
      const Range part = chunk_of(sum.count, i, of.wanting.size());
      if (wants) sink.chunk(static_cast<int32_t>(index), of.wanting, i, part);
      bring(adds, part);
      if (part.size() == 0) continue;
      const Parcel made = {.sum = static_cast<int32_t>(index), .bytes = part.size() * each};
      if (adds != rank) {
        if (wants) sink.pass_on(adds, rank, made);
        continue;
      }
      for (int32_t to : of.wanting)
        if (to != rank) sink.pass_on(rank, to, made);
    }
  }

  const Ownership& own_;
  std::vector<Item> items_;
  std::vector<uint32_t> begin_, of_rank_;  // by rank: items that it sends or gets
  std::vector<const StatisticsMerge*> merges_;
  std::vector<Sum> sums_;
  std::vector<int32_t> ranks_;
};

}  // namespace windlass

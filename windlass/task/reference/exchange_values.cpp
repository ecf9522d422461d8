#include "windlass/task/reference/exchange_values.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"

namespace windlass::reference {
namespace {

double combined(CombineFn fn, double a, double b) {
  switch (fn) {
    case CombineFn::Sum: return a + b;
    case CombineFn::Max: return std::max(a, b);
    case CombineFn::Min: return std::min(a, b);
  }
  return 0;
}

class Mover {
 public:
  Mover(HeldValues& held, const TaskGraph& tasks, TaskId id)
      : held_(held),
        tasks_(tasks),
        task_(tasks[id]),
        uses_(tasks.uses_of(id)),
        movement_(tasks.movements[static_cast<size_t>(task_.how)]),
        digits_(tasks.digit_sets[static_cast<size_t>(movement_.digits)]) {}

  void run() {
    if (movement_.from_layout >= 0) return redistribute();
    uint32_t count = 0;
    for (const Use& use : uses_) count = std::max(count, use.index + 1);
    for (uint32_t i = 0; i < count; ++i) share(i);
  }

 private:
  int64_t members(int32_t group) const {
    return static_cast<int64_t>(tasks_.groups[static_cast<size_t>(group)].size());
  }
  const Use* find(UseKind kind, uint32_t index, int64_t member) const {
    for (const Use& use : uses_)
      if (use.kind == kind && use.index == index) {
        const auto holders = held_.members(use.buffer);
        if (std::ranges::find(holders, member) != holders.end()) return &use;
      }
    return nullptr;
  }

  // One tensor, from one layout to another.
  void redistribute() {
    const Layout& from = tasks_.layouts[static_cast<size_t>(movement_.from_layout)];
    const Layout& to = tasks_.layouts[static_cast<size_t>(movement_.to_layout)];
    const auto region = [&](const Layout& layout, int64_t m) {
      return held_.region(layout, task_.tensor, task_.micro_batch, m);
    };
    std::vector<HeldValues::Seen> seen;
    for (int64_t m = 0; m < members(movement_.from_group); ++m) {
      const Use* use = find(UseKind::From, 0, m);
      ensure(use != nullptr, "a member has nothing to send");
      seen.push_back(held_.see(*use, m));
      ensure(seen.back().region == region(from, m), "what is sent does not lie as the move says");
    }
    std::vector<Array> results;
    for (int64_t m = 0; m < members(movement_.to_group); ++m)
      results.push_back(receive(seen, from, region(to, m), m));
    for (int64_t m = 0; m < members(movement_.to_group); ++m) {
      const Use* use = find(UseKind::To, 0, m);
      if (use == nullptr) use = find(UseKind::From, 0, m);  // in place
      ensure(use != nullptr, "a member has no place for what it is sent");
      if (use->kind == UseKind::From) {
        held_.set_layout(use->buffer, to);
      } else {
        const Region place = held_.region(use->buffer, m);
        results[static_cast<size_t>(m)] =
            cut(results[static_cast<size_t>(m)], region(to, m), place);
      }
      held_.put(use->buffer, m, {std::move(results[static_cast<size_t>(m)])});
    }
  }

  // What a member gets: each element from somebody who has it. Partial results are combined in the
  // order of the members, and pieces that overlap are added up if the move says so.
  Array receive(const std::vector<HeldValues::Seen>& seen, const Layout& from, const Region& wanted,
                int64_t member) const {
    std::vector<int64_t> senders;
    if (movement_.pairwise)
      for (int64_t m = 0; m < members(movement_.from_group); ++m) senders.push_back(m);
    else
      senders = peers_of(digits_, member);
    Array result(local_shape(wanted), std::nan(""));
    std::vector<Region> added;
    std::map<int64_t, Array> parts;  // by place among partial results
    const CombineFn combine = movement_.pairwise ? CombineFn::Sum : partial_combine(from);
    for (int64_t m : senders) {
      const HeldValues::Seen& there = seen[static_cast<size_t>(m)];
      int64_t place = movement_.pairwise ? 0 : partial_place(from, m);
      if (movement_.sums) {
        if (std::ranges::find(added, there.region) != added.end()) continue;
        added.push_back(there.region);
        place = m;
      }
      Array& part = parts.try_emplace(place, result.shape, std::nan("")).first->second;
      transfer(there.array, there.region, part, wanted);
    }
    for (const auto& [place, part] : parts)
      for (size_t i = 0; i < part.values.size(); ++i) {
        const double value = part.values[i];
        double& known = result.values[i];
        if (std::isnan(known))
          known = value;
        else if (!std::isnan(value))
          known = combined(combine, known, value);
      }
    for (double& value : result.values) {
      ensure(movement_.sums || !std::isnan(value), "nobody sends an element that is wanted");
      if (std::isnan(value)) value = 0;
    }
    return result;
  }

  // Pieces summed up, shared out or put together again over the members that share them.
  void share(uint32_t index) {
    const int64_t count = members(task_.group);
    std::vector<const Use*> from, to;
    std::vector<Array> sent;
    for (int64_t m = 0; m < count; ++m) {
      from.push_back(find(UseKind::From, index, m));
      to.push_back(find(UseKind::To, index, m));
      ensure(from.back() != nullptr, "a member has nothing to send");
      sent.push_back(held_.at(from.back()->buffer, m)[0]);
    }
    for (int64_t m = 0; m < count; ++m) {
      const Use& source = *from[static_cast<size_t>(m)];
      const Buffer& buffer = held_.buffer(source.buffer);
      const Region region = region_of(held_.layout(source.buffer), held_.shape(buffer.tensor), m);
      const int64_t elements = element_count(local_shape(region));
      const std::vector<int64_t> peers = peers_of(digits_, m);
      Array result(local_shape(region), std::nan(""));
      for (size_t p = 0; p < peers.size(); ++p) {
        const Array& part = sent[static_cast<size_t>(peers[p])];
        if (movement_.collective == Collective::AllGather) {
          const Range theirs = share_of(elements, digits_, peers[p]);
          const bool flat = buffer.share != 0;
          for (int64_t i = theirs.begin; i < theirs.end; ++i)
            result.values[static_cast<size_t>(i)] =
                part.values[static_cast<size_t>(flat ? i - theirs.begin : i)];
          continue;
        }
        ensure(static_cast<int64_t>(part.values.size()) == elements, "members sum different parts");
        for (size_t i = 0; i < part.values.size(); ++i)
          result.values[i] = p == 0 ? part.values[i] : result.values[i] + part.values[i];
      }
      keep(source, to[static_cast<size_t>(m)], std::move(result), elements, m);
    }
    if (movement_.collective == Collective::AllGather) return;
    for (const Use& use : uses_)
      if (use.kind == UseKind::From && use.index == index && use.write)
        held_.set_layout(use.buffer, without_partial(held_.layout(use.buffer), digits_));
  }

  void keep(const Use& source, const Use* target, Array result, int64_t elements, int64_t member) {
    if (movement_.collective == Collective::ReduceScatter) {
      const Range mine = share_of(elements, digits_, member);
      for (int64_t i = 0; i < elements; ++i)
        if (i < mine.begin || i >= mine.end) result.values[static_cast<size_t>(i)] = std::nan("");
      if (target != nullptr)
        result = Array({mine.size()},
                       {result.values.begin() + mine.begin, result.values.begin() + mine.end});
    }
    const Use& where = target != nullptr ? *target : source;
    if (!where.adds) return held_.put(where.buffer, member, {std::move(result)});
    Array& sum = held_.at(where.buffer, member)[0];
    ensure(sum.values.size() == result.values.size(), "a share is added to one of another size");
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += result.values[i];
  }

  HeldValues& held_;
  const TaskGraph& tasks_;
  const Task& task_;
  std::span<const Use> uses_;
  const Movement& movement_;
  const std::vector<MemberDigit>& digits_;
};

}  // namespace

void exchange_values(HeldValues& held, const TaskGraph& tasks, TaskId id) {
  Mover(held, tasks, id).run();
}

namespace {

// One buffer from those that have parts of it, on one member.
class CopyTo {
 public:
  CopyTo(HeldValues& held, const TaskGraph& tasks, TaskId id, const Use& to)
      : held_(held), tasks_(tasks), how_(shares(tasks[id])), to_(to), target_(tasks[to.buffer]) {
    for (const Use& use : tasks.uses_of(id))
      if (use.kind == UseKind::From && use.index == to.index) from_.push_back(&use);
    ensure(!from_.empty(), "a copy comes from nowhere");
  }

  void run(int64_t member) {
    const Buffer& source = tasks_[from_[0]->buffer];
    HeldValues::Arrays arrays = held_.at(from_[0]->buffer, member);
    if (source.kind != BufferKind::OptimizerState) arrays = {seen(source, member)};
    const int64_t elements = element_count(local_shape(held_.region(to_.buffer, member)));
    const bool swaps = how_ >= 0;
    const int32_t set = swaps ? how_ : source.share != 0 ? source.share : target_.share;
    const Range mine = share_of(elements, tasks_.digit_sets[static_cast<size_t>(set)], member);
    HeldValues::Arrays result;
    for (size_t i = 0; i < arrays.size(); ++i) {
      const Array& array = arrays[i];
      const int64_t wanted = source.share != 0 ? mine.size() : elements;
      ensure(static_cast<int64_t>(array.values.size()) == wanted, "a copy is of another size");
      if (!swaps && source.share == target_.share) {
        result.push_back(array);
      } else if (!swaps && source.share == 0) {
        result.emplace_back(Shape{mine.size()},
                            std::vector<double>(array.values.begin() + mine.begin,
                                                array.values.begin() + mine.end));
      } else {
        // To its place in what is whole, beside what others have put there.
        Array whole = held_.there(to_.buffer, member)
                          ? held_.at(to_.buffer, member)[i]
                          : Array(local_shape(held_.region(to_.buffer, member)), std::nan(""));
        const auto begin = array.values.begin() + (source.share != 0 ? 0 : mine.begin);
        std::copy(begin, begin + mine.size(), whole.values.begin() + mine.begin);
        result.push_back(std::move(whole));
      }
    }
    held_.put(to_.buffer, member, std::move(result));
  }

 private:
  // The digits over which a swap is of shares; -1: of all.
  static int32_t shares(const Task& task) {
    const bool swap = task.kind == TaskKind::SwapIn || task.kind == TaskKind::SwapOut;
    return swap ? std::max(task.how, -1) : -1;
  }
  // As the target lies, if nobody shares.
  Array seen(const Buffer& source, int64_t member) {
    if (source.share != 0 || target_.share != 0) return held_.see(*from_[0], member).array;
    const Region region = held_.region(to_.buffer, member);
    Array result(local_shape(region), std::nan(""));
    int64_t found = 0;
    for (const Use* use : from_) {
      const HeldValues::Seen part = held_.see(*use, member);
      found += transfer(part.array, part.region, result, region);
    }
    ensure(found == static_cast<int64_t>(result.values.size()),
           "what is copied is not all there, or there twice");
    return result;
  }

  HeldValues& held_;
  const TaskGraph& tasks_;
  int32_t how_;
  const Use& to_;
  const Buffer& target_;
  std::vector<const Use*> from_;
};

}  // namespace

void copy_values(HeldValues& held, const TaskGraph& tasks, TaskId id,
                 const std::vector<int64_t>& members) {
  for (const Use& use : tasks.uses_of(id)) {
    const auto same = [&](const Use& other) {
      return other.kind == UseKind::To && other.index == use.index;
    };
    if (use.kind == UseKind::From)
      ensure(std::ranges::any_of(tasks.uses_of(id), same), "a copy goes nowhere");
    if (use.kind != UseKind::To) continue;
    CopyTo copy(held, tasks, id, use);
    for (int64_t m : members) {
      copy.run(m);
      if (tasks[id].how == kFirstMember) break;
    }
  }
}

}  // namespace windlass::reference

// Updates of weights, and the squares of their gradients.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/runtime/program_maker.h"

namespace windlass {
namespace {

// Elements [range.begin, range.end) of a flat array that starts at byte `at` of a slot.
Operand flat(int32_t slot, int64_t at, DType dtype, const Range& range) {
  return {.slot = slot,
          .type = {dtype, {range.size()}},
          .offset = at + range.begin * element_bytes(dtype)};
}

}  // namespace

void ProgramMaker::update(TaskId id, Part& part) const {
  const Task& task = tasks_[id];
  const bool on_host = task.kind == TaskKind::HostUpdate;
  const auto entry = [&](uint32_t index) -> WeightUpdate& {
    const auto found =
        std::ranges::find(part.updates, static_cast<int32_t>(index), &WeightUpdate::update);
    if (found != part.updates.end()) return *found;
    part.updates.push_back({.update = static_cast<int32_t>(index)});
    return part.updates.back();
  };
  const auto uses = tasks_.uses_of(id);
  for (const Use& use : uses) {
    if (use.kind != UseKind::Weight) continue;
    const auto gradient = std::ranges::find_if(uses, [&](const Use& other) {
      return other.kind == UseKind::Gradient && other.index == use.index;
    });
    ensure(gradient != uses.end(), "a weight is updated without a gradient");
    // What one host holds for several members is updated once.
    const auto whose = [&](int64_t member) {
      return on_host ? held_.key(gradient->buffer, member, task.how) : member;
    };
    // The first of them, which may be held elsewhere.
    const int64_t first = whose(part.member);
    const bool done = first != part.member &&
                      (held_.holders(use.buffer).contains(first) ||
                       std::ranges::any_of(held_.members(use.buffer), [&](int64_t before) {
                         return before < part.member && whose(before) == first;
                       }));
    if (done) continue;
    WeightUpdate& update = entry(use.index);
    const TensorId weight = update_op(use.index).inputs[0];
    update.region = region_of(held_.layout(use.buffer), shape(weight), part.member);
    const int64_t elements = element_count(local_shape(update.region));
    update.mine = share_of(elements, digits(task.how), part.member);
  }
  // A buffer holds all of the piece, or this member's share of it.
  const auto range_in = [&](const Use& use, const WeightUpdate& update) {
    const bool whole = tasks_[use.buffer].share == 0;
    return whole ? update.mine : Range{0, update.mine.size()};
  };
  for (const Use& use : uses) {
    if (use.kind == UseKind::Squares) {
      part.squares.push_back(
          {.slot = slot(use.buffer, part.member), .type = training_.graph[training_.squares].type});
      continue;
    }
    const auto found =
        std::ranges::find(part.updates, static_cast<int32_t>(use.index), &WeightUpdate::update);
    if (found == part.updates.end()) continue;
    WeightUpdate& update = *found;
    const Op& op = update_op(use.index);
    const Graph& graph = training_.graph;
    const int64_t elements = element_count(local_shape(update.region));
    const Range range = range_in(use, update);
    const int64_t all = tasks_[use.buffer].share == 0 ? elements : update.mine.size();
    if (use.kind == UseKind::Gradient) {
      Operand gradient;
      if (tasks_[use.buffer].share == 0) {
        gradient = operand(use, part.member, update.region);
        gradient.type.dtype = graph[op.inputs[1]].type.dtype;
        // What is no dense part is copied, all of it.
        if (gradient.cuts.empty()) {
          gradient.offset += range.begin * element_bytes(gradient.type.dtype);
          gradient.type.shape = {range.size()};
        }
      } else {
        gradient = flat(slot(use.buffer, part.member), 0, graph[op.inputs[1]].type.dtype, range);
      }
      update.gradients.push_back(std::move(gradient));
    } else if (use.kind == UseKind::Weight) {
      update.weight = flat(slot(use.buffer, part.member), 0, graph[op.inputs[0]].type.dtype, range);
    } else if (use.kind == UseKind::State) {
      int64_t at = 0;
      for (size_t k = 2; k < op.inputs.size(); ++k) {
        if (!op.inputs[k].valid()) continue;
        const DType dtype = graph[op.inputs[k]].type.dtype;
        Operand state = flat(slot(use.buffer, part.member), at, dtype, range);
        at += all * element_bytes(dtype);
        if (k == 2)
          update.master = std::move(state);
        else
          update.states.push_back(std::move(state));
      }
    }
  }
  // The host makes 16-bit weights from their masters.
  for (const WeightUpdate& update : part.updates) {
    ensure(!update.gradients.empty(), "a weight is updated without a gradient");
    part.allocates.push_back(update.weight.slot);
  }
}

// Of the elements that a member has of a gradient (or of its share), those that no member before
// has.
std::vector<Range> ProgramMaker::counted(const Use& gradient, int64_t member,
                                         int32_t shared) const {
  const Shape& whole = shape(tasks_[gradient.buffer].tensor);
  const Layout& layout = held_.layout(gradient.buffer);
  const auto range_of = [&](int64_t m) {
    const Region region = region_of(layout, whole, m);
    return share_of(element_count(local_shape(region)), digits(shared), m);
  };
  const Region region = region_of(layout, whole, member);
  const Range mine = range_of(member);
  bool apart = true;
  for (int64_t before = 0; before < member; ++before) {
    const Region other = region_of(layout, whole, before);
    if (other == region) {
      const Range theirs = range_of(before);
      if (theirs == mine) return {};
      apart &= theirs.end <= mine.begin || mine.end <= theirs.begin;
    } else {
      apart &= Overlap(other, region).elements() == 0;
    }
  }
  if (apart) return {mine};
  // Element by element: windows that overlap.
  std::vector<bool> taken(static_cast<size_t>(element_count(whole)), false);
  for (int64_t before = 0; before < member; ++before) {
    const Region other = region_of(layout, whole, before);
    const Range theirs = range_of(before);
    for (int64_t i = theirs.begin; i < theirs.end; ++i)
      taken[static_cast<size_t>(whole_element(other, i))] = true;
  }
  std::vector<Range> ranges;
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    if (taken[static_cast<size_t>(whole_element(region, i))]) continue;
    if (!ranges.empty() && ranges.back().end == i)
      ++ranges.back().end;
    else
      ranges.push_back({i, i + 1});
  }
  return ranges;
}

void ProgramMaker::squares(TaskId id, Part& part) const {
  const Task& task = tasks_[id];
  for (const Use& use : tasks_.uses_of(id)) {
    if (use.kind == UseKind::Squares) {
      part.squares = {{.slot = slot(use.buffer, part.member),
                       .type = training_.graph[training_.squares].type,
                       .adds = use.adds}};
      continue;
    }
    if (use.kind != UseKind::Gradient) continue;
    ensure(use.view < 0, "squares are of a view");
    const Buffer& buffer = tasks_[use.buffer];
    // On a host, gradients lie as those of the weights that they are named after.
    const DType dtype = training_.graph[update_op(use.index).inputs[1]].type.dtype;
    const Region region = region_of(held_.layout(use.buffer), shape(buffer.tensor), part.member);
    const Range mine = share_of(element_count(local_shape(region)), digits(task.how), part.member);
    const int64_t first = buffer.share != 0 ? mine.begin : 0;
    for (const Range& range : counted(use, part.member, task.how))
      part.squared.push_back(
          flat(slot(use.buffer, part.member), 0, dtype, {range.begin - first, range.end - first}));
  }
  ensure(!part.squares.empty(), "squares go nowhere");
  if (!part.squares[0].adds) part.allocates = {part.squares[0].slot};
}

}  // namespace windlass

#include "windlass/plan/check_layouts.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/task/lower.h"

namespace windlass {
namespace {

// The indices of an axis that a box with blocks stands for.
std::vector<Range> intervals(Range range, int64_t size, int64_t blocks) {
  if (blocks <= 1 || range.size() * blocks >= size) {
    if (blocks > 1) return {{0, size}};
    return {range};
  }
  std::vector<Range> result;
  for (int64_t b = 0; b < blocks; ++b)
    result.push_back({range.begin + b * (size / blocks), range.end + b * (size / blocks)});
  return result;
}

std::vector<int64_t> blocks_of(const Layout& layout, size_t rank) {
  std::vector<int64_t> blocks(rank, 1);
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Axis) blocks[static_cast<size_t>(digit.axis)] = digit.blocks;
  return blocks;
}

bool covers(const std::vector<Range>& has, const std::vector<Range>& wants) {
  return std::ranges::all_of(wants, [&](const Range& want) {
    return want.size() <= 0 || std::ranges::any_of(has, [&](const Range& range) {
             return range.begin <= want.begin && want.end <= range.end;
           });
  });
}

}  // namespace

CheckLayouts::CheckLayouts(const TrainingGraph& training, const Strategy& strategy) {
  for (size_t i = 0; i < training.forward_ops; ++i)
    ops_.push_back(make(training, training.graph.ops[i],
                        strategy.shardings[static_cast<size_t>(strategy.ops[i])]));
}

OpLayouts CheckLayouts::make(const TrainingGraph& training, const Op& op,
                             const Sharding& sharding) {
  const LoopNest nest = loops_of(training.graph, op);
  OpLayouts result;
  const auto add = [&](const std::vector<TensorId>& ids, const std::vector<OperandMap>& maps,
                       Access access, std::vector<int32_t>& list) {
    for (size_t i = 0; i < ids.size(); ++i) {
      const TensorType type = training.graph.type_of(ids[i]);
      list.push_back(type.present() ? intern(layout_of(nest, sharding, maps[i], type.shape, access))
                                    : -1);
    }
  };
  add(op.inputs, nest.inputs, Access::Read, result.inputs);
  add(op.inputs, nest.inputs, Access::GiveGradient, result.input_gradients);
  add(op.outputs, nest.outputs, Access::Result, result.outputs);
  add(op.outputs, nest.outputs, Access::ReadGradient, result.output_gradients);
  add(op.auxiliaries, nest.auxiliaries, Access::Result, result.auxiliaries);
  for (const Split& split : sharding.splits) {
    if (split.loop < 0 || split.parts == 1) continue;
    const LoopDim& loop = nest.loops[static_cast<size_t>(split.loop)];
    if (loop.role != LoopRole::Coupled) continue;
    result.coupled = result.coupled || loop.coupling.forward > 0;
    result.backward_coupled = result.backward_coupled || loop.coupling.backward > 0;
  }
  return result;
}

int32_t CheckLayouts::intern(const Layout& layout) {
  std::vector<int64_t> key;
  for (const Digit& d : layout.digits) {
    key.insert(key.end(), {static_cast<int64_t>(d.kind), d.parts});
    if (d.kind == Digit::Kind::Partial) key.push_back(static_cast<int64_t>(d.combine));
    if (d.kind == Digit::Kind::Axis)
      key.insert(key.end(),
                 {d.axis, d.loop_size, d.blocks, d.map.stride, d.map.offset, d.map.window});
  }
  const auto [entry, fresh] = index_.try_emplace(key, static_cast<int32_t>(layouts_.size()));
  if (fresh) layouts_.push_back(layout);
  return entry->second;
}

int32_t CheckLayouts::settled(int32_t id) {
  const auto [entry, fresh] = settled_.try_emplace(id, id);
  if (!fresh || !partial(id)) return entry->second;
  const int32_t found = intern(windlass::settled((*this)[id]));
  settled_[id] = found;
  return found;
}

int32_t CheckLayouts::copies(int64_t members) {
  Layout layout;
  layout.digits.push_back(Digit{.parts = static_cast<int32_t>(members)});
  return intern(layout);
}

bool CheckLayouts::fits(const Shape& shape, int32_t has, int32_t wants, int64_t members) {
  if (has == wants) return true;
  if (partial(has)) return false;
  const auto [entry, fresh] = fits_.try_emplace({shape, has, wants}, true);
  if (!fresh) return entry->second;
  const Layout& from = (*this)[has];
  const Layout& to = (*this)[wants];
  const auto from_blocks = blocks_of(from, shape.size()), to_blocks = blocks_of(to, shape.size());
  for (int64_t m = 0; m < members && entry->second; ++m) {
    const Box held = box_of(from, shape, m), wanted = box_of(to, shape, m);
    for (size_t a = 0; a < shape.size() && entry->second; ++a)
      entry->second = covers(intervals(held[a], shape[a], from_blocks[a]),
                             intervals(wanted[a], shape[a], to_blocks[a]));
  }
  return entry->second;
}

int32_t CheckLayouts::moves(const Shape& shape, int32_t from, int64_t from_members, int32_t to,
                            int64_t to_members, bool crosses) {
  const auto [entry, fresh] =
      moves_.try_emplace({shape, from, from_members, to, to_members, crosses}, 0);
  if (fresh) {
    const Redistribution plan =
        crosses ? send(shape, (*this)[from], from_members, (*this)[to], to_members)
                : redistribute(shape, (*this)[from], (*this)[to], from_members);
    entry->second = static_cast<int32_t>(plan.moves.size());
  }
  return entry->second;
}

int64_t CheckLayouts::elements(const Shape& shape, int32_t layout) {
  const auto [entry, fresh] = elements_.try_emplace({shape, layout}, 0);
  if (fresh) entry->second = largest_elements((*this)[layout], shape);
  return entry->second;
}

int64_t CheckLayouts::bytes(const TensorType& type, int32_t layout) {
  const int64_t size = elements(type.shape, layout) * element_bytes(type.dtype);
  return (size + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit;
}

int64_t CheckLayouts::partial_parts(int32_t layout) const {
  int64_t parts = 1;
  for (const MemberDigit& digit : digits(layout, true)) parts *= digit.parts;
  return parts;
}

int64_t CheckLayouts::replicas(int32_t layout) const {
  int64_t parts = 1;
  for (const MemberDigit& digit : digits(layout, false)) parts *= digit.parts;
  return parts;
}

std::vector<MemberDigit> CheckLayouts::digits(int32_t layout, bool partial_only) const {
  std::vector<MemberDigit> result;
  int64_t place = 1;
  const auto& list = (*this)[layout].digits;
  for (size_t i = list.size(); i-- > 0;) {
    const bool counts =
        partial_only ? list[i].kind == Digit::Kind::Partial : list[i].kind != Digit::Kind::Axis;
    // Neighbours are one digit, so that equal sets of members look equal.
    if (counts && !result.empty() && result.back().place * result.back().parts == place)
      result.back().parts *= list[i].parts;
    else if (counts)
      result.push_back({place, list[i].parts});
    place *= list[i].parts;
  }
  return result;
}

std::string check_tiling(const LoopNest& nest, const Sharding& sharding) {
  for (size_t l = 0; l < nest.loops.size(); ++l) {
    std::vector<Range> pieces = {{0, nest.loops[l].size}};
    int64_t blocks = 1;
    for (const Split& split : sharding.splits) {
      if (split.loop != static_cast<int32_t>(l)) continue;
      std::vector<Range> finer;
      for (const Range& piece : pieces) {
        // Blocks are cut alike: the first one stands for all.
        const int64_t size = split.blocks > blocks ? piece.size() / split.blocks : piece.size();
        for (int32_t p = 0; p < split.parts; ++p) {
          const Range part = part_of(size, split.parts, p);
          finer.push_back({piece.begin + part.begin, piece.begin + part.end});
        }
      }
      blocks = std::max<int64_t>(blocks, split.blocks);
      pieces = std::move(finer);
    }
    std::ranges::sort(pieces, {}, &Range::begin);
    int64_t next = 0;
    for (const Range& piece : pieces) {
      if (piece.begin != next || piece.size() < 1)
        return fmt::format("its pieces do not tile loop {}: one is [{}, {}) after {}",
                           nest.loops[l].name, piece.begin, piece.end, next);
      next = piece.end;
    }
    if (next != nest.loops[l].size / blocks)
      return fmt::format("its pieces cover {} of {} of loop {}", next, nest.loops[l].size / blocks,
                         nest.loops[l].name);
  }
  return {};
}

}  // namespace windlass

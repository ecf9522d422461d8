#include "windlass/plan/check_layouts.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/graph/coupled.h"

namespace windlass {
namespace {

// Sorted, and those that touch made one.
std::vector<Range> joined(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> result;
  for (const Range& range : ranges) {
    if (range.size() <= 0) continue;
    if (!result.empty() && range.begin <= result.back().end)
      result.back().end = std::max(result.back().end, range.end);
    else
      result.push_back(range);
  }
  return result;
}

bool inside(const std::vector<Range>& wanted, const std::vector<Range>& ranges) {
  return std::ranges::all_of(wanted, [&](const Range& want) {
    return std::ranges::any_of(ranges, [&](const Range& range) {
      return range.begin <= want.begin && want.end <= range.end;
    });
  });
}

}  // namespace

Part member_part(const Layout& layout, const Shape& shape, int64_t member) {
  const Box box = box_of(layout, shape, member);
  std::vector<int64_t> blocks(shape.size(), 1);
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Axis) blocks[static_cast<size_t>(digit.axis)] = digit.blocks;
  Part part;
  for (size_t a = 0; a < shape.size(); ++a) {
    std::vector<Range> runs;
    for (int64_t b = 0; b < blocks[a]; ++b) {
      const int64_t begin = b * (shape[a] / blocks[a]);
      runs.push_back({begin + box[a].begin, begin + box[a].end});
    }
    part.push_back(joined(std::move(runs)));
  }
  return part;
}

int64_t volume(const Part& part) {
  int64_t count = 1;
  for (const auto& ranges : part) {
    int64_t along = 0;
    for (const Range& range : ranges) along += range.size();
    count *= along;
  }
  return count;
}

int64_t common(const Part& a, const Part& b) {
  int64_t count = 1;
  for (size_t i = 0; i < a.size() && count > 0; ++i) {
    int64_t along = 0;
    for (const Range& x : a[i])
      for (const Range& y : b[i])
        along += std::max<int64_t>(0, std::min(x.end, y.end) - std::max(x.begin, y.begin));
    count *= along;
  }
  return count;
}

bool cover(const std::vector<const Part*>& parts, const Part& wanted) {
  for (size_t a = 0; a < wanted.size(); ++a) {
    std::vector<Range> all;
    for (const Part* part : parts) all.insert(all.end(), (*part)[a].begin(), (*part)[a].end());
    if (!inside(wanted[a], joined(std::move(all)))) return false;
  }
  return !parts.empty();
}

int64_t digits_of_kind(const Layout& layout, int64_t member, Digit::Kind kind) {
  int64_t place = 1, number = 0;
  for (size_t i = layout.digits.size(); i-- > 0; place *= layout.digits[i].parts)
    if (layout.digits[i].kind == kind) number += member / place % layout.digits[i].parts * place;
  return number;
}

CheckLayouts::CheckLayouts(const TrainingGraph& training, const Strategy& strategy)
    : training_(training), sized_(&training), strategy_(strategy) {
  std::map<Shape, int32_t> shapes;
  if (training.unequal) list(training.unequal->smaller, 1, shapes);
  list(training, 0, shapes);
}

void CheckLayouts::list(const TrainingGraph& training, size_t smaller,
                        std::map<Shape, int32_t>& shapes) {
  sized_ = &training;
  smaller_ = smaller;
  for (const Tensor& tensor : training.graph.tensors)
    shapes_[smaller].push_back(
        shapes.try_emplace(tensor.type.shape, static_cast<int32_t>(shapes.size())).first->second);
  std::vector<CheckOp>& ops = ops_[smaller];
  ops.resize(training.graph.ops.size());
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const bool backward = i >= training.forward_ops;
    if (backward && !op.forward.valid()) continue;
    const LoopNest nest = loops_of(training.graph, op);
    const size_t forward = backward ? op.forward.index() : i;
    const Sharding& sharding = strategy_.shardings[static_cast<size_t>(strategy_.ops[forward])];
    backward ? list_backward(op, nest, sharding, ops[i]) : list_forward(op, nest, sharding, ops[i]);
    list_exchange(op, nest, sharding, ops[i]);
  }
}

void CheckLayouts::list_exchange(const Op& op, const LoopNest& nest, const Sharding& sharding,
                                 CheckOp& made) {
  std::vector<MemberDigit> digits;
  int64_t place = size_of(sharding);
  const int64_t members = place;
  for (const Split& split : sharding.splits) {
    place /= split.parts;
    if (split.loop >= 0 && split.parts > 1 && couples(nest.loops[static_cast<size_t>(split.loop)]))
      digits.push_back({place, split.parts});
  }
  if (digits.empty()) return;
  const Signature signature = signature_of(sized_->graph, op);
  std::map<std::vector<int32_t>, int64_t> most;  // by sizes of the member
  for (int64_t m = 0; m < members; ++m) {
    const OpPiece piece = piece_of(signature, nest, loop_parts(nest, sharding, m));
    const TensorType type = exchange_of(piece, op.pass, wanted_of(op)).type;
    int64_t& bytes = most[sizes_of(sharding, m)];
    if (type.present()) bytes = std::max(bytes, byte_size(type).value);
    made.exchanged = std::max(made.exchanged, bytes);
  }
  for (int64_t m = 0; m < members; ++m) made.exchanged_of.push_back(most[sizes_of(sharding, m)]);
  if (made.exchanged > 0) made.digits = intern(std::move(digits));
}

int32_t CheckLayouts::layout_for(const LoopNest& nest, const Sharding& sharding,
                                 const OperandMap& map, TensorId tensor, Access access) {
  return intern(layout_of(nest, sharding, map, sizes(tensor), access));
}

void CheckLayouts::list_forward(const Op& op, const LoopNest& nest, const Sharding& sharding,
                                CheckOp& made) {
  std::vector<int32_t> written;
  if (const auto& writes = op_info(op.kind).writes)
    written = writes(signature_of(sized_->graph, op));
  const auto add = [&](UseKind kind, const std::vector<TensorId>& ids,
                       const std::vector<OperandMap>& maps, Access access) {
    const bool result = kind != UseKind::Input;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!ids[i].valid()) continue;
      CheckOperand& operand = (result ? made.results : made.reads).emplace_back();
      operand = {.kind = kind, .index = static_cast<uint32_t>(i), .tensor = ids[i]};
      operand.layout = layout_for(nest, sharding, maps[i], ids[i], access);
      operand.write = result || std::ranges::find(written, i) != written.end();
    }
  };
  add(UseKind::Input, op.inputs, nest.inputs, Access::Read);
  add(UseKind::Output, op.outputs, nest.outputs, Access::Result);
  add(UseKind::Auxiliary, op.auxiliaries, nest.auxiliaries, Access::Result);
}

// Reads the gradients of the outputs, then what was saved as the forward op had it, partial outputs
// combined.
void CheckLayouts::list_backward(const Op& op, const LoopNest& nest, const Sharding& sharding,
                                 CheckOp& made) {
  const size_t gradients = op.inputs.size() - op.saved.size();
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].valid()) continue;
    const OperandMap* map = i < gradients ? &nest.outputs[i] : nullptr;
    Access access = Access::ReadGradient;
    bool combined = false;
    if (i >= gradients) {
      const SavedRef& ref = op.saved[i - gradients];
      const auto index = static_cast<size_t>(ref.index);
      const bool input = ref.source == SavedRef::Source::Input;
      access = input ? Access::Read : Access::Result;
      combined = ref.source == SavedRef::Source::Output;
      map = input                                    ? &nest.inputs[index]
            : ref.source == SavedRef::Source::Output ? &nest.outputs[index]
                                                     : &nest.auxiliaries[index];
    }
    const int32_t layout = layout_for(nest, sharding, *map, op.inputs[i], access);
    made.reads.push_back({.kind = UseKind::Input,
                          .index = static_cast<uint32_t>(i),
                          .tensor = op.inputs[i],
                          .layout = combined ? settled(layout) : layout});
  }
  for (size_t i = 0; i < op.outputs.size(); ++i)
    if (op.outputs[i].valid())
      made.results.push_back({.kind = UseKind::Output,
                              .index = static_cast<uint32_t>(i),
                              .tensor = op.outputs[i],
                              .layout = layout_for(nest, sharding, nest.inputs[i], op.outputs[i],
                                                   gradient_access(op.kind, i)),
                              .write = true,
                              .gradient = true});
}

int32_t CheckLayouts::input_gradient(OpId forward, size_t input) {
  const Op& op = sized_->graph[forward];
  const LoopNest nest = loops_of(sized_->graph, op);
  const auto sharding = static_cast<size_t>(strategy_.ops[forward.index()]);
  return layout_for(nest, strategy_.shardings[sharding], nest.inputs[input], op.inputs[input],
                    gradient_access(op.kind, input));
}

int32_t CheckLayouts::intern(const Layout& layout) {
  std::vector<int64_t> key;
  for (const Digit& d : layout.digits) {
    key.insert(key.end(), {static_cast<int64_t>(d.kind), d.parts});
    if (d.kind == Digit::Kind::Partial) key.push_back(static_cast<int64_t>(d.combine));
    if (d.kind == Digit::Kind::Axis)
      key.insert(key.end(), {d.axis, d.loop_size, d.blocks, d.map.stride, d.map.offset,
                             d.map.window, d.tail, static_cast<int64_t>(d.sizes.size())});
    key.insert(key.end(), d.sizes.begin(), d.sizes.end());
  }
  const auto [entry, fresh] = index_.try_emplace(key, static_cast<int32_t>(layouts_.size()));
  if (fresh) layouts_.push_back(layout);
  return entry->second;
}

int32_t CheckLayouts::partial_digits(int32_t layout) {
  std::vector<MemberDigit> result;
  int64_t place = 1;
  const auto& list = (*this)[layout].digits;
  for (size_t i = list.size(); i-- > 0; place *= list[i].parts)
    if (list[i].kind == Digit::Kind::Partial) result.push_back({place, list[i].parts});
  return intern(std::move(result));
}

int32_t CheckLayouts::intern(std::vector<MemberDigit> digits) {
  std::ranges::sort(digits);
  std::vector<MemberDigit> set;
  for (const MemberDigit& digit : digits) {
    if (!set.empty() && set.back().place * set.back().parts == digit.place)
      set.back().parts *= digit.parts;
    else if (digit.parts != 1)
      set.push_back(digit);
  }
  const auto known = std::ranges::find(sets_, set);
  if (known != sets_.end()) return static_cast<int32_t>(known - sets_.begin());
  sets_.push_back(std::move(set));
  return static_cast<int32_t>(sets_.size() - 1);
}

int64_t CheckLayouts::parts(int32_t set) const {
  int64_t count = 1;
  for (const MemberDigit& digit : digits(set)) count *= digit.parts;
  return count;
}

bool CheckLayouts::among(int32_t set, int64_t members) const {
  return std::ranges::all_of(digits(set), [&](const MemberDigit& digit) {
    return digit.place >= 1 && digit.parts >= 1 && members % (digit.place * digit.parts) == 0;
  });
}

bool CheckLayouts::alike(int32_t layout, int32_t set, int64_t members) {
  if (set == 0) return true;
  const auto [entry, fresh] = alike_.try_emplace({layout, set, members}, false);
  if (!fresh) return entry->second;
  if (!among(set, members)) return false;
  for (int64_t m = 0; m < members; ++m)
    for (int64_t peer : peers_of(digits(set), m))
      if (digits_of_kind((*this)[layout], peer, Digit::Kind::Axis) !=
          digits_of_kind((*this)[layout], m, Digit::Kind::Axis))
        return false;
  return entry->second = true;
}

bool CheckLayouts::suits(TensorId tensor, int32_t layout, int64_t members) {
  const auto [entry, fresh] = suits_.try_emplace({shape(tensor), layout, members}, false);
  if (!fresh) return entry->second;
  const Shape& whole = sizes(tensor);
  int64_t size = 1;
  for (const Digit& digit : (*this)[layout].digits) {
    size *= digit.parts;
    if (digit.kind != Digit::Kind::Axis) continue;
    const auto axis = static_cast<size_t>(digit.axis);
    if (digit.axis < 0 || axis >= whole.size() || whole[axis] % digit.blocks != 0) return false;
    const bool plain =
        digit.map.stride == 1 && digit.map.window == 1 && digit.map.offset == 0 && !digit.tail;
    if (!check_sizes(digit.parts, digit.sizes).empty()) return false;
    // A loop may go on beyond the axis, over padding.
    if (plain && digit.loop_size * digit.blocks < whole[axis]) return false;
  }
  return entry->second = size == members;
}

bool CheckLayouts::fits(TensorId tensor, int32_t has, int32_t wants, int64_t members) {
  if (has == wants) return true;
  const auto [entry, fresh] = fits_.try_emplace({shape(tensor), has, wants, members}, false);
  if (!fresh) return entry->second;
  if (partial(has) || partial(wants) || !suits(tensor, has, members) ||
      !suits(tensor, wants, members))
    return false;
  for (int64_t m = 0; m < members; ++m) {
    const Part held = member_part((*this)[has], sizes(tensor), m);
    if (!cover({&held}, member_part((*this)[wants], sizes(tensor), m))) return false;
  }
  return entry->second = true;
}

bool CheckLayouts::loose(TensorId tensor, int32_t layout, int64_t members) {
  if (!(*this)[layout].halo()) return false;
  const auto [entry, fresh] = loose_.try_emplace({shape(tensor), layout, members}, false);
  if (!fresh) return entry->second;
  std::map<int64_t, Part> parts;
  for (int64_t m = 0; m < members; ++m)
    parts.try_emplace(digits_of_kind((*this)[layout], m, Digit::Kind::Axis),
                      member_part((*this)[layout], sizes(tensor), m));
  std::vector<const Part*> all;
  for (const auto& [a, one] : parts) {
    all.push_back(&one);
    for (const auto& [b, other] : parts)
      if (a < b && common(one, other) > 0) return entry->second = true;
  }
  return entry->second = !cover(all, member_part(Layout{}, sizes(tensor), 0));
}

int64_t CheckLayouts::elements(TensorId tensor, int32_t layout) {
  const auto [entry, fresh] = elements_.try_emplace({shape(tensor), layout}, 0);
  if (fresh) entry->second = largest_elements((*this)[layout], sizes(tensor));
  return entry->second;
}

int64_t CheckLayouts::elements(TensorId tensor, int32_t layout, int64_t member) {
  const auto [entry, fresh] = elements_of_.try_emplace({shape(tensor), layout, member}, 0);
  if (fresh) entry->second = largest_elements((*this)[layout], sizes(tensor), member);
  return entry->second;
}

std::string check_tiling(const LoopNest& nest, const Sharding& sharding) {
  std::vector<std::map<int64_t, int64_t>> pieces(nest.loops.size());  // by loop: begin and end
  std::vector<int64_t> blocks(nest.loops.size(), 1);
  for (int64_t m = 0; m < size_of(sharding); ++m) {
    const std::vector<LoopPart> parts = loop_parts(nest, sharding, m);
    for (size_t l = 0; l < parts.size(); ++l) {
      blocks[l] = parts[l].blocks;
      pieces[l][parts[l].range.begin] = parts[l].range.end;
    }
  }
  for (size_t l = 0; l < pieces.size(); ++l) {
    int64_t next = 0;
    for (const auto& [begin, end] : pieces[l]) next = begin == next && end > begin ? end : -1;
    if (next * blocks[l] != nest.loops[l].size)
      return fmt::format("its pieces do not tile loop {}", nest.loops[l].name);
  }
  return {};
}

}  // namespace windlass

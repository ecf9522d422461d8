#include "windlass/strategy/layout.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

bool identity(const AxisMap& map) { return map.stride == 1 && map.offset == 0 && map.window == 1; }

// Writes a split in units (windows that tile the axis) as a plain cut where the parts come out the
// same.
void simplify(Digit& digit, int64_t axis_size) {
  const AxisMap& map = digit.map;
  const bool tiles = map.offset == 0 && map.stride == map.window &&
                     digit.loop_size * map.stride * digit.blocks == axis_size;
  const int64_t units = part_units(digit.parts, digit.sizes);
  if (!tiles || (map.stride != 1 && digit.loop_size % units != 0)) return;
  digit.loop_size = axis_size / digit.blocks;
  digit.map = {.loop = 0};
}

Digit digit_for(const LoopNest& nest, const Sharding& sharding, const Split& split,
                const OperandMap& map, const Shape& shape, Access access) {
  Digit digit;
  digit.parts = split.parts;
  if (split.loop < 0) return digit;
  const LoopDim& loop = nest.loops[static_cast<size_t>(split.loop)];
  for (size_t a = 0; a < map.size(); ++a) {
    if (map[a].loop != split.loop) continue;
    digit.kind = Digit::Kind::Axis;
    digit.axis = static_cast<int32_t>(a);
    digit.blocks = split.blocks * static_cast<int32_t>(map[a].blocks);
    digit.loop_size = loop.size / split.blocks;
    digit.map = map[a];
    digit.map.loop = 0;
    digit.map.blocks = 1;
    digit.sizes = split.sizes;
    digit.tail = digit.loop_size * digit.map.stride * digit.blocks < shape[a];
    const auto digits = std::ranges::count(sharding.splits, split.loop, &Split::loop);
    if (digits == 1 || digit.map.stride == 1) simplify(digit, shape[a]);
    return digit;
  }
  if (access == Access::Result && loop.role == LoopRole::Reduced) {
    digit.kind = Digit::Kind::Partial;
    digit.combine = loop.combine;
  }
  const bool gives = access == Access::GiveGradient || access == Access::GiveBiasGradient;
  if ((gives && loop.role == LoopRole::Free) ||
      (access == Access::GiveGradient && loop.role == LoopRole::Reduced))
    digit.kind = Digit::Kind::Partial;
  return digit;
}

}  // namespace

Access gradient_access(OpKind kind, size_t input) {
  return static_cast<int32_t>(input) == op_info(kind).bias ? Access::GiveBiasGradient
                                                           : Access::GiveGradient;
}

int64_t size_of(const Sharding& sharding) {
  int64_t size = 1;
  for (const Split& split : sharding.splits) size *= split.parts;
  return size;
}

bool unequal(const Sharding& sharding) {
  return std::ranges::any_of(sharding.splits, [](const Split& s) { return !s.sizes.empty(); });
}

std::vector<int32_t> sizes_of(const Sharding& sharding, int64_t member) {
  std::vector<int32_t> sizes;
  int64_t place = size_of(sharding);
  for (const Split& split : sharding.splits) {
    place /= split.parts;
    const auto index = static_cast<size_t>(member / place % split.parts);
    sizes.push_back(split.sizes.empty() ? 0 : split.sizes[index]);
  }
  return sizes;
}

// The sizes of the part and of parts inside of it vary with rounding: all members are looked at.
std::vector<int64_t> local_sizes(const LoopNest& nest, const Sharding& sharding, int64_t member) {
  std::vector<int64_t> sizes;
  if (unequal(sharding)) {
    const std::vector<int32_t> own = sizes_of(sharding, member);
    sizes.assign(nest.loops.size(), 0);
    for (int64_t m = 0; m < size_of(sharding); ++m) {
      if (sizes_of(sharding, m) != own) continue;
      const std::vector<LoopPart> parts = loop_parts(nest, sharding, m);
      for (size_t l = 0; l < parts.size(); ++l)
        sizes[l] = std::max(sizes[l], parts[l].range.size() * parts[l].blocks);
    }
    return sizes;
  }
  for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
  for (const Split& split : sharding.splits) {
    if (split.loop < 0) continue;
    int64_t& size = sizes[static_cast<size_t>(split.loop)];
    size = largest_part(size / split.blocks, split.parts) * split.blocks;
  }
  return sizes;
}

std::vector<LoopPart> loop_parts(const LoopNest& nest, const Sharding& sharding, int64_t member) {
  std::vector<LoopPart> parts = whole_parts(nest);
  int64_t place = size_of(sharding);
  for (const Split& split : sharding.splits) {
    place /= split.parts;
    if (split.loop < 0) continue;
    LoopPart& loop = parts[static_cast<size_t>(split.loop)];
    if (loop.blocks != split.blocks)
      loop = {{0, nest.loops[static_cast<size_t>(split.loop)].size / split.blocks}, split.blocks};
    const Range part =
        part_of(loop.range.size(), split.parts, split.sizes, member / place % split.parts);
    loop.range = {loop.range.begin + part.begin, loop.range.begin + part.end};
  }
  return parts;
}

bool Digit::operator==(const Digit& other) const {
  if (kind != other.kind || parts != other.parts) return false;
  if (kind == Kind::Partial) return combine == other.combine;
  if (kind == Kind::Copy) return true;
  return axis == other.axis && loop_size == other.loop_size && blocks == other.blocks &&
         map.stride == other.map.stride && map.offset == other.map.offset &&
         map.window == other.map.window && tail == other.tail && sizes == other.sizes;
}

bool Layout::partial() const {
  return std::ranges::any_of(digits, [](const Digit& d) { return d.kind == Digit::Kind::Partial; });
}

bool Layout::halo() const { return !std::ranges::all_of(digits, &Digit::plain); }

bool Layout::unequal() const {
  return std::ranges::any_of(digits, [](const Digit& d) { return !d.sizes.empty(); });
}

Layout layout_from(const std::vector<Digit>& digits) {
  Layout layout;
  for (const Digit& digit : digits) {
    if (digit.parts == 1) continue;
    if (!layout.digits.empty()) {
      Digit& last = layout.digits.back();
      const bool same = last.kind == digit.kind && digit.kind != Digit::Kind::Axis &&
                        last.combine == digit.combine;
      if (same) {
        last.parts *= digit.parts;
        continue;
      }
    }
    layout.digits.push_back(digit);
  }
  return layout;
}

Layout settled(const Layout& layout) {
  std::vector<Digit> digits = layout.digits;
  for (Digit& digit : digits)
    if (digit.kind == Digit::Kind::Partial) digit = Digit{.parts = digit.parts};
  return layout_from(digits);
}

Layout without_halo(const Layout& layout, const Shape& shape) {
  std::vector<Digit> digits = layout.digits;
  for (Digit& digit : digits) {
    if (digit.plain()) continue;
    digit.loop_size = shape[static_cast<size_t>(digit.axis)] / digit.blocks;
    digit.map = {.loop = 0};
    digit.tail = false;
  }
  return layout_from(digits);
}

Layout layout_of(const LoopNest& nest, const Sharding& sharding, const OperandMap& map,
                 const Shape& shape, Access access) {
  std::vector<Digit> digits;
  for (const Split& split : sharding.splits)
    digits.push_back(digit_for(nest, sharding, split, map, shape, access));
  return layout_from(digits);
}

Box box_of(const Layout& layout, const Shape& shape, int64_t member) {
  Box box;
  box.reserve(shape.size());
  for (int64_t size : shape) box.push_back({0, size});
  int64_t inner = 1;
  for (const Digit& digit : layout.digits) inner *= digit.parts;
  // Ranges of loops, narrowed digit by digit; a loop is known by the axis it cuts.
  std::vector<Range> loops(shape.size(), Range{0, -1});
  std::vector<const Digit*> last(shape.size(), nullptr);
  for (const Digit& digit : layout.digits) {
    inner /= digit.parts;
    const int64_t index = member / inner % digit.parts;
    if (digit.kind != Digit::Kind::Axis) continue;
    const auto axis = static_cast<size_t>(digit.axis);
    Range& loop = loops[axis];
    if (loop.end < 0) loop = {0, digit.loop_size};
    const Range part = part_of(loop.size(), digit.parts, digit.sizes, index);
    loop = {loop.begin + part.begin, loop.begin + part.end};
    last[axis] = &digit;
  }
  for (size_t a = 0; a < shape.size(); ++a)
    if (last[a]) box[a] = axis_range(last[a]->map, loops[a], shape[a] / last[a]->blocks);
  return box;
}

namespace {

// Elements of a member of a layout.
int64_t elements_of(const Layout& layout, const Shape& shape, int64_t member) {
  const Box box = box_of(layout, shape, member);
  std::vector<int64_t> blocks(shape.size(), 1);
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Axis) blocks[static_cast<size_t>(digit.axis)] = digit.blocks;
  int64_t count = 1;
  for (size_t a = 0; a < box.size(); ++a) count *= std::max<int64_t>(0, box[a].size()) * blocks[a];
  return count;
}

int64_t members_of(const Layout& layout) {
  int64_t members = 1;
  for (const Digit& digit : layout.digits) members *= digit.parts;
  return members;
}

// The sizes that a member of a layout has, digit by digit.
std::vector<int32_t> sizes_of(const Layout& layout, int64_t member) {
  std::vector<int32_t> sizes;
  int64_t place = 1;
  for (size_t i = layout.digits.size(); i-- > 0; place *= layout.digits[i].parts) {
    const Digit& digit = layout.digits[i];
    if (!digit.sizes.empty())
      sizes.push_back(digit.sizes[static_cast<size_t>(member / place % digit.parts)]);
  }
  return sizes;
}

}  // namespace

int64_t largest_elements(const Layout& layout, const Shape& shape) {
  if (std::ranges::find(layout.digits, Digit::Kind::Axis, &Digit::kind) == layout.digits.end())
    return element_count(shape);
  // Of equal parts member 0 has the largest, unless parts in the middle have a halo on both sides.
  const int64_t tries = layout.halo() || layout.unequal() ? members_of(layout) : 1;
  int64_t most = 0;
  for (int64_t m = 0; m < tries; ++m) most = std::max(most, elements_of(layout, shape, m));
  return most;
}

int64_t largest_elements(const Layout& layout, const Shape& shape, int64_t member) {
  if (!layout.unequal()) return largest_elements(layout, shape);
  const std::vector<int32_t> own = sizes_of(layout, member);
  int64_t most = 0;
  for (int64_t m = 0; m < members_of(layout); ++m)
    if (sizes_of(layout, m) == own) most = std::max(most, elements_of(layout, shape, m));
  return most;
}

std::string format_layout(const Layout& layout) {
  std::string text = "[";
  for (const Digit& digit : layout.digits) {
    if (text.size() > 1) text += ", ";
    switch (digit.kind) {
      case Digit::Kind::Copy: text += fmt::format("copy {}", digit.parts); break;
      case Digit::Kind::Partial: text += fmt::format("partial {}", digit.parts); break;
      case Digit::Kind::Axis:
        text += fmt::format("axis{}/{}", digit.axis, format_parts(digit.parts, digit.sizes));
        if (digit.blocks > 1) text += fmt::format("x{}", digit.blocks);
        if (!identity(digit.map)) text += "*";
        break;
    }
  }
  return text + "]";
}

std::string format_sharding(const Sharding& sharding, const LoopNest& nest) {
  std::string text;
  for (const Split& split : sharding.splits) {
    if (!text.empty()) text += " ";
    text += fmt::format("{}/{}",
                        split.loop < 0 ? "copy" : nest.loops[static_cast<size_t>(split.loop)].name,
                        format_parts(split.parts, split.sizes));
    if (split.blocks > 1) text += fmt::format("x{}", split.blocks);
  }
  return text.empty() ? "whole" : text;
}

}  // namespace windlass

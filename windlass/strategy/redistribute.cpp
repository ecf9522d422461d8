// Both layouts are refined to common digits. If each digit can then be changed on its own, the
// change is a collective over that digit; otherwise the pieces are intersected pair by pair.

#include "windlass/strategy/redistribute.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

using Digits = std::vector<Digit>;

// Cuts `digit` into an outer one of `parts` and the rest. Only if nested cuts give the same pieces.
std::optional<std::pair<Digit, Digit>> cut(const Digit& digit, int32_t parts) {
  if (digit.parts % parts != 0) return std::nullopt;
  if (digit.kind == Digit::Kind::Axis &&
      (digit.loop_size % digit.parts != 0 || !digit.sizes.empty()))
    return std::nullopt;
  std::pair<Digit, Digit> halves{digit, digit};
  halves.first.parts = parts;
  halves.second.parts = digit.parts / parts;
  return halves;
}

// Both as digits of the same parts, if possible.
std::optional<std::pair<Digits, Digits>> align(const Layout& from, const Layout& to) {
  std::pair<Digits, Digits> aligned;
  Digits a(from.digits.rbegin(), from.digits.rend()), b(to.digits.rbegin(), to.digits.rend());
  while (!a.empty() && !b.empty()) {
    const int32_t parts = std::min(a.back().parts, b.back().parts);
    for (Digits* side : {&a, &b}) {
      Digits& out = side == &a ? aligned.first : aligned.second;
      if (side->back().parts == parts) {
        out.push_back(side->back());
        side->pop_back();
        continue;
      }
      const auto halves = cut(side->back(), parts);
      if (!halves) return std::nullopt;
      out.push_back(halves->first);
      side->back() = halves->second;
    }
  }
  return aligned;
}

// Digit i may change on its own if no digit inside of it cuts the same axis.
bool independent(const Digits& digits, size_t i, int32_t axis) {
  for (size_t j = 0; j < digits.size(); ++j)
    if (j != i && digits[j].kind == Digit::Kind::Axis && digits[j].axis == axis && j > i)
      return false;
  return true;
}

// Elements of a collective on a tensor of so many that lies in parts: as if all of them were as
// large as the largest, which the others wait for.
int64_t together(int64_t whole, const Layout& in_parts, int64_t largest, int64_t parts) {
  return in_parts.unequal() ? std::max(whole, largest * parts) : whole;
}

class Planner {
 public:
  Planner(const Shape& shape, Digits from, Digits to)
      : shape_(shape), now_(std::move(from)), to_(std::move(to)) {
    int64_t place = 1;
    places_.resize(now_.size());
    for (size_t i = now_.size(); i-- > 0;) {
      places_[i] = place;
      place *= now_[i].parts;
    }
  }

  // Steps by collectives, or nothing if it cannot be done so.
  std::optional<Redistribution> run() {
    for (size_t i = 0; i < now_.size(); ++i) {
      if (!now_[i].plain() && !(now_[i] == to_[i])) return std::nullopt;
      if (!to_[i].plain() && !(now_[i] == to_[i])) return std::nullopt;
      if (now_[i] == to_[i]) continue;
      // Most of what moves to other borders of the same axis stays where it is.
      if (now_[i].axis == to_[i].axis && now_[i].sizes != to_[i].sizes) return std::nullopt;
      for (const Digit& digit : {now_[i], to_[i]})
        if (digit.kind == Digit::Kind::Axis && !gathers_blocks(i) &&
            (!independent(now_, i, digit.axis) || !independent(to_, i, digit.axis)))
          return std::nullopt;
    }
    // Cheapest first: partial sums are scattered, copies cut, parts exchanged, and only then
    // gathered.
    combine(Digit::Kind::Axis);
    combine(Digit::Kind::Copy);
    for (size_t i = 0; i < now_.size(); ++i)
      if (now_[i].kind == Digit::Kind::Copy) now_[i] = to_[i];
    for (size_t i = 0; i < now_.size(); ++i)
      if (now_[i].kind == Digit::Kind::Axis && to_[i].kind == Digit::Kind::Axis &&
          !(now_[i] == to_[i]))
        step(Collective::AllToAll, {i});
    std::vector<size_t> gather;
    for (size_t i = 0; i < now_.size(); ++i)
      if (now_[i].kind == Digit::Kind::Axis && to_[i].kind == Digit::Kind::Copy)
        gather.push_back(i);
    if (!gather.empty()) step(Collective::AllGather, gather);
    return std::move(result_);
  }

 private:
  // Blocks that are gathered together with all that is cut inside of them, of an axis that is not
  // cut in another way then.
  bool gathers_blocks(size_t i) const {
    const auto cuts = [&](const Digit& digit) {
      return digit.kind == Digit::Kind::Axis && digit.axis == now_[i].axis;
    };
    for (size_t j = i; j < now_.size(); ++j)
      if (cuts(to_[j]) ||
          (cuts(now_[j]) && (now_[j].blocks == 1 || to_[j].kind != Digit::Kind::Copy)))
        return false;
    return now_[i].kind == Digit::Kind::Axis;
  }

  // Combines the partial sums whose digit becomes `kind`, all in one step.
  void combine(Digit::Kind kind) {
    std::vector<size_t> which;
    for (size_t i = 0; i < now_.size(); ++i)
      if (now_[i].kind == Digit::Kind::Partial && to_[i].kind == kind) which.push_back(i);
    if (which.empty()) return;
    step(kind == Digit::Kind::Axis ? Collective::ReduceScatter : Collective::AllReduce, which);
  }

  void step(Collective collective, const std::vector<size_t>& which) {
    Move move;
    move.collective = collective;
    const Layout from = layout_from(now_);
    const int64_t before = largest_elements(from, shape_);
    int64_t parts = 1;
    for (size_t i : which) {
      move.digits.push_back({places_[i], now_[i].parts});
      parts *= now_[i].parts;
      now_[i] = to_[i];
    }
    std::ranges::sort(move.digits);
    move.result = layout_from(now_);
    move.result_elements = largest_elements(move.result, shape_);
    switch (collective) {
      case Collective::AllReduce: move.elements = before; break;
      case Collective::ReduceScatter:
        move.elements = together(before, move.result, move.result_elements, parts);
        break;
      case Collective::AllGather:
        move.elements = together(move.result_elements, from, before, parts);
        break;
      case Collective::AllToAll: move.elements = before * parts; break;
      case Collective::Broadcast: break;
    }
    result_.moves.push_back(std::move(move));
  }

  const Shape& shape_;
  Digits now_, to_;
  std::vector<int64_t> places_;
  Redistribution result_;
};

int64_t volume(const Box& a, const Box& b) {
  int64_t count = 1;
  for (size_t i = 0; i < a.size() && count > 0; ++i)
    count *= std::max<int64_t>(0, std::min(a[i].end, b[i].end) - std::max(a[i].begin, b[i].begin));
  return count;
}

bool blocked(const Layout& layout) {
  return std::ranges::any_of(layout.digits, [](const Digit& d) { return d.blocks > 1; });
}

// Whether the boxes, which are all combinations of some ranges along the axes, leave out elements
// of another.
bool leave_out(const std::vector<Box>& boxes, const Box& wanted) {
  for (size_t a = 0; a < wanted.size(); ++a) {
    std::vector<Range> ranges;
    for (const Box& box : boxes) ranges.push_back(box[a]);
    std::ranges::sort(ranges, {}, &Range::begin);
    int64_t reached = wanted[a].begin;
    for (const Range& range : ranges)
      if (range.begin <= reached) reached = std::max(reached, range.end);
    if (reached < wanted[a].end) return true;
  }
  return false;
}

// The different pieces of a layout, in the order of the first members that hold them, and who holds
// which.
struct Pieces {
  std::vector<Box> boxes;
  std::vector<std::vector<int64_t>> holders;  // by piece, ascending
  std::vector<size_t> of;                     // by member

  Pieces(const Layout& layout, const Shape& shape, int64_t members) {
    // Members whose digits agree wherever an axis is cut hold the same.
    std::vector<size_t> index(static_cast<size_t>(members), SIZE_MAX);
    for (int64_t m = 0; m < members; ++m) {
      int64_t inner = 1, key = 0;
      for (size_t i = layout.digits.size(); i-- > 0;) {
        const Digit& digit = layout.digits[i];
        if (digit.kind == Digit::Kind::Axis) key += m / inner % digit.parts * inner;
        inner *= digit.parts;
      }
      // No more than the member itself.
      size_t& piece = index[static_cast<size_t>(key)];
      if (piece == SIZE_MAX) {
        piece = boxes.size();
        boxes.push_back(box_of(layout, shape, m));
        holders.emplace_back();
      }
      holders[piece].push_back(m);
      of.push_back(piece);
    }
  }

  // The one whose number is nearest; of two, the lower.
  int64_t nearest_holder(size_t piece, int64_t member) const {
    const std::vector<int64_t>& list = holders[piece];
    const auto above = std::ranges::lower_bound(list, member);
    if (above == list.begin()) return *above;
    if (above == list.end() || member - *(above - 1) <= *above - member) return *(above - 1);
    return *above;
  }
};

// Piece by piece. Of several members that hold the same, each destination takes the one nearest in
// number. Overlapping source pieces (gradients with a halo) are all fetched and added.
Move pairwise(const Shape& shape, const Layout& from, int64_t from_members, const Layout& to,
              int64_t to_members, bool same_group) {
  Move move;
  move.pairwise = true;
  move.sums = from.halo();
  move.result = to;
  move.result_elements = largest_elements(to, shape);
  const Pieces source(from, shape, from_members), target(to, shape, to_members);
  // Where the pieces overlap, once for each pair of different ones.
  std::vector<std::vector<std::pair<size_t, int64_t>>> overlaps(target.boxes.size());
  for (size_t t = 0; t < target.boxes.size(); ++t)
    for (size_t f = 0; f < source.boxes.size(); ++f)
      if (const int64_t elements = volume(source.boxes[f], target.boxes[t]); elements > 0)
        overlaps[t].emplace_back(f, elements);
  for (int64_t to_member = 0; to_member < to_members; ++to_member) {
    const int64_t same = to_member * from_members / to_members;
    for (const auto& [piece, elements] : overlaps[target.of[static_cast<size_t>(to_member)]]) {
      const int64_t holder = source.nearest_holder(piece, same);
      if (!same_group || holder != to_member) move.copies.push_back({holder, to_member, elements});
    }
  }
  if (move.sums)
    move.gaps = std::ranges::any_of(target.boxes,
                                    [&](const Box& box) { return leave_out(source.boxes, box); });
  return move;
}

// The layout with every partial digit copied and every block gathered.
Layout whole_blocks(const Layout& layout) {
  Digits digits = settled(layout).digits;
  for (Digit& digit : digits)
    if (digit.kind == Digit::Kind::Axis && digit.blocks > 1) digit = Digit{.parts = digit.parts};
  return layout_from(digits);
}

}  // namespace

std::vector<int64_t> peers_of(const std::vector<MemberDigit>& digits, int64_t member) {
  std::vector<int64_t> peers = {member};
  for (const MemberDigit& digit : digits)
    peers[0] -= member / digit.place % digit.parts * digit.place;
  for (const MemberDigit& digit : digits) {
    const size_t known = peers.size();
    for (int64_t part = 1; part < digit.parts; ++part)
      for (size_t i = 0; i < known; ++i) peers.push_back(peers[i] + part * digit.place);
  }
  if (!std::ranges::is_sorted(peers)) std::ranges::sort(peers);
  return peers;
}

// As many of the peers come first as digits say, of which the places of a number have one each.
Range share_of(int64_t elements, const std::vector<MemberDigit>& digits, int64_t member) {
  int64_t index = 0, count = 1;
  for (const MemberDigit& digit : digits) {
    int64_t below = 1;  // peers that differ in lower places
    for (const MemberDigit& other : digits)
      if (other.place < digit.place) below *= other.parts;
    index += member / digit.place % digit.parts * below;
    count *= digit.parts;
  }
  return part_of(elements, count, index);
}

std::vector<MemberDigit> digits_within_hosts(const Machine& machine,
                                             const std::vector<DeviceId>& group,
                                             const std::vector<MemberDigit>& digits,
                                             const std::vector<int32_t>& kinds) {
  const auto kind = [&](size_t m) { return kinds.empty() ? 0 : kinds[m]; };
  const auto on_one = [&](const MemberDigit& digit) {
    for (size_t m = 0; m < group.size(); ++m)
      for (int64_t peer : peers_of({digit}, static_cast<int64_t>(m))) {
        const Device &a = machine[group[m]], &b = machine[group[static_cast<size_t>(peer)]];
        if (a.node != b.node || a.type != b.type || a.limit != b.limit ||
            kind(m) != kind(static_cast<size_t>(peer)))
          return false;
      }
    return true;
  };
  std::vector<MemberDigit> result;
  for (const MemberDigit& digit : digits)
    for (int64_t parts = digit.parts; parts > 1; --parts)
      if (digit.parts % parts == 0 && on_one({digit.place, parts})) {
        result.push_back({digit.place, parts});
        break;
      }
  return result;
}

RedistributionOutline outline(const Shape& shape, const Layout& from, const Layout& to,
                              int64_t members) {
  RedistributionOutline result;
  if (from == to) return result;
  if (const auto aligned = align(from, to))
    if (auto steps = Planner(shape, aligned->first, aligned->second).run()) {
      result.collectives = std::move(steps->moves);
      return result;
    }
  result.pairwise = true;
  result.now = from;
  if (from.partial() || blocked(from)) {
    const Layout whole = whole_blocks(from);
    const auto aligned = align(from, whole);
    ensure(aligned.has_value(), "a layout does not align with itself");
    auto steps = Planner(shape, aligned->first, aligned->second).run();
    ensure(steps.has_value(), "partial sums cannot be combined");
    result.collectives = std::move(steps->moves);
    result.now = whole;
  }
  // Blocks are cut out of copies of everything.
  result.to = blocked(to) ? Layout{{Digit{.parts = static_cast<int32_t>(members)}}} : to;
  return result;
}

Redistribution redistribute(const Shape& shape, const Layout& from, const Layout& to,
                            int64_t members) {
  RedistributionOutline steps = outline(shape, from, to, members);
  Redistribution result = {std::move(steps.collectives)};
  if (!steps.pairwise) return result;
  Move move = pairwise(shape, steps.now, members, steps.to, members, true);
  if (!move.copies.empty() || move.gaps) result.moves.push_back(std::move(move));
  return result;
}

Redistribution send(const Shape& shape, const Layout& from, int64_t from_members, const Layout& to,
                    int64_t to_members) {
  Redistribution result;
  Layout now = from;
  if (from.partial() || blocked(from)) {
    now = whole_blocks(from);
    result = redistribute(shape, from, now, from_members);
  }
  const Layout target = whole_blocks(to);
  result.moves.push_back(pairwise(shape, now, from_members, target, to_members, false));
  return result;
}

std::string format_redistribution(const Redistribution& redistribution) {
  static constexpr std::array<std::string_view, 5> kNames = {
      "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"};
  std::string text;
  for (const Move& move : redistribution.moves) {
    if (!text.empty()) text += ", ";
    if (move.pairwise) {
      text += fmt::format("{} copies", move.copies.size());
      continue;
    }
    int64_t parts = 1;
    for (const MemberDigit& digit : move.digits) parts *= digit.parts;
    text += fmt::format("{} {}", kNames[static_cast<size_t>(move.collective)], parts);
  }
  return text.empty() ? "none" : text;
}

}  // namespace windlass

// Where a tensor lies over a group of devices.
//
// The members of a group are numbered 0 .. n-1 and read as numbers of several digits, outermost
// first. A Sharding gives each digit a loop of the op to split, or nothing: then the members that
// differ in it do the same. From the loop nest follows the layout of each operand, digit by digit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/graph/op_info.h"
#include "windlass/graph/op_piece.h"
#include "windlass/strategy/part_sizes.h"

namespace windlass {

// One digit of the member number, split over a loop of the op. With blocks, the loop is read as so
// many equal runs and each of them is cut: a member has one piece of every run. That is how a
// product that yields queries, keys and values side by side is split by heads.
struct Split {
  int32_t loop = -1;  // -1: copies
  int32_t parts = 1;
  int32_t blocks = 1;
  std::vector<int32_t> sizes = {};  // of the parts, as part_of() wants them
  auto operator<=>(const Split&) const = default;
};

// How one op is split over a group. The product of the parts is the size of the group.
struct Sharding {
  std::vector<Split> splits;  // outermost first
  auto operator<=>(const Sharding&) const = default;
};

int64_t size_of(const Sharding& sharding);

// Whether some parts are unequal.
bool unequal(const Sharding& sharding);
// The sizes that a member has, split by split; 0 where parts are equal. Members with the same have
// pieces of the same size, up to rounding.
std::vector<int32_t> sizes_of(const Sharding& sharding, int64_t member);

// Sizes of the loops of the largest piece. Where parts are unequal: of the largest one among the
// members with the same sizes as `member`.
std::vector<int64_t> local_sizes(const LoopNest& nest, const Sharding& sharding,
                                 int64_t member = 0);

// The part of each loop that a member has.
std::vector<LoopPart> loop_parts(const LoopNest& nest, const Sharding& sharding, int64_t member);

// What one digit does to a tensor.
struct Digit {
  enum class Kind : uint8_t {
    Copy,     // members hold the same
    Axis,     // members hold different parts of an axis
    Partial,  // members hold results of the same shape that must be combined
  };
  Kind kind = Kind::Copy;
  CombineFn combine = CombineFn::Sum;  // Partial
  int32_t parts = 1;
  // Axis: part p of the loop [0, loop_size) touches what `map` says of the axis. A plain cut of the
  // axis has loop_size = axis size and the identity map.
  int32_t axis = -1;
  int64_t loop_size = 0;  // of one block
  int32_t blocks = 1;
  AxisMap map = {};
  bool tail = false;                // the axis goes on where the last window ends
  std::vector<int32_t> sizes = {};  // Axis: of the parts, as in Split

  bool operator==(const Digit& other) const;
  // Parts tile the axis: they neither overlap nor leave elements out.
  bool plain() const {
    return kind != Kind::Axis || (map.offset == 0 && map.stride == map.window && !tail);
  }
};

// Layout of a tensor over a group: digits, outermost first, whose parts multiply to its size.
// Digits of one part are left out.
struct Layout {
  std::vector<Digit> digits;

  bool operator==(const Layout&) const = default;
  bool partial() const;
  bool halo() const;     // some parts of an axis overlap or leave gaps
  bool unequal() const;  // some parts of an axis have sizes
};

// The layout with these digits: those of one part left out, neighbours that do the same made one.
Layout layout_from(const std::vector<Digit>& digits);
// With copies instead of partial sums.
Layout settled(const Layout& layout);
// With plain cuts of the axis where parts overlap or leave gaps.
Layout without_halo(const Layout& layout, const Shape& shape);

// How an op touches an operand.
enum class Access : uint8_t {
  Read,          // an input, as the op wants it
  Result,        // an output, as the op leaves it: partial over split reduced loops
  ReadGradient,  // the gradient of an output, as the backward op wants it
  GiveGradient,  // the gradient of an input, as the backward op leaves it: partial over split free
                 // and reduced loops that the input lacks (partial_gradient)
  GiveBiasGradient,  // that of a bias: every piece of a reduced loop has all of it
};
// How the gradient of an input is given.
Access gradient_access(OpKind kind, size_t input);
Layout layout_of(const LoopNest& nest, const Sharding& sharding, const OperandMap& map,
                 const Shape& shape, Access access);

// The part of each axis that a member holds; of an axis in blocks, the part of the first one.
using Box = std::vector<Range>;
Box box_of(const Layout& layout, const Shape& shape, int64_t member);

// Elements that the member with most holds.
int64_t largest_elements(const Layout& layout, const Shape& shape);
// The same among the members that have the same sizes as `member`, where parts are unequal.
int64_t largest_elements(const Layout& layout, const Shape& shape, int64_t member);

// "[axis0/4, copy 2]".
std::string format_layout(const Layout& layout);
// "b/4 n/2 copy/2", with the names of the loops.
std::string format_sharding(const Sharding& sharding, const LoopNest& nest);

}  // namespace windlass

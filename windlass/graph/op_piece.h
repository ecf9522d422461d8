// Pieces: an op on parts of its loops, as one device of several runs it. A micro-batch is a part of
// the batch loop.
//
// A piece is an op of the same kind on smaller operands. The loop nest says which region of each
// operand it has; the op table adjusts the attributes (padding is there only at the outer border),
// and states what attributes cannot say of the whole op: the facts. With them, any cut computes and
// draws the numbers of the op that is not cut, by the conventions of op_info.h: results over a cut
// Reduced loop are partial, the gradient of an operand is partial over cut loops that it lacks (see
// partial_gradient), and of elements that several pieces read (halos) each has a share.
//
// Which gradients there are and what is saved for them is the rule of the whole op: that of the
// local signature may differ where sizes become 1.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/op_info.h"

namespace windlass {

// A part of a loop: the range of each of `blocks` runs of equal size.
struct LoopPart {
  Range range;
  int64_t blocks = 1;
  bool operator==(const LoopPart&) const = default;
};

// All of every loop.
std::vector<LoopPart> whole_parts(const LoopNest& nest);

// A part of an axis of `size` elements: the range of each of `blocks` runs of equal size, laid end
// to end. By default (size 0) the axis as it is, whatever its size.
struct AxisPart {
  int64_t size = 0;
  Range range;
  int64_t blocks = 1;

  bool whole() const { return count() == size; }
  int64_t count() const { return range.size() * blocks; }
  // Index in the whole axis of an index of the part.
  int64_t to_whole(int64_t local) const;
  // Index in the part of an index of the whole axis; -1 if it is elsewhere.
  int64_t to_local(int64_t whole) const;
  // Size of the whole axis, of which `local` elements are here.
  int64_t whole_size(int64_t local) const { return size == 0 ? local : size; }

  bool operator==(const AxisPart&) const = default;
};

// A part of a tensor, axis by axis. Empty: all of it.
using Region = std::vector<AxisPart>;

Shape local_shape(const Region& region);
// Place in the whole tensor of an element of the region, both counted row-major.
int64_t whole_element(const Region& region, int64_t local);

// What a piece must know of the whole op. By default it is the whole op.
struct PieceFacts {
  // Linear, Conv: whether this piece adds the bias.
  bool adds_bias = true;
  // What a mean divides by: elements in Reduce, MeanSquaredError and the norms; labels that count,
  // of all pieces and micro-batches, in CrossEntropy. The latter is data: whoever runs the pieces
  // adds their numbers up (counted_labels) and puts the sum here. Negative: what is counted here.
  double mean_count = -1;
  // Which of those that indices or an order name are here: rows of an Embedding's or Gather's table
  // (others contribute zero), experts of GroupedLinear, Dispatch and Collect, classes of
  // CrossEntropy.
  AxisPart rows = {};
  // Rotary: positions. Attention: queries, and keys; both decide what is visible.
  AxisPart positions = {};
  AxisPart keys = {};
  // Attention: the mask is the same for all keys of the whole op.
  bool mask_lacks_keys = false;
  // Pool, by spatial axis: how many of the last elements of the padding lie beyond the padding of
  // the whole op, and do not count in an average. Empty: none.
  Ints uncounted_padding = {};
  // LocalResponseNorm: channels of the input that have an output here. Empty: all.
  Range channels = {};
  // Where the elements that draw random numbers lie in the whole op: of the output of Dropout and
  // Random, of the scores [batch, head, query, key] of Attention. Element e of the whole op draws
  // word e of its stream (philox_normal: the words of element e).
  Region random = {};
};

struct OpPiece {
  OpKind kind = OpKind::Unary;
  Attrs attrs;
  std::vector<TensorType> inputs;  // as they are here; absent operands have DType::None
  std::vector<TensorType> outputs;
  std::vector<TensorType> auxiliaries;
  std::vector<Region> input_regions;  // where in the whole operand; empty for absent ones
  std::vector<Region> output_regions;
  std::vector<Region> auxiliary_regions;
  PieceFacts facts;
  bool coupled = false;  // a loop with a coupling is cut: see coupled.h

  // Refers to `attrs` of this object.
  Signature signature() const { return {kind, &attrs, inputs, outputs, auxiliaries}; }
};

// The piece of `whole` that has `parts` of the loops of `nest`. Axes of a loop that is not cut are
// there in full, whether or not a window touches them; the others as axis_range says, in blocks if
// the part or the map has blocks. Throws Error{Unsupported} if a Whole loop is cut, or a loop is
// cut in blocks whose windows do not tile an operand.
OpPiece piece_of(const Signature& whole, const LoopNest& nest, const std::vector<LoopPart>& parts);

// Whether pieces of `loop`, which the input lacks, have shares of the input's gradient that must be
// added up. Otherwise each has all of it: that of a bias over a Reduced loop, any over a Coupled
// one.
bool partial_gradient(OpKind kind, const LoopNest& nest, size_t input, size_t loop);

bool follows_loop(const OperandMap& map, size_t loop);

// Calls visit(local, whole, count) for the runs of elements that are neighbours both here and in
// the whole tensor, in row-major order.
template <class Visit>
void for_each_run(const Region& region, Visit&& visit) {
  // Inner axes that are there in full make runs longer.
  size_t axis = region.size();
  int64_t inner = 1, outer = 1;
  while (axis > 0 && region[axis - 1].whole()) inner *= region[--axis].size;
  if (axis == 0) {
    if (inner > 0) visit(int64_t{0}, int64_t{0}, inner);
    return;
  }
  const AxisPart& last = region[--axis];
  const Region before(region.begin(), region.begin() + static_cast<std::ptrdiff_t>(axis));
  for (const AxisPart& part : before) outer *= part.count();
  if (last.count() == 0 || inner == 0) return;
  const int64_t run = last.size / last.blocks;
  for (int64_t o = 0; o < outer; ++o) {
    const int64_t whole = whole_element(before, o);
    for (int64_t b = 0; b < last.blocks; ++b)
      visit((o * last.count() + b * last.range.size()) * inner,
            (whole * last.size + b * run + last.range.begin) * inner, last.range.size() * inner);
  }
}

}  // namespace windlass

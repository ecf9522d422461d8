// Ops that move elements without computing. Their gradients move them back and need nothing saved.

#include <algorithm>
#include <limits>
#include <numeric>

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

GradientRule move_back(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(s.inputs.size());
  for (size_t i = 0; i < s.inputs.size(); ++i)
    if (is_float(s.input(i).dtype)) rule.inputs[i] = GradientSource::Computed;
  return rule;
}

std::vector<TensorType> infer_reshape(const Signature& s) {
  const Shape& shape = s.as<ShapeAttrs>().shape;
  if (element_count(shape) != element_count(s.shape(0)))
    fail_input("cannot reshape {} to {}: {} elements and {}", format_shape(s.shape(0)),
               format_shape(shape), element_count(s.shape(0)), element_count(shape));
  return {{s.input(0).dtype, shape}};
}

// Row-major order is kept, so the axes of both shapes fall into groups of equal product, and in
// each group the outermost axes move together: a range of the group's outermost loop is a
// contiguous range of both. The loop's size is the largest common divisor of the two outermost
// sizes of the group.
LoopNest reshape_loops(const Signature& s) {
  const Shape& in = s.shape(0);
  const Shape& out = s.outputs[0].shape;
  LoopNest nest;
  OperandMap input(in.size()), output(out.size());
  size_t i = 0, o = 0;
  while (i < in.size() || o < out.size()) {
    // Axes of size 1 carry nothing.
    if (i < in.size() && in[i] == 1) {
      ++i;
      continue;
    }
    if (o < out.size() && out[o] == 1) {
      ++o;
      continue;
    }
    if (i >= in.size() || o >= out.size()) break;
    const size_t first_in = i, first_out = o;
    int64_t product_in = in[i++], product_out = out[o++];
    while (product_in != product_out) {
      if (product_in < product_out && i < in.size())
        product_in *= in[i++];
      else if (o < out.size())
        product_out *= out[o++];
      else
        break;
    }
    if (product_in == 0 || product_in != product_out) break;
    const int64_t size = std::gcd(in[first_in], out[first_out]);
    if (size <= 1) continue;
    const auto loop = static_cast<int32_t>(nest.loops.size());
    nest.loops.push_back({.name = "d" + std::to_string(loop), .size = size});
    const int64_t in_part = in[first_in] / size, out_part = out[first_out] / size;
    input[first_in] = {.loop = loop, .stride = in_part, .window = in_part};
    output[first_out] = {.loop = loop, .stride = out_part, .window = out_part};
  }
  nest.inputs = {input};
  nest.outputs = {output};
  return nest;
}

void shape_piece(const Signature&, OpPiece& piece) {
  std::get<ShapeAttrs>(piece.attrs).shape = piece.outputs[0].shape;
}

std::vector<TensorType> infer_transpose(const Signature& s) {
  const Ints& order = s.as<TransposeAttrs>().order;
  const Shape& x = s.shape(0);
  Ints sorted = order;
  std::sort(sorted.begin(), sorted.end());
  Ints expected(x.size());
  std::iota(expected.begin(), expected.end(), 0);
  if (sorted != expected)
    fail_input("order {} is not a permutation of the {} axes of {}", format_shape(order), x.size(),
               format_shape(x));
  Shape shape;
  for (int64_t axis : order) shape.push_back(x[static_cast<size_t>(axis)]);
  return {{s.input(0).dtype, shape}};
}

LoopNest transpose_loops(const Signature& s) {
  const Ints& order = s.as<TransposeAttrs>().order;
  LoopNest nest;
  nest.loops = axis_loops(s.outputs[0].shape);
  OperandMap input(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    input[static_cast<size_t>(order[i])].loop = static_cast<int32_t>(i);
  nest.inputs = {input};
  nest.outputs = {aligned_map(order.size())};
  return nest;
}

std::vector<TensorType> infer_slice(const Signature& s) {
  const auto& a = s.as<SliceAttrs>();
  const Shape& x = s.shape(0);
  if (a.start.size() != x.size() || a.step.size() != x.size() || a.size.size() != x.size())
    fail_input("slice lists do not have one entry per axis of {}", format_shape(x));
  for (size_t i = 0; i < x.size(); ++i) {
    if (a.step[i] == 0) fail_input("step of axis {} is 0", i);
    if (a.size[i] < 0) fail_input("size of axis {} is {}", i, a.size[i]);
    if (a.size[i] == 0) continue;
    const int64_t last = checked_add(a.start[i], checked_mul(a.size[i] - 1, a.step[i]));
    if (std::min(a.start[i], last) < 0 || std::max(a.start[i], last) >= x[i])
      fail_input("slice from {} by {} with {} elements leaves axis {} of {}", a.start[i], a.step[i],
                 a.size[i], i, format_shape(x));
  }
  return {{s.input(0).dtype, a.size}};
}

LoopNest slice_loops(const Signature& s) {
  const auto& a = s.as<SliceAttrs>();
  LoopNest nest;
  nest.loops = axis_loops(a.size);
  OperandMap input = aligned_map(a.size.size());
  for (size_t i = 0; i < input.size(); ++i) {
    if (a.step[i] < 0) {
      nest.loops[i].role = LoopRole::Whole;
      input[i] = {};
    } else {
      input[i].stride = a.step[i];
      input[i].offset = a.start[i];
    }
  }
  nest.inputs = {input};
  nest.outputs = {aligned_map(a.size.size())};
  return nest;
}

void slice_piece(const Signature&, OpPiece& piece) {
  auto& a = std::get<SliceAttrs>(piece.attrs);
  a.size = piece.outputs[0].shape;
  for (size_t i = 0; i < a.size.size(); ++i)
    if (!piece.output_regions[0][i].whole()) a.start[i] = 0;
}

// Loops of ops that cut or join along `axis`, which stays whole.
LoopNest whole_axis_loops(const Signature& s, size_t axis, const Shape& shape) {
  LoopNest nest;
  nest.loops = axis_loops(shape);
  nest.loops[axis].role = LoopRole::Whole;
  OperandMap map = aligned_map(shape.size());
  map[axis] = {};
  nest.inputs.assign(s.inputs.size(), map);
  nest.outputs.assign(s.outputs.size(), map);
  return nest;
}

std::vector<TensorType> infer_concat(const Signature& s) {
  Shape shape = s.shape(0);
  const size_t axis = normalize_axis(s.as<AxisAttrs>().axis, shape.size());
  for (size_t i = 1; i < s.inputs.size(); ++i) {
    Shape other = s.shape(i);
    if (s.input(i).dtype != s.input(0).dtype)
      fail_input("inputs are {} and {}: cast one of them", format_type(s.input(0)),
                 format_type(s.input(i)));
    if (other.size() != shape.size())
      fail_input("cannot join {} and {}", format_shape(shape), format_shape(other));
    shape[axis] = checked_add(shape[axis], other[axis]);
    other[axis] = shape[axis];
    if (other != shape)
      fail_input("cannot join {} to {} along axis {}", format_shape(s.shape(i)),
                 format_shape(s.shape(0)), axis);
  }
  return {{s.input(0).dtype, shape}};
}

// Makes the axis a loop over all parts at once, if they are of equal size: then one operand per
// part has the loop as it is, and the joined one has it in blocks.
void join_parts(LoopNest& nest, size_t axis, const std::vector<TensorType>& parts,
                std::vector<OperandMap>& part_maps, OperandMap& joined_map) {
  for (const TensorType& part : parts)
    if (part.shape[axis] != parts[0].shape[axis]) return;
  const auto loop = static_cast<int32_t>(axis);
  nest.loops[axis] = {.name = nest.loops[axis].name, .size = parts[0].shape[axis]};
  for (OperandMap& map : part_maps) map[axis] = {.loop = loop};
  joined_map[axis] = {.loop = loop, .blocks = static_cast<int64_t>(parts.size())};
}

LoopNest concat_loops(const Signature& s) {
  const auto axis = static_cast<size_t>(s.as<AxisAttrs>().axis);
  LoopNest nest = whole_axis_loops(s, axis, s.outputs[0].shape);
  join_parts(nest, axis, s.inputs, nest.inputs, nest.outputs[0]);
  return nest;
}

std::vector<TensorType> infer_split(const Signature& s) {
  const auto& a = s.as<SplitAttrs>();
  const Shape& x = s.shape(0);
  const size_t axis = normalize_axis(a.axis, x.size());
  int64_t total = 0;
  std::vector<TensorType> outputs;
  for (int64_t size : a.sizes) {
    if (size < 0) fail_input("sizes {} have a negative entry", format_shape(a.sizes));
    total = checked_add(total, size);
    Shape shape = x;
    shape[axis] = size;
    outputs.push_back({s.input(0).dtype, shape});
  }
  if (total != x[axis] || outputs.empty())
    fail_input("sizes {} do not add up to axis {} of {}", format_shape(a.sizes), axis,
               format_shape(x));
  return outputs;
}

LoopNest split_loops(const Signature& s) {
  const auto axis = static_cast<size_t>(s.as<SplitAttrs>().axis);
  LoopNest nest = whole_axis_loops(s, axis, s.shape(0));
  join_parts(nest, axis, s.outputs, nest.outputs, nest.inputs[0]);
  return nest;
}

void split_piece(const Signature&, OpPiece& piece) {
  auto& a = std::get<SplitAttrs>(piece.attrs);
  for (size_t i = 0; i < a.sizes.size(); ++i)
    a.sizes[i] = piece.outputs[i].shape[static_cast<size_t>(a.axis)];
}

std::vector<TensorType> infer_pad(const Signature& s) {
  const auto& a = s.as<PadAttrs>();
  const Shape& x = s.shape(0);
  if (a.begin.size() != x.size() || a.end.size() != x.size())
    fail_input("padding lists do not have one entry per axis of {}", format_shape(x));
  Shape shape;
  for (size_t i = 0; i < x.size(); ++i) {
    if (a.begin[i] < -x[i] || a.end[i] < -x[i])
      fail_input("cannot cut {} and {} off axis {} of {}", a.begin[i], a.end[i], i,
                 format_shape(x));
    const int64_t size = checked_add(checked_add(x[i], a.begin[i]), a.end[i]);
    if (size < 0) fail_input("axis {} of {} would have size {}", i, format_shape(x), size);
    if (a.mode == PadMode::Reflect && (a.begin[i] >= x[i] || a.end[i] >= x[i]) &&
        (a.begin[i] > 0 || a.end[i] > 0))
      fail_input("cannot reflect {} and {} elements of an axis of {}", a.begin[i], a.end[i], x[i]);
    if (a.mode == PadMode::Edge && x[i] == 0 && size > 0)
      fail_input("cannot repeat the edge of empty axis {}", i);
    shape.push_back(size);
  }
  return {{s.input(0).dtype, shape}};
}

LoopNest pad_loops(const Signature& s) {
  const auto& a = s.as<PadAttrs>();
  const size_t rank = a.begin.size();
  LoopNest nest;
  nest.loops = axis_loops(s.outputs[0].shape);
  OperandMap input = aligned_map(rank);
  OperandMap output = aligned_map(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (a.mode == PadMode::Constant || (a.begin[i] <= 0 && a.end[i] <= 0)) {
      input[i].offset = -a.begin[i];
    } else {
      nest.loops[i].role = LoopRole::Whole;
      input[i] = output[i] = {};
    }
  }
  nest.inputs = {input};
  nest.outputs = {output};
  return nest;
}

void pad_piece(const Signature&, OpPiece& piece) {
  auto& a = std::get<PadAttrs>(piece.attrs);
  for (size_t i = 0; i < a.begin.size(); ++i) {
    const AxisPart &in = piece.input_regions[0][i], &out = piece.output_regions[0][i];
    if (out.whole() || out.blocks > 1) continue;
    const bool nothing = in.range.size() == 0;
    const int64_t before = in.range.begin - (out.range.begin - a.begin[i]);
    a.begin[i] = nothing ? out.range.size() : before;
    a.end[i] = out.range.size() - in.range.size() - a.begin[i];
  }
}

std::vector<TensorType> infer_expand(const Signature& s) {
  const Shape& shape = s.as<ShapeAttrs>().shape;
  element_count(shape);
  if (broadcast_shapes(s.shape(0), shape) != shape)
    fail_input("cannot expand {} to {}", format_shape(s.shape(0)), format_shape(shape));
  return {{s.input(0).dtype, shape}};
}

OpInfo layout(OpKind kind, std::string_view name) {
  OpInfo info{};
  info.kind = kind;
  info.name = name;
  info.family = OpFamily::Layout;
  info.min_inputs = info.max_inputs = 1;
  info.memory_bound = true;
  info.arithmetic = no_arithmetic;
  info.gradient = move_back;
  return info;
}

}  // namespace

std::vector<OpInfo> layout_ops() {
  OpInfo reshape = layout(OpKind::Reshape, "Reshape");
  reshape.view = true;
  reshape.infer = infer_reshape;
  reshape.loops = reshape_loops;
  reshape.piece = shape_piece;

  OpInfo transpose = layout(OpKind::Transpose, "Transpose");
  transpose.infer = infer_transpose;
  transpose.loops = transpose_loops;

  OpInfo slice = layout(OpKind::Slice, "Slice");
  slice.infer = infer_slice;
  slice.loops = slice_loops;
  slice.piece = slice_piece;

  OpInfo concat = layout(OpKind::Concat, "Concat");
  concat.max_inputs = std::numeric_limits<size_t>::max();
  concat.infer = infer_concat;
  concat.loops = concat_loops;

  OpInfo split = layout(OpKind::Split, "Split");
  split.infer = infer_split;
  split.loops = split_loops;
  split.piece = split_piece;

  OpInfo pad = layout(OpKind::Pad, "Pad");
  pad.infer = infer_pad;
  pad.loops = pad_loops;
  pad.piece = pad_piece;

  OpInfo expand = layout(OpKind::Expand, "Expand");
  expand.infer = infer_expand;
  expand.loops = broadcast_loops;
  expand.piece = shape_piece;

  return {reshape, transpose, slice, concat, split, pad, expand};
}

}  // namespace windlass::ops

// Import rules: reshaping, slicing, joining, looking up.

#include <algorithm>
#include <numeric>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

void reshape(NodeContext& c) {
  const Shape in = c.shape(0);
  Shape shape = c.opset() < 5 ? c.ints_attr("shape", {}) : c.required_ints(1, "the target shape");
  const bool allow_zero = c.int_attr("allowzero", 0) != 0;
  int64_t known = 1;
  std::optional<size_t> open;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && !allow_zero) {
      if (i >= in.size())
        fail_input("entry {} of the shape copies an axis {} does not have", i, format_shape(in));
      shape[i] = in[i];
    }
    if (shape[i] == -1) {
      if (open) fail_input("target shape has two open entries");
      open = i;
    } else if (shape[i] < 0) {
      fail_input("target shape {} has a negative entry", format_shape(shape));
    } else {
      known = checked_mul(known, shape[i]);
    }
  }
  if (open) {
    const int64_t count = element_count(in);
    if (known == 0 || count % known != 0)
      fail_input("cannot reshape {} to {}", format_shape(in), format_shape(shape));
    shape[*open] = count / known;
  }
  c.out(0, c.reshape(c.in(0), shape));
}

void flatten(NodeContext& c) {
  const auto rank = static_cast<int64_t>(c.rank(0));
  int64_t axis = c.int_attr("axis", 1);
  if (axis < -rank || axis > rank) fail_input("axis {} is out of range", axis);
  if (axis < 0) axis += rank;
  int64_t rows = 1, columns = 1;
  for (int64_t i = 0; i < rank; ++i) {
    int64_t& side = i < axis ? rows : columns;
    side = checked_mul(side, c.shape(0)[static_cast<size_t>(i)]);
  }
  c.out(0, c.reshape(c.in(0), {rows, columns}));
}

// Axes as an attribute before opset 13, as an input since.
std::optional<Ints> axes_of(NodeContext& c) {
  if (c.has_attr("axes")) return c.ints_attr("axes", {});
  if (c.has(1)) return c.required_ints(1, "the list of axes");
  return std::nullopt;
}

void squeeze(NodeContext& c) {
  const Shape in = c.shape(0);
  std::vector<bool> drop(in.size());
  if (const auto axes = axes_of(c)) {
    for (int64_t axis : *axes) {
      const size_t i = normalize_axis(axis, in.size());
      if (in[i] != 1) fail_input("axis {} of {} is not 1", i, format_shape(in));
      drop[i] = true;
    }
  } else {
    for (size_t i = 0; i < in.size(); ++i) drop[i] = in[i] == 1;
  }
  Shape shape;
  for (size_t i = 0; i < in.size(); ++i)
    if (!drop[i]) shape.push_back(in[i]);
  c.out(0, c.reshape(c.in(0), shape));
}

void unsqueeze(NodeContext& c) {
  const Shape in = c.shape(0);
  const auto axes = axes_of(c);
  if (!axes) fail_input("the list of axes is missing");
  const size_t rank = in.size() + axes->size();
  std::vector<bool> fresh(rank);
  for (int64_t axis : *axes) {
    const size_t i = normalize_axis(axis, rank);
    if (fresh[i]) fail_input("axis {} is named twice", axis);
    fresh[i] = true;
  }
  Shape shape;
  auto next = in.begin();
  for (size_t i = 0; i < rank; ++i) shape.push_back(fresh[i] ? 1 : *next++);
  c.out(0, c.reshape(c.in(0), shape));
}

void transpose(NodeContext& c) {
  const size_t rank = c.rank(0);
  Ints order = c.ints_attr("perm", {});
  if (order.empty())
    for (size_t i = 0; i < rank; ++i) order.push_back(static_cast<int64_t>(rank - 1 - i));
  c.out(0, c.emit(OpKind::Transpose, TransposeAttrs{order}, {c.in(0)}));
}

// One axis of a slice with ONNX's clamping: start, step and number of elements.
void slice_axis(int64_t size, int64_t begin, int64_t end, int64_t step, int64_t& start,
                int64_t& count) {
  if (step == 0) fail_input("a step is 0");
  if (step == INT64_MIN) step = INT64_MIN + 1;
  const auto clamp = [&](int64_t value, int64_t low, int64_t high) {
    if (value < 0) value = value < -size ? -size - 1 + (step < 0 ? 0 : 1) : value;
    if (value < 0) value += size;
    return std::clamp(value, low, high);
  };
  if (step > 0) {
    start = clamp(begin, 0, size);
    const int64_t stop = clamp(end, 0, size);
    count = stop > start ? ceil_div(stop - start, step) : 0;
  } else {
    start = clamp(begin, -1, size - 1);
    const int64_t stop = clamp(end, -1, size - 1);
    count = start > stop ? ceil_div(start - stop, -step) : 0;
  }
  if (count == 0) start = 0;
}

void slice(NodeContext& c) {
  const Shape in = c.shape(0);
  Ints starts, ends, axes, steps;
  if (c.opset() < 10) {
    starts = c.ints_attr("starts", {});
    ends = c.ints_attr("ends", {});
    axes = c.ints_attr("axes", {});
  } else {
    starts = c.required_ints(1, "the start of the slice");
    ends = c.required_ints(2, "the end of the slice");
    if (c.has(3)) axes = c.required_ints(3, "the list of axes");
    if (c.has(4)) steps = c.required_ints(4, "the step of the slice");
  }
  if (axes.empty())
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size())
    fail_input("starts, ends, axes and steps have different lengths");
  SliceAttrs attrs{Ints(in.size(), 0), Ints(in.size(), 1), in};
  for (size_t i = 0; i < starts.size(); ++i) {
    const size_t axis = normalize_axis(axes[i], in.size());
    slice_axis(in[axis], starts[i], ends[i], steps[i], attrs.start[axis], attrs.size[axis]);
    attrs.step[axis] = attrs.size[axis] > 1 ? steps[i] : 1;
  }
  // Exporters cut masks and tables to the length they have already.
  const bool forward =
      std::all_of(attrs.step.begin(), attrs.step.end(), [](int64_t step) { return step == 1; });
  if (attrs.size == in && forward) return c.out(0, c.in(0));
  c.out(0, c.emit(OpKind::Slice, attrs, {c.in(0)}));
}

void concat(NodeContext& c) {
  std::vector<TensorId> parts;
  for (size_t i = 0; i < c.input_count(); ++i) parts.push_back(c.required(i));
  if (parts.empty()) fail_input("needs at least one input");
  const size_t axis = normalize_axis(c.int_attr("axis", c.opset() < 4 ? 1 : 0), c.rank(0));
  // Empty parts, as a roll by nothing has them, add nothing.
  const auto empty = [&](TensorId part) {
    const Shape& shape = c.builder().shape(part);
    return axis < shape.size() && shape[axis] == 0;
  };
  if (!std::ranges::all_of(parts, empty)) std::erase_if(parts, empty);
  c.out(0, c.emit(OpKind::Concat, AxisAttrs{static_cast<int64_t>(axis)}, parts));
}

void split(NodeContext& c) {
  const size_t axis = normalize_axis(c.int_attr("axis", 0), c.rank(0));
  Ints sizes = c.ints_attr("split", {});
  if (sizes.empty() && c.has(1)) sizes = c.required_ints(1, "the sizes of the parts");
  if (sizes.empty()) {
    const int64_t parts = c.int_attr("num_outputs", static_cast<int64_t>(c.output_count()));
    const int64_t size = c.shape(0)[axis];
    if (parts < 1 || parts > size || parts != static_cast<int64_t>(c.output_count()))
      fail_input("cannot split {} into {} parts for {} outputs", size, parts, c.output_count());
    const int64_t part = ceil_div(size, parts);
    for (int64_t done = 0; done < size; done += part) sizes.push_back(std::min(part, size - done));
  }
  if (sizes.size() != c.output_count())
    fail_input("makes {} parts, {} are wanted", sizes.size(), c.output_count());
  const auto parts =
      c.emit_all(OpKind::Split, SplitAttrs{static_cast<int64_t>(axis), sizes}, {c.in(0)});
  for (size_t i = 0; i < parts.size(); ++i) c.out(i, parts[i]);
}

void pad(NodeContext& c) {
  const size_t rank = c.rank(0);
  Ints pads = c.opset() < 11 ? c.ints_attr(c.opset() < 2 ? "paddings" : "pads", {})
                             : c.required_ints(1, "the padding");
  double value = c.float_attr("value", 0);
  if (c.opset() >= 11 && c.has(2)) {
    const auto given = c.required_constant(2, "the value of the padding");
    if (!given.empty()) value = given[0];
  }
  Ints axes;
  if (c.has(3))
    axes = c.required_ints(3, "the list of axes");
  else
    for (size_t i = 0; i < rank; ++i) axes.push_back(static_cast<int64_t>(i));
  if (pads.size() != 2 * axes.size()) fail_input("{} pads for {} axes", pads.size(), axes.size());
  PadAttrs attrs{Ints(rank), Ints(rank), PadMode::Constant, value};
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = normalize_axis(axes[i], rank);
    attrs.begin[axis] = pads[i];
    attrs.end[axis] = pads[axes.size() + i];
  }
  const std::string mode = c.string_attr("mode", "constant");
  if (mode == "reflect")
    attrs.mode = PadMode::Reflect;
  else if (mode == "edge")
    attrs.mode = PadMode::Edge;
  else if (mode != "constant" && !mode.empty())
    fail_unsupported("mode \"{}\"", mode);
  c.out(0, c.emit(OpKind::Pad, attrs, {c.in(0)}));
}

void expand(NodeContext& c) {
  const Shape target = broadcast_shapes(c.shape(0), c.required_ints(1, "the target shape"));
  c.out(0, c.emit(OpKind::Expand, ShapeAttrs{target}, {c.in(0)}));
}

// Repeats along every axis: [a, b] tiled (x, y) is [1, a, 1, b] expanded to [x, a, y, b], reshaped.
void tile(NodeContext& c) {
  const Shape in = c.shape(0);
  Ints repeats = c.required_ints(1, "the number of repeats");
  if (c.opset() < 6) {
    // A number of tiles and their axis.
    const Ints axis = c.required_ints(2, "the axis");
    if (repeats.size() != 1 || axis.size() != 1) fail_input("expected one number and one axis");
    Ints all(in.size(), 1);
    all[normalize_axis(axis[0], in.size())] = repeats[0];
    repeats = all;
  }
  if (repeats.size() != in.size()) fail_input("{} repeats for {} axes", repeats.size(), in.size());
  Shape split, wide, merged;
  for (size_t i = 0; i < in.size(); ++i) {
    if (repeats[i] < 0) fail_input("a negative number of repeats");
    split.insert(split.end(), {1, in[i]});
    wide.insert(wide.end(), {repeats[i], in[i]});
    merged.push_back(checked_mul(repeats[i], in[i]));
  }
  if (merged == in) return c.out(0, c.in(0));
  const TensorId expanded =
      c.emit(OpKind::Expand, ShapeAttrs{wide}, {c.reshape(c.in(0), split, "split")}, "repeated");
  c.out(0, c.reshape(expanded, merged));
}

void depth_to_space(NodeContext& c) {
  const Shape x = c.shape(0);
  const int64_t b = c.int_attr("blocksize", 0);
  if (x.size() != 4 || b < 1 || x[1] % checked_mul(b, b) != 0)
    fail_input("input {} does not fit blocks of {}", format_shape(x), b);
  const int64_t channels = x[1] / (b * b);
  const bool crd = c.string_attr("mode", "DCR") == "CRD";
  const Shape split =
      crd ? Shape{x[0], channels, b, b, x[2], x[3]} : Shape{x[0], b, b, channels, x[2], x[3]};
  const Ints order = crd ? Ints{0, 1, 4, 2, 5, 3} : Ints{0, 3, 4, 1, 5, 2};
  const TensorId moved = c.emit(OpKind::Transpose, TransposeAttrs{order},
                                {c.reshape(c.in(0), split, "split")}, "moved");
  c.out(0, c.reshape(moved, {x[0], channels, checked_mul(x[2], b), checked_mul(x[3], b)}));
}

void space_to_depth(NodeContext& c) {
  const Shape x = c.shape(0);
  const int64_t b = c.int_attr("blocksize", 0);
  if (x.size() != 4 || b < 1 || x[2] % b != 0 || x[3] % b != 0)
    fail_input("input {} does not fit blocks of {}", format_shape(x), b);
  const TensorId split = c.reshape(c.in(0), {x[0], x[1], x[2] / b, b, x[3] / b, b}, "split");
  const TensorId moved =
      c.emit(OpKind::Transpose, TransposeAttrs{{0, 3, 5, 1, 2, 4}}, {split}, "moved");
  c.out(0, c.reshape(moved, {x[0], checked_mul(x[1], checked_mul(b, b)), x[2] / b, x[3] / b}));
}

void gather(NodeContext& c) {
  const size_t axis = normalize_axis(c.int_attr("axis", 0), c.rank(0));
  const TensorId indices = c.required(1);
  const bool weight = c.builder().graph()[c.in(0)].role == TensorRole::Weight;
  const bool table = weight && c.rank(0) == 2 && axis == 0;
  if (table && !c.builder().value(indices)) {
    c.out(0, c.emit(OpKind::Embedding, NoAttrs{}, {c.in(1), c.in(0)}));
    return;
  }
  // A single known index is a slice, which needs no index tensor at run time.
  const auto index = c.builder().value(indices);
  if (index && index->size() == 1 && !c.builder().value(c.in(0))) {
    const Shape in = c.shape(0);
    int64_t at = checked_int(index->front());
    if (at < -in[axis] || at >= in[axis])
      fail_input("index {} leaves axis {} of {}", at, axis, format_shape(in));
    if (at < 0) at += in[axis];
    SliceAttrs attrs{Ints(in.size(), 0), Ints(in.size(), 1), in};
    attrs.start[axis] = at;
    attrs.size[axis] = 1;
    const TensorId one = c.emit(OpKind::Slice, attrs, {c.in(0)}, "slice");
    Shape shape = in;
    shape.erase(shape.begin() + static_cast<int64_t>(axis));
    const Shape ones = c.shape(1);
    shape.insert(shape.begin() + static_cast<int64_t>(axis), ones.begin(), ones.end());
    c.out(0, c.reshape(one, shape));
    return;
  }
  c.out(0, c.emit(OpKind::Gather, AxisAttrs{static_cast<int64_t>(axis)}, {c.in(0), c.in(1)}));
}

// A branch whose condition is known is as good as its nodes.
void if_branch(NodeContext& c) {
  const auto condition = c.required_constant(0, "the condition");
  if (condition.size() != 1)
    fail_input("the condition has {} values, expected 1", condition.size());
  const OnnxAttribute* branch = c.attr(condition[0] != 0 ? "then_branch" : "else_branch");
  if (!branch || !branch->graph) fail_input("a branch is missing");
  const auto outputs = c.importer().import_subgraph(*branch->graph, c.name() + "/");
  if (outputs.size() != c.output_count())
    fail_input("the branch has {} outputs, the node {}", outputs.size(), c.output_count());
  for (size_t i = 0; i < outputs.size(); ++i) c.out(i, outputs[i]);
}

}  // namespace

void add_layout_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Concat", concat},
      {"DepthToSpace", depth_to_space},
      {"Expand", expand},
      {"Flatten", flatten},
      {"Gather", gather},
      {"If", if_branch},
      {"Pad", pad},
      {"Reshape", reshape},
      {"Slice", slice},
      {"SpaceToDepth", space_to_depth},
      {"Split", split},
      {"Squeeze", squeeze},
      {"Tile", tile},
      {"Transpose", transpose},
      {"Unsqueeze", unsqueeze},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass

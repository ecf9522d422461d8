#include "windlass/graph/index_ranges.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"

namespace windlass {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Both limits at once. What is only compared yields to what is looked up.
void restrict_to(IndexRange& range, const IndexRange& other) {
  const bool looked_up = range.looked_up || other.looked_up;
  if (other.use == IndexUse::None) return;
  if (range.use == IndexUse::None || (!range.binding() && other.binding())) {
    range = other;
  } else if (range.binding() == other.binding()) {
    if (other.past < range.past) range.use = other.use;
    range.least = std::max(range.least, other.least);
    range.past = std::min(range.past, other.past);
    if (range.ignored != other.ignored) range.ignored.reset();
  }
  range.looked_up = looked_up;
}

// The range of x if that of x + shift is known.
IndexRange shifted(IndexRange range, int64_t least_shift, int64_t most_shift) {
  const auto minus = [](int64_t limit, int64_t shift) {
    int64_t result = 0;
    return limit == kLeast || limit == kMost || __builtin_sub_overflow(limit, shift, &result)
               ? limit
               : result;
  };
  range.least = minus(range.least, least_shift);
  range.past = minus(range.past, most_shift);
  if (range.ignored) {
    if (least_shift == most_shift)
      range.ignored = minus(*range.ignored, least_shift);
    else
      range.ignored.reset();
  }
  return range;
}

// The range of x if that of x * factor is known; factor is at least 1.
IndexRange divided(IndexRange range, int64_t factor) {
  if (factor == 1) return range;
  const auto round_up = [&](int64_t value) {
    return value / factor + (value > 0 && value % factor != 0 ? 1 : 0);
  };
  if (range.least != kLeast) range.least = round_up(range.least);
  if (range.past != kMost) range.past = round_up(range.past);
  range.ignored.reset();
  return range;
}

bool is_whole(double value) { return std::trunc(value) == value && std::abs(value) < 1e15; }

class RangeWalk {
 public:
  explicit RangeWalk(const Graph& graph) : graph_(graph), ranges_(graph.tensors.size()) {}

  std::vector<IndexRange> run() {
    for (size_t i = graph_.ops.size(); i-- > 0;) visit(graph_.ops[i]);
    return std::move(ranges_);
  }

 private:
  void limit(TensorId id, const IndexRange& range) {
    if (id.valid() && !is_float(graph_[id].type.dtype)) restrict_to(ranges_[id.index()], range);
  }
  const IndexRange& of(TensorId id) const { return ranges_[id.index()]; }

  // Least and greatest of known values, if there are any and all are whole.
  std::optional<std::pair<int64_t, int64_t>> known(TensorId id) const {
    const int32_t constant = graph_[id].constant;
    if (constant < 0) return std::nullopt;
    const auto& values = graph_.constants[static_cast<size_t>(constant)].values;
    if (values.empty() || !std::all_of(values.begin(), values.end(), is_whole)) return std::nullopt;
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    return std::pair{static_cast<int64_t>(*least), static_cast<int64_t>(*most)};
  }

  void visit(const Op& op) {
    switch (op.kind) {
      case OpKind::Embedding:
        limit(op.inputs[0], {.least = 0,
                             .past = graph_[op.inputs[1]].type.shape[0],
                             .use = IndexUse::Table,
                             .looked_up = true});
        return;
      case OpKind::Gather: {
        const auto axis = static_cast<size_t>(std::get<AxisAttrs>(op.attrs).axis);
        const int64_t size = graph_[op.inputs[0]].type.shape[axis];
        limit(op.inputs[1], {.least = -size, .past = size, .use = IndexUse::Axis});
        limit(op.inputs[0], of(op.outputs[0]));
        return;
      }
      case OpKind::GatherElements:
      case OpKind::ScatterElements: {
        const auto* along = std::get_if<AxisAttrs>(&op.attrs);
        const int64_t axis = along ? along->axis : std::get<ScatterAttrs>(op.attrs).axis;
        const int64_t size = graph_[op.inputs[0]].type.shape[static_cast<size_t>(axis)];
        limit(op.inputs[1], {.least = -size, .past = size, .use = IndexUse::Axis});
        return;
      }
      case OpKind::CrossEntropy: {
        const auto& attrs = std::get<CrossEntropyAttrs>(op.attrs);
        limit(op.inputs[1],
              {.least = 0,
               .past = graph_[op.inputs[0]].type.shape[static_cast<size_t>(attrs.axis)],
               .use = IndexUse::Classes,
               .ignored = attrs.ignore_index});
        return;
      }
      case OpKind::Reshape:
      case OpKind::Transpose:
      case OpKind::Slice:
      case OpKind::Expand:
      case OpKind::Cast:
      case OpKind::Concat:
      case OpKind::Split:
        for (TensorId input : op.inputs)
          for (TensorId output : op.outputs)
            if (!is_float(graph_[output].type.dtype) && graph_[output].type.dtype != DType::Bool)
              limit(input, of(output));
        return;
      case OpKind::Unary: visit_unary(op); return;
      case OpKind::Binary: visit_binary(op); return;
      default: return;
    }
  }

  void visit_unary(const Op& op) {
    const auto& attrs = std::get<UnaryAttrs>(op.attrs);
    if (attrs.fn != UnaryFn::Affine || !is_whole(attrs.alpha) || !is_whole(attrs.beta)) return;
    if (attrs.alpha < 1) return;
    const auto shift = static_cast<int64_t>(attrs.beta);
    limit(op.inputs[0],
          divided(shifted(of(op.outputs[0]), shift, shift), static_cast<int64_t>(attrs.alpha)));
  }

  void visit_binary(const Op& op) {
    const BinaryFn fn = std::get<BinaryAttrs>(op.attrs).fn;
    for (size_t side = 0; side < 2; ++side) {
      const auto other = known(op.inputs[1 - side]);
      if (!other) continue;
      const auto [least, most] = *other;
      const IndexRange& result = of(op.outputs[0]);
      if (fn == BinaryFn::Add)
        limit(op.inputs[side], shifted(result, least, most));
      else if (fn == BinaryFn::Sub && side == 0)
        limit(op.inputs[side], shifted(result, -most, -least));
      else if (fn == BinaryFn::Mul && least == most && least >= 1)
        limit(op.inputs[side], divided(result, least));
      else if (fn == BinaryFn::Equal && least >= 0)
        limit(op.inputs[side], {.least = 0, .past = most + 1, .use = IndexUse::Compared});
    }
  }

  const Graph& graph_;
  std::vector<IndexRange> ranges_;
};

}  // namespace

std::string_view index_use_name(IndexUse use) {
  switch (use) {
    case IndexUse::None: return "nothing";
    case IndexUse::Table: return "rows of a table";
    case IndexUse::Axis: return "places along an axis";
    case IndexUse::Classes: return "classes of the loss";
    case IndexUse::Compared: return "numbers it is compared with";
  }
  return "?";
}

std::vector<IndexRange> index_ranges(const Graph& graph) { return RangeWalk(graph).run(); }

}  // namespace windlass

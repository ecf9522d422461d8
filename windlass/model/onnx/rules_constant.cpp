// Import rules: constants, and operators that windlass only evaluates on known values, which is
// where exporters use them: shape arithmetic, masks and index tables.

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"
#include "windlass/model/onnx/onnx_types.h"

namespace windlass {
namespace {

// Known values larger than this are not materialised.
constexpr int64_t kLimit = int64_t{1} << 24;

void require_small(const Shape& shape) {
  if (element_count(shape) > kLimit)
    fail_unsupported("a known value of {} elements is too large to be folded",
                     element_count(shape));
}

// Row-major strides.
Ints strides_of(const Shape& shape) {
  Ints strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

void constant(NodeContext& c) {
  if (const auto* value = c.attr("value"); value && value->tensor) {
    if (value->tensor->type.dtype == DType::None)
      fail_unsupported("a constant with an element type windlass does not know");
    c.out(0, c.importer().constant_tensor(*value->tensor, c.name()));
    return;
  }
  const auto emit = [&](DType dtype, std::vector<double> values, bool scalar) {
    const Shape shape = scalar ? Shape{} : Shape{static_cast<int64_t>(values.size())};
    c.out(0, c.constant_like({dtype, shape}, std::move(values)));
  };
  if (const auto* a = c.attr("value_float")) return emit(DType::F32, {a->f}, true);
  if (const auto* a = c.attr("value_int"))
    return emit(DType::I64, {static_cast<double>(a->i)}, true);
  if (const auto* a = c.attr("value_floats")) return emit(DType::F32, a->floats, false);
  if (const auto* a = c.attr("value_ints"))
    return emit(DType::I64, std::vector<double>(a->ints.begin(), a->ints.end()), false);
  fail_unsupported("a constant that is neither tensor nor number");
}

void shape(NodeContext& c) {
  const Shape in = c.shape(0);
  const auto rank = static_cast<int64_t>(in.size());
  const auto bound = [&](const std::string& name, int64_t otherwise) {
    const int64_t value = c.int_attr(name, otherwise);
    return std::clamp<int64_t>(value < 0 ? value + rank : value, 0, rank);
  };
  const int64_t begin = bound("start", 0), end = std::max(begin, bound("end", rank));
  std::vector<double> values(in.begin() + begin, in.begin() + end);
  c.out(0, c.constant_like({DType::I64, {end - begin}}, std::move(values)));
}

void size(NodeContext& c) {
  c.out(0, c.constant_like({DType::I64, {}}, {static_cast<double>(element_count(c.shape(0)))}));
}

void constant_of_shape(NodeContext& c) {
  const Shape target = c.required_ints(0, "the shape");
  require_small(target);
  DType dtype = DType::F32;
  double value = 0;
  if (const auto* given = c.attr("value"); given && given->tensor) {
    const auto values = c.importer().tensor_values(*given->tensor);
    if (values.size() != 1) fail_input("value has {} elements, expected 1", values.size());
    value = values[0];
    dtype = given->tensor->type.dtype;
  }
  c.out(0, c.make_constant({dtype, target}, [value](int64_t) { return value; }));
}

void range(NodeContext& c) {
  double operands[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    const auto values = c.required_constant(i, "a bound of the range");
    if (values.size() != 1) fail_input("a bound has {} values, expected 1", values.size());
    operands[i] = values[0];
  }
  const double start = operands[0], limit = operands[1], delta = operands[2];
  if (delta == 0) fail_input("the step is 0");
  const double count = std::max(0.0, std::ceil((limit - start) / delta));
  if (!(count <= static_cast<double>(kLimit))) fail_unsupported("a range of {} elements", count);
  const TensorType type = {c.type(0).dtype, {static_cast<int64_t>(count)}};
  c.out(0,
        c.make_constant(type, [&](int64_t i) { return start + delta * static_cast<double>(i); }));
}

void non_zero(NodeContext& c) {
  const auto values = c.required_constant(0, "which elements are not zero");
  c.claim_work(4 * static_cast<int64_t>(values.size()));
  const Shape in = c.shape(0);
  const Ints strides = strides_of(in);
  std::vector<int64_t> found;
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != 0) found.push_back(static_cast<int64_t>(i));
  const Shape result = {static_cast<int64_t>(in.size()), static_cast<int64_t>(found.size())};
  require_small(result);
  c.out(0, c.make_constant({DType::I64, result}, [&](int64_t i) {
    const auto axis = static_cast<size_t>(i / result[1]);
    const int64_t flat = found[static_cast<size_t>(i % result[1])];
    return static_cast<double>(flat / strides[axis] % in[axis]);
  }));
}

// Keeps one triangle of the last two axes: a product with a mask of ones and zeros.
void trilu(NodeContext& c) {
  const Shape in = c.shape(0);
  if (in.size() < 2) fail_input("input has shape {}", format_shape(in));
  const bool upper = c.int_attr("upper", 1) != 0;
  int64_t k = 0;
  if (c.has(1)) {
    const Ints diagonal = c.required_ints(1, "the diagonal");
    if (diagonal.size() != 1) fail_input("the diagonal has {} values, expected 1", diagonal.size());
    k = diagonal[0];
  }
  const int64_t rows = in[in.size() - 2], columns = in.back();
  const auto keeps = [&](int64_t i, int64_t j) { return upper ? j - i >= k : j - i <= k; };
  if (const auto* values = c.builder().value(c.in(0))) {
    c.out(0, c.make_constant(c.type(0), [&](int64_t n) {
      const int64_t within = n % (rows * columns);
      return keeps(within / columns, within % columns) ? (*values)[static_cast<size_t>(n)] : 0;
    }));
    return;
  }
  require_small({rows, columns});
  const TensorId triangle = c.make_constant({DType::Bool, {rows, columns}}, [&](int64_t n) {
    return keeps(n / columns, n % columns) ? 1 : 0;
  });
  const TensorId zero = c.builder().scalar(0, c.type(0).dtype);
  c.out(0, c.emit(OpKind::Where, NoAttrs{}, {triangle, c.in(0), zero}));
}

void eye_like(NodeContext& c) {
  const Shape in = c.shape(0);
  if (in.size() != 2) fail_input("input has shape {}", format_shape(in));
  require_small(in);
  const int64_t k = c.int_attr("k", 0);
  const DType dtype = c.has_attr("dtype") ? dtype_of_onnx(c.int_attr("dtype", 1)) : c.type(0).dtype;
  if (dtype == DType::None) fail_unsupported("an element type that is not known");
  c.out(0, c.make_constant({dtype, in},
                           [&](int64_t n) { return n % in[1] - n / in[1] == k ? 1 : 0; }));
}

// indices == range(depth) along a new axis, chosen between two values.
void one_hot(NodeContext& c) {
  const Ints depth = c.required_ints(1, "the depth");
  const auto choice = c.required_constant(2, "the two values");
  if (depth.size() != 1 || depth[0] < 1 || depth[0] > kLimit || choice.size() != 2)
    fail_input("expected one depth and two values");
  const size_t rank = c.rank(0) + 1;
  const size_t axis = normalize_axis(c.int_attr("axis", -1), rank);
  Shape shape = c.shape(0);
  shape.insert(shape.begin() + static_cast<int64_t>(axis), 1);
  Shape classes(rank, 1);
  classes[axis] = depth[0];
  const TensorId numbers =
      c.make_constant({c.type(0).dtype, classes}, [](int64_t i) { return static_cast<double>(i); });
  // Negative indices count from the end.
  const TensorId column = c.reshape(c.in(0), shape, "column");
  const DType whole = c.type(0).dtype;
  const TensorId negative =
      c.binary(BinaryFn::Less, column, c.builder().scalar(0, whole), "negative");
  const TensorId from_end =
      c.unary(UnaryFn::Affine, column, 1, static_cast<double>(depth[0]), "from_end");
  const TensorId index = c.emit(OpKind::Where, NoAttrs{}, {negative, from_end, column}, "index");
  const TensorId hit = c.binary(BinaryFn::Equal, index, numbers, "hit");
  const DType dtype = c.type(2).dtype;
  c.out(0,
        c.emit(OpKind::Where, NoAttrs{},
               {hit, c.builder().scalar(choice[1], dtype), c.builder().scalar(choice[0], dtype)}));
}

// Slices of an axis, or elements of all, where a known condition holds.
void compress(NodeContext& c) {
  const auto condition = c.required_constant(1, "the condition");
  TensorId x = c.in(0);
  if (!c.has_attr("axis")) x = c.reshape(x, {element_count(c.shape(0))}, "flat");
  const Shape shape = c.builder().shape(x);
  const size_t axis = normalize_axis(c.int_attr("axis", 0), shape.size());
  std::vector<double> places;
  for (size_t i = 0; i < condition.size() && static_cast<int64_t>(i) < shape[axis]; ++i)
    if (condition[i] != 0) places.push_back(static_cast<double>(i));
  const auto count = static_cast<int64_t>(places.size());
  c.out(0, c.emit(OpKind::Gather, AxisAttrs{static_cast<int64_t>(axis)},
                  {x, c.constant_like({DType::I64, {count}}, std::move(places))}));
}

}  // namespace

void add_constant_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Compress", compress}, {"Constant", constant}, {"ConstantOfShape", constant_of_shape},
      {"EyeLike", eye_like},  {"NonZero", non_zero},  {"OneHot", one_hot},
      {"Range", range},       {"Shape", shape},       {"Size", size},
      {"Trilu", trilu},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass

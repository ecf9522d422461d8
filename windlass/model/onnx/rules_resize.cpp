// Import rules: resampling. What PyTorch's functions compute is an op; every other choice of places
// and weights that ONNX allows is written out axis by axis: elements taken by number, or a product
// with a matrix of weights.

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// Matrices and lists of places beyond this are not made.
constexpr int64_t kMaxWeights = int64_t{1} << 22;

struct Resampling {
  std::string mode, coordinates, nearest;
  double cubic = -0.75;  // coefficient of the cubic weights
  bool exclude_outside = false;
};

// One axis: sizes, and how much larger the result is meant to be, which rounding may have changed.
struct Axis {
  int64_t in = 1, out = 1;
  double scale = 1;
};

// Where place i of the result lies in the input.
double source_place(const Resampling& r, const Axis& axis, int64_t i) {
  const auto place = static_cast<double>(i);
  if (r.coordinates == "half_pixel") return (place + 0.5) / axis.scale - 0.5;
  if (r.coordinates == "pytorch_half_pixel")
    return axis.out > 1 ? (place + 0.5) / axis.scale - 0.5 : 0;
  if (r.coordinates == "tf_half_pixel_for_nn") return (place + 0.5) / axis.scale;
  if (r.coordinates == "asymmetric") return place / axis.scale;
  if (r.coordinates == "align_corners")
    return axis.out == 1
               ? 0
               : place * static_cast<double>(axis.in - 1) / static_cast<double>(axis.out - 1);
  fail_unsupported("coordinate_transformation_mode \"{}\"", r.coordinates);
}

int64_t nearest_place(const Resampling& r, const Axis& axis, int64_t i) {
  const double u = source_place(r, axis, i);
  double at = 0;
  if (r.nearest == "round_prefer_floor")
    at = std::ceil(u - 0.5);
  else if (r.nearest == "round_prefer_ceil")
    at = std::floor(u + 0.5);
  else if (r.nearest == "floor")
    at = std::floor(u);
  else if (r.nearest == "ceil")
    at = std::ceil(u);
  else
    fail_unsupported("nearest_mode \"{}\"", r.nearest);
  return static_cast<int64_t>(std::clamp(at, 0.0, static_cast<double>(axis.in - 1)));
}

// What the op Resize would take there.
ResizeCoordinates op_coordinates(const Resampling& r) {
  if (r.coordinates == "align_corners") return ResizeCoordinates::AlignCorners;
  return r.coordinates == "asymmetric" ? ResizeCoordinates::Asymmetric
                                       : ResizeCoordinates::HalfPixel;
}

bool op_agrees(const Resampling& r, const Axis& axis) {
  if (r.mode == "cubic") return false;
  const ResizeCoordinates coordinates = op_coordinates(r);
  Resampling meant = r;
  meant.coordinates = coordinates == ResizeCoordinates::AlignCorners ? "align_corners"
                      : coordinates == ResizeCoordinates::Asymmetric ? "asymmetric"
                                                                     : "half_pixel";
  meant.nearest = coordinates == ResizeCoordinates::Asymmetric ? "floor" : "round_prefer_ceil";
  const Axis whole{axis.in, axis.out, static_cast<double>(axis.out) / static_cast<double>(axis.in)};
  const auto last = static_cast<double>(axis.in - 1);
  for (int64_t i = 0; i < axis.out; ++i) {
    if (r.mode == "nearest" && nearest_place(r, axis, i) != nearest_place(meant, whole, i))
      return false;
    const double here = std::clamp(source_place(r, axis, i), 0.0, last);
    const double there = std::clamp(source_place(meant, whole, i), 0.0, last);
    if (r.mode == "linear" && std::abs(here - there) > 1e-5) return false;
  }
  return true;
}

double cubic_weight(double distance, double a) {
  const double d = std::abs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

// Weights [in, out] of a linear or cubic resampling.
std::vector<double> weights_of(const Resampling& r, const Axis& axis) {
  std::vector<double> weights(static_cast<size_t>(axis.in * axis.out));
  const int64_t reach = r.mode == "cubic" ? 2 : 1;
  for (int64_t i = 0; i < axis.out; ++i) {
    const double u = source_place(r, axis, i);
    const auto low = static_cast<int64_t>(std::floor(u));
    double total = 0;
    for (int64_t k = low - reach + 1; k <= low + reach; ++k) {
      const double distance = u - static_cast<double>(k);
      double weight = r.mode == "cubic" ? cubic_weight(distance, r.cubic) : 1 - std::abs(distance);
      const bool outside = k < 0 || k >= axis.in;
      if (outside && r.exclude_outside) weight = 0;
      total += weight;
      const int64_t at = std::clamp<int64_t>(k, 0, axis.in - 1);
      weights[static_cast<size_t>(at * axis.out + i)] += weight;
    }
    for (int64_t k = 0; r.exclude_outside && k < axis.in; ++k)
      weights[static_cast<size_t>(k * axis.out + i)] /= total;
  }
  return weights;
}

TensorId resample_axis(NodeContext& c, TensorId x, size_t at, const Resampling& r,
                       const Axis& axis) {
  const std::string name = "axis" + std::to_string(at);
  if (r.mode == "nearest") {
    const TensorId places = c.make_constant({DType::I64, {axis.out}}, [&](int64_t i) {
      return static_cast<double>(nearest_place(r, axis, i));
    });
    return c.emit(OpKind::Gather, AxisAttrs{static_cast<int64_t>(at)}, {x, places}, name);
  }
  if (checked_mul(axis.in, axis.out) > kMaxWeights)
    fail_unsupported("mode \"{}\" from {} to {}", r.mode, axis.in, axis.out);
  const TensorId weights =
      c.constant_like({c.builder().type(x).dtype, {axis.in, axis.out}}, weights_of(r, axis));
  Ints order;
  for (size_t i = 0; i < c.builder().shape(x).size(); ++i) order.push_back(static_cast<int64_t>(i));
  std::swap(order[at], order.back());
  const auto turned = [&](TensorId t, const std::string& part) {
    return at + 1 == order.size() ? t : c.emit(OpKind::Transpose, TransposeAttrs{order}, {t}, part);
  };
  const TensorId product =
      c.emit(OpKind::MatMul, MatMulAttrs{}, {turned(x, name + ".last"), weights}, name);
  return turned(product, name + ".back");
}

// Scales of all axes, from scales or from sizes.
std::vector<Axis> read_axes(NodeContext& c) {
  const bool upsample = c.node().op_type == "Upsample";
  const Shape x = c.shape(0);
  std::vector<double> scales;
  if (c.has_attr("scales"))
    scales = c.attr("scales")->floats;
  else if (c.has_attr("height_scale"))
    scales = {1, 1, c.float_attr("height_scale", 1), c.float_attr("width_scale", 1)};
  else if (const size_t input = upsample || c.opset() < 11 ? 1 : 2; c.has(input))
    scales = c.required_constant(input, "the scale");
  Ints named = c.ints_attr("axes", {});
  if (named.empty())
    for (size_t i = 0; i < x.size(); ++i) named.push_back(static_cast<int64_t>(i));
  std::vector<Axis> axes;
  for (int64_t size : x) axes.push_back({size, size, 1});
  if (!scales.empty()) {
    if (scales.size() != named.size())
      fail_input("{} scales for {} axes", scales.size(), named.size());
    for (size_t i = 0; i < named.size(); ++i) {
      Axis& axis = axes[normalize_axis(named[i], x.size())];
      if (!(scales[i] > 0 && scales[i] < 1e6)) fail_input("scale {} is out of range", scales[i]);
      axis.scale = scales[i];
      axis.out = checked_int(std::floor(static_cast<double>(axis.in) * scales[i]));
    }
    return axes;
  }
  if (c.string_attr("keep_aspect_ratio_policy", "stretch") != "stretch")
    fail_unsupported("keep_aspect_ratio_policy");
  const Ints sizes = c.required_ints(3, "the size");
  if (sizes.size() != named.size()) fail_input("{} sizes for {} axes", sizes.size(), named.size());
  for (size_t i = 0; i < named.size(); ++i) {
    Axis& axis = axes[normalize_axis(named[i], x.size())];
    axis.out = sizes[i];
    if (axis.in > 0) axis.scale = static_cast<double>(axis.out) / static_cast<double>(axis.in);
  }
  return axes;
}

// Resize and the older Upsample: sizes, or scales of the sizes, of all axes.
void resize(NodeContext& c) {
  const bool old = c.node().op_type == "Upsample" || c.opset() < 11;
  const std::string mode = c.string_attr("mode", "nearest");
  Resampling r{.mode = mode == "bilinear" ? "linear" : mode,
               .coordinates = c.string_attr("coordinate_transformation_mode",
                                            old ? "asymmetric" : "half_pixel"),
               .nearest = c.string_attr("nearest_mode", old ? "floor" : "round_prefer_floor"),
               .cubic = c.float_attr("cubic_coeff_a", -0.75),
               .exclude_outside = c.int_attr("exclude_outside", 0) != 0};
  if (r.mode != "nearest" && r.mode != "linear" && r.mode != "cubic")
    fail_unsupported("mode \"{}\"; use nearest, linear or cubic", mode);
  if (c.int_attr("antialias", 0) != 0) fail_unsupported("antialiasing");
  const std::vector<Axis> axes = read_axes(c);
  Ints size;
  bool plain = axes.size() > 2;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    if (axis.in < 1 || axis.out < 1) fail_input("cannot resize {} to {} places", axis.in, axis.out);
    c.claim_work(checked_mul(axis.out, 16));  // a place is computed several times, by name of mode
    if (i >= 2) size.push_back(axis.out);
    plain = plain && (i < 2 ? axis.out == axis.in && axis.scale == 1 : op_agrees(r, axis));
  }
  if (plain) {
    c.out(0,
          c.emit(OpKind::Resize,
                 ResizeAttrs{size, r.mode == "nearest" ? ResizeMode::Nearest : ResizeMode::Linear,
                             op_coordinates(r)},
                 {c.in(0)}));
    return;
  }
  TensorId x = c.in(0);
  for (size_t i = 0; i < axes.size(); ++i)
    if (axes[i].out != axes[i].in || axes[i].scale != 1) x = resample_axis(c, x, i, r, axes[i]);
  c.out(0, x);
}

}  // namespace

void add_resize_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {{"Resize", resize},
                                                           {"Upsample", resize}};
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass

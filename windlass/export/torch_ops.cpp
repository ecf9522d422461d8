#include <array>
#include <cmath>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/export/torch_script.h"

namespace windlass {
namespace {

std::string tuple(const std::vector<int64_t>& values) {
  std::string text;
  for (int64_t value : values) text += fmt::format("{}{}", text.empty() ? "" : ", ", value);
  return values.size() == 1 ? "(" + text + ",)" : "(" + text + ")";
}

std::vector<int64_t> ints(const auto& values) {
  return std::vector<int64_t>(values.begin(), values.end());
}

// As Python reads it.
std::string real(double value) {
  if (std::isinf(value)) return value > 0 ? "math.inf" : "-math.inf";
  return std::isnan(value) ? "math.nan" : fmt::format("{}", value);
}

[[noreturn]] void fail_op(const Op& op, std::string_view why) {
  fail_unsupported("--to pytorch: op \"{}\" ({}): {}", op.name, op_info(op.kind).name, why);
}

// A function in Python, with {x} and {y} for operands, {a} and {b} for parameters.
template <typename Fn>
struct Spelling {
  Fn fn;
  std::string_view text;
};

template <typename Fn, size_t kCount>
std::string_view spelling_of(Fn fn, const std::array<Spelling<Fn>, kCount>& known,
                             std::string_view otherwise = {}) {
  for (const Spelling<Fn>& spelling : known)
    if (spelling.fn == fn) return spelling.text;
  return otherwise;
}

// Functions that torch has under windlass's own name are not listed.
constexpr std::array kUnaries = std::to_array<Spelling<UnaryFn>>({
    {UnaryFn::Identity, "{x}"},
    {UnaryFn::Relu, "F.relu({x})"},
    {UnaryFn::LeakyRelu, "F.leaky_relu({x}, {a})"},
    {UnaryFn::Elu, "torch.where({x} > 0, {b} * {x}, {a} * torch.expm1({x}.clamp(max=0)))"},
    {UnaryFn::Not, "torch.logical_not({x})"},
    {UnaryFn::Clip, "torch.clamp({x}, {a}, {b})"},
    {UnaryFn::Gelu, "F.gelu({x})"},
    {UnaryFn::GeluTanh, "F.gelu({x}, approximate=\"tanh\")"},
    {UnaryFn::Silu, "F.silu({x})"},
    {UnaryFn::Softplus, "F.softplus({x})"},
    {UnaryFn::Mish, "F.mish({x})"},
    {UnaryFn::HardSwish, "F.hardswish({x})"},
    {UnaryFn::HardSigmoid, "torch.clamp({x} * {a} + {b}, 0, 1)"},
    {UnaryFn::Affine, "({x} * {a} + {b})"},
    {UnaryFn::Power, "torch.pow({x}, {a})"},
});

std::string unary(const UnaryAttrs& attrs, const std::string& x) {
  const std::string named = fmt::format("torch.{}({{x}})", enum_name(attrs.fn));
  return fmt::format(fmt::runtime(spelling_of(attrs.fn, kUnaries, named)), fmt::arg("x", x),
                     fmt::arg("a", real(attrs.alpha)), fmt::arg("b", real(attrs.beta)));
}

constexpr std::array kBinaries = std::to_array<Spelling<BinaryFn>>({
    {BinaryFn::Add, "{x} + {y}"},
    {BinaryFn::Sub, "{x} - {y}"},
    {BinaryFn::Mul, "{x} * {y}"},
    {BinaryFn::Div, "{x} / {y}"},
    {BinaryFn::Mod, "torch.fmod({x}, {y})"},
    {BinaryFn::Equal, "{x} == {y}"},
    {BinaryFn::Less, "{x} < {y}"},
    {BinaryFn::LessEqual, "{x} <= {y}"},
    {BinaryFn::Greater, "{x} > {y}"},
    {BinaryFn::GreaterEqual, "{x} >= {y}"},
    {BinaryFn::And, "torch.logical_and({x}, {y})"},
    {BinaryFn::Or, "torch.logical_or({x}, {y})"},
    {BinaryFn::Xor, "torch.logical_xor({x}, {y})"},
    {BinaryFn::Pow, "torch.pow({x}, {y})"},
    {BinaryFn::Max, "torch.maximum({x}, {y})"},
    {BinaryFn::Min, "torch.minimum({x}, {y})"},
});
// Where whole numbers are treated otherwise.
constexpr std::array kWholeBinaries = std::to_array<Spelling<BinaryFn>>({
    {BinaryFn::Div, "torch.div({x}, {y}, rounding_mode=\"trunc\")"},
    {BinaryFn::Mod, "torch.remainder({x}, {y})"},
});

std::string binary(const Op& op, BinaryFn fn, const std::string& x, const std::string& y,
                   bool whole) {
  std::string_view text = spelling_of(fn, kBinaries);
  if (whole) text = spelling_of(fn, kWholeBinaries, text);
  if (text.empty()) fail_op(op, "this function is not written");
  return fmt::format(fmt::runtime(text), fmt::arg("x", x), fmt::arg("y", y));
}

std::string padding(const Op& op, const auto& begin, const auto& end) {
  if (ints(begin) != ints(end)) fail_op(op, "padding that differs at both ends is not written");
  return tuple(ints(begin));
}

constexpr std::array kReductions = std::to_array<Spelling<ReduceFn>>({
    {ReduceFn::Sum, "torch.sum({x}, {a}, keepdim={b})"},
    {ReduceFn::Mean, "torch.mean({x}, {a}, keepdim={b})"},
    {ReduceFn::Max, "torch.amax({x}, {a}, keepdim={b})"},
    {ReduceFn::Min, "torch.amin({x}, {a}, keepdim={b})"},
    {ReduceFn::L1, "torch.sum({x}.abs(), {a}, keepdim={b})"},
    {ReduceFn::L2, "torch.sqrt(torch.sum({x}.square(), {a}, keepdim={b}))"},
    {ReduceFn::SumSquare, "torch.sum({x}.square(), {a}, keepdim={b})"},
    {ReduceFn::LogSumExp, "torch.logsumexp({x}, {a}, keepdim={b})"},
    {ReduceFn::Prod, "torch.prod({x}, {a}, keepdim={b})"},
});

std::string reduction(const Op& op, const ReduceAttrs& attrs, const std::string& x) {
  const std::string_view text = spelling_of(attrs.fn, kReductions);
  if (text.empty()) fail_op(op, "this reduction is not written");
  std::string axes = tuple(ints(attrs.axes));
  if (attrs.fn == ReduceFn::Prod) {
    if (attrs.axes.size() != 1) fail_op(op, "a product over several axes is not written");
    axes = fmt::format("{}", attrs.axes[0]);
  }
  return fmt::format(fmt::runtime(text), fmt::arg("x", x), fmt::arg("a", axes),
                     fmt::arg("b", attrs.keep_dims ? "True" : "False"));
}

// Amounts from the last axis to the first one that has any, as F.pad takes them.
std::string pad(const Op& op, const PadAttrs& attrs, const std::string& x) {
  size_t first = 0;
  while (first + 1 < attrs.begin.size() && attrs.begin[first] == 0 && attrs.end[first] == 0)
    ++first;
  std::vector<int64_t> amounts;
  for (size_t axis = attrs.begin.size(); axis-- > first;) {
    amounts.push_back(attrs.begin[axis]);
    amounts.push_back(attrs.end[axis]);
  }
  if (attrs.mode == PadMode::Constant)
    return fmt::format("F.pad({}, {}, value={})", x, tuple(amounts), real(attrs.value));
  if (first == 0) fail_op(op, "padding of the batch with its own samples is not written");
  return fmt::format("F.pad({}, {}, \"{}\")", x, tuple(amounts),
                     attrs.mode == PadMode::Edge ? "replicate" : "reflect");
}

std::string resize(const Op& op, const ResizeAttrs& attrs, const std::string& x) {
  const std::string size = tuple(ints(attrs.size));
  const bool half = attrs.coordinates == ResizeCoordinates::HalfPixel;
  const bool corners = attrs.coordinates == ResizeCoordinates::AlignCorners;
  if (attrs.mode == ResizeMode::Nearest) {
    if (corners) fail_op(op, "the nearest of aligned corners is not written");
    return fmt::format("F.interpolate({}, {}, mode=\"nearest{}\")", x, size, half ? "-exact" : "");
  }
  if (!half && !corners) fail_op(op, "linear resampling of asymmetric coordinates is not written");
  constexpr std::array kModes = {"linear", "bilinear", "trilinear"};
  return fmt::format("F.interpolate({}, {}, mode=\"{}\", align_corners={})", x, size,
                     kModes.at(attrs.size.size() - 1), corners ? "True" : "False");
}

std::string recurrent(const Op& op, const std::vector<std::string>& in) {
  const auto& attrs = std::get<RecurrentAttrs>(op.attrs);
  const bool lstm = op.kind == OpKind::Lstm;
  if (!lstm && !attrs.linear_before_reset)
    fail_op(op, "a reset gate before the product is not written");
  std::string operands;
  for (size_t i = 0; i < 6; ++i) operands += (i < in.size() ? in[i] : "None") + ", ";
  return fmt::format("recurrent(torch.{}, {}{}, {}, {}){}", lstm ? "lstm" : "gru", operands,
                     attrs.gates == GateOrder::Onnx ? "True" : "False",
                     attrs.bidirectional ? "True" : "False", attrs.reverse ? "True" : "False",
                     op.outputs.size() == 1 ? "[0]" : fmt::format("[:{}]", op.outputs.size()));
}

std::string random_numbers(const RandomAttrs& attrs, const std::string& dtype) {
  const std::string made =
      fmt::format("torch.empty({}, dtype={}, device=DEVICE)", tuple(ints(attrs.shape)), dtype);
  switch (attrs.fn) {
    case RandomFn::Uniform:
      return fmt::format("{}.uniform_({}, {})", made, real(attrs.alpha), real(attrs.beta));
    case RandomFn::Normal:
      return fmt::format("{}.normal_({}, {})", made, real(attrs.alpha), real(attrs.beta));
    case RandomFn::Bernoulli: return fmt::format("{}.bernoulli_({})", made, real(attrs.alpha));
  }
  return made;
}

}  // namespace

std::string_view torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::F64: return "torch.float64";
    case DType::F16: return "torch.float16";
    case DType::BF16: return "torch.bfloat16";
    case DType::I64: return "torch.int64";
    case DType::I32: return "torch.int32";
    case DType::U8: return "torch.uint8";
    case DType::Bool: return "torch.bool";
    default: return "torch.float32";
  }
}

std::string torch_number(double value, DType dtype) {
  if (dtype == DType::Bool) return value != 0 ? "True" : "False";
  return is_integer(dtype) ? fmt::format("{}", static_cast<int64_t>(value)) : real(value);
}

std::string torch_expression(const Graph& graph, const Op& op, const std::vector<std::string>& in) {
  const auto has = [&](size_t i) { return i < in.size() && in[i] != "None"; };
  const auto at = [&](size_t i) { return i < in.size() ? in[i] : std::string("None"); };
  const auto shape_of = [&](size_t i) { return graph[op.inputs[i]].type.shape; };
  switch (op.kind) {
    case OpKind::Linear: {
      const bool turned = std::get<LinearAttrs>(op.attrs).input_major;
      return fmt::format("F.linear({}, {}{}, {})", in[0], in[1], turned ? ".t()" : "", at(2));
    }
    case OpKind::GroupedLinear:
      return fmt::format("grouped_linear({}, {}, {})", in[0], in[1], in[2]);
    case OpKind::Route: {
      const auto& attrs = std::get<RouteAttrs>(op.attrs);
      return fmt::format("route({}, {}, {})", in[0], attrs.top_k,
                         attrs.renormalize ? "True" : "False");
    }
    case OpKind::Combine: return fmt::format("({} * {}[..., None]).sum(1)", in[0], in[1]);
    case OpKind::MatMul: {
      const auto& attrs = std::get<MatMulAttrs>(op.attrs);
      return fmt::format("{}{} @ {}{}", in[0], attrs.transpose_a ? ".transpose(-1, -2)" : "", in[1],
                         attrs.transpose_b ? ".transpose(-1, -2)" : "");
    }
    case OpKind::Conv: {
      const auto& attrs = std::get<ConvAttrs>(op.attrs);
      if (attrs.transposed)
        return fmt::format(
            "F.conv_transpose{}d({}, {}, {}, {}, {}, {}, {}, {})", attrs.stride.size(), in[0],
            in[1], at(2), tuple(ints(attrs.stride)), padding(op, attrs.pad_begin, attrs.pad_end),
            tuple(ints(attrs.output_padding)), attrs.groups, tuple(ints(attrs.dilation)));
      return fmt::format("F.conv{}d({}, {}, {}, {}, {}, {}, {})", attrs.stride.size(), in[0], in[1],
                         at(2), tuple(ints(attrs.stride)),
                         padding(op, attrs.pad_begin, attrs.pad_end), tuple(ints(attrs.dilation)),
                         attrs.groups);
    }
    case OpKind::Pool: {
      const auto& attrs = std::get<PoolAttrs>(op.attrs);
      const std::string pads = padding(op, attrs.pad_begin, attrs.pad_end);
      const std::string ceil = attrs.ceil_mode ? "True" : "False";
      if (attrs.fn == PoolFn::Max)
        return fmt::format("F.max_pool{}d({}, {}, {}, {}, {}, {})", attrs.kernel.size(), in[0],
                           tuple(ints(attrs.kernel)), tuple(ints(attrs.stride)), pads,
                           tuple(ints(attrs.dilation)), ceil);
      return fmt::format("F.avg_pool{}d({}, {}, {}, {}, {}, {})", attrs.kernel.size(), in[0],
                         tuple(ints(attrs.kernel)), tuple(ints(attrs.stride)), pads, ceil,
                         attrs.count_include_pad ? "True" : "False");
    }
    case OpKind::BatchNorm: {
      const auto& attrs = std::get<BatchNormAttrs>(op.attrs);
      if (attrs.training)
        return fmt::format("batch_norm({}, {}, {}, {}, {}, {}, {})", in[0], at(3), at(4), at(1),
                           at(2), real(attrs.momentum), real(attrs.epsilon));
      return fmt::format("F.batch_norm({}, {}, {}, {}, {}, eps={})", in[0], at(3), at(4), at(1),
                         at(2), real(attrs.epsilon));
    }
    case OpKind::GroupNorm: {
      const auto& attrs = std::get<GroupNormAttrs>(op.attrs);
      return fmt::format("F.group_norm({}, {}, {}, {}, {})", in[0], attrs.groups, at(1), at(2),
                         real(attrs.epsilon));
    }
    case OpKind::LocalResponseNorm: {
      const auto& attrs = std::get<LrnAttrs>(op.attrs);
      return fmt::format("F.local_response_norm({}, {}, {}, {}, {})", in[0], attrs.size,
                         real(attrs.alpha), real(attrs.beta), real(attrs.bias));
    }
    case OpKind::Resize: return resize(op, std::get<ResizeAttrs>(op.attrs), in[0]);
    case OpKind::Pad: return pad(op, std::get<PadAttrs>(op.attrs), in[0]);
    case OpKind::Lstm:
    case OpKind::Gru: return recurrent(op, in);
    case OpKind::Cast:
      return fmt::format("{}.to({})", in[0], torch_dtype(std::get<CastAttrs>(op.attrs).to));
    case OpKind::Random: {
      const auto& attrs = std::get<RandomAttrs>(op.attrs);
      return random_numbers(attrs, std::string(torch_dtype(attrs.dtype)));
    }
    case OpKind::LayerNorm: {
      const auto& attrs = std::get<LayerNormAttrs>(op.attrs);
      const Shape shape = shape_of(0);
      return fmt::format("F.layer_norm({}, {}, {}, {}, {})", in[0],
                         tuple(std::vector<int64_t>(shape.begin() + attrs.axis, shape.end())),
                         at(1), at(2), real(attrs.epsilon));
    }
    case OpKind::RmsNorm: {
      const auto& attrs = std::get<LayerNormAttrs>(op.attrs);
      return fmt::format("rms_norm({}, {}, {}, {}, {})", in[0], at(1), attrs.axis,
                         real(attrs.epsilon), real(attrs.scale_offset));
    }
    case OpKind::Softmax: {
      const auto& attrs = std::get<SoftmaxAttrs>(op.attrs);
      return fmt::format("torch.{}softmax({}, {})", attrs.log ? "log_" : "", in[0], attrs.axis);
    }
    case OpKind::Attention: {
      const auto& attrs = std::get<AttentionAttrs>(op.attrs);
      return fmt::format("attention({}, {}, {}, {}, {}, {}, {}, {})", in[0], in[1], in[2], at(3),
                         real(attrs.scale), attrs.causal ? "True" : "False", attrs.window,
                         real(attrs.dropout));
    }
    case OpKind::Rotary: {
      const auto& attrs = std::get<RotaryAttrs>(op.attrs);
      return fmt::format("rotary({}, {}, {}, {})", in[0], real(attrs.theta), attrs.dims,
                         attrs.interleaved ? "True" : "False");
    }
    case OpKind::Unary: return unary(std::get<UnaryAttrs>(op.attrs), in[0]);
    case OpKind::Binary:
      return binary(op, std::get<BinaryAttrs>(op.attrs).fn, in[0], in[1],
                    is_integer(graph[op.inputs[0]].type.dtype));
    case OpKind::Where: return fmt::format("torch.where({}, {}, {})", in[0], in[1], in[2]);
    case OpKind::Dropout:
      return fmt::format("F.dropout({}, {}, True)", in[0],
                         real(std::get<DropoutAttrs>(op.attrs).ratio));
    case OpKind::Embedding: return fmt::format("F.embedding({}, {})", in[0], in[1]);
    case OpKind::Gather:
      return fmt::format("gather({}, {}, {})", in[0], in[1], std::get<AxisAttrs>(op.attrs).axis);
    case OpKind::GatherElements:
      return fmt::format("torch.gather({}, {}, {})", in[0], std::get<AxisAttrs>(op.attrs).axis,
                         in[1]);
    case OpKind::ScatterElements: {
      const auto& attrs = std::get<ScatterAttrs>(op.attrs);
      return fmt::format("torch.scatter{}({}, {}, {}, {})", attrs.add ? "_add" : "", in[0],
                         attrs.axis, in[1], in[2]);
    }
    case OpKind::CumSum:
      return fmt::format("torch.cumsum({}, {})", in[0], std::get<AxisAttrs>(op.attrs).axis);
    case OpKind::ArgMax:
      return fmt::format("torch.argmax({}, {}).reshape({})", in[0],
                         std::get<AxisAttrs>(op.attrs).axis,
                         tuple(ints(graph[op.outputs[0]].type.shape)));
    case OpKind::TopK: {
      const auto& attrs = std::get<TopKAttrs>(op.attrs);
      return fmt::format("torch.topk({}, {}, {}, {})", in[0], attrs.k, attrs.axis,
                         attrs.largest ? "True" : "False");
    }
    case OpKind::Reshape:
    case OpKind::Expand: {
      const Shape& shape = std::get<ShapeAttrs>(op.attrs).shape;
      return fmt::format("{}.{}({})", in[0], op.kind == OpKind::Reshape ? "reshape" : "expand",
                         tuple(ints(shape)));
    }
    case OpKind::Transpose:
      return fmt::format("{}.permute({})", in[0],
                         tuple(ints(std::get<TransposeAttrs>(op.attrs).order)));
    case OpKind::Slice: {
      const auto& attrs = std::get<SliceAttrs>(op.attrs);
      std::string text;
      for (size_t i = 0; i < attrs.size.size(); ++i) {
        const int64_t last = attrs.start[i] + (attrs.size[i] - 1) * attrs.step[i];
        if (attrs.step[i] < 1 || attrs.size[i] < 1) fail_op(op, "a slice backwards is not written");
        text += fmt::format("{}{}:{}", text.empty() ? "" : ", ", attrs.start[i], last + 1);
        if (attrs.step[i] > 1) text += fmt::format(":{}", attrs.step[i]);
      }
      return fmt::format("{}[{}]", in[0], text);
    }
    case OpKind::Split: {
      const auto& attrs = std::get<SplitAttrs>(op.attrs);
      std::string sizes = tuple(ints(attrs.sizes));
      return fmt::format("torch.split({}, {}, {})", in[0], sizes, attrs.axis);
    }
    case OpKind::Concat: {
      std::string list;
      for (const std::string& part : in) list += (list.empty() ? "" : ", ") + part;
      return fmt::format("torch.cat(({},), {})", list, std::get<AxisAttrs>(op.attrs).axis);
    }
    case OpKind::Reduce: return reduction(op, std::get<ReduceAttrs>(op.attrs), in[0]);
    case OpKind::CrossEntropy: {
      const auto& attrs = std::get<CrossEntropyAttrs>(op.attrs);
      if (has(2)) fail_op(op, "weights of classes are not written");
      return fmt::format("F.cross_entropy({}.movedim({}, 1), {}, ignore_index={})", in[0],
                         attrs.axis, in[1], attrs.ignore_index);
    }
    case OpKind::MeanSquaredError: return fmt::format("F.mse_loss({}, {})", in[0], in[1]);
    default: fail_op(op, "there is no Python for this kind of op");
  }
}

}  // namespace windlass

// Attributes of ops: one plain struct per kind that has any.
//
// Each struct lists its fields once in `each(visitor)`, called as visitor(name, value); printing,
// hashing and fingerprints all go through it. Spatial lists (strides, kernels, ...) have one entry
// per spatial axis. Axes are counted from the front and never negative.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "windlass/graph/shape.h"

namespace windlass {

using Ints = std::vector<int64_t>;

struct NoAttrs {
  bool operator==(const NoAttrs&) const = default;
  template <class F>
  void each(F&&) const {}
};

// C[..., m, n] = A[..., m, k] B[..., k, n], batch axes broadcast. The flags say that the last two
// axes of an operand are stored the other way round.
struct MatMulAttrs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool operator==(const MatMulAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("transpose_a", transpose_a), f("transpose_b", transpose_b);
  }
};

// y[..., n] = x[..., k] W + bias. W is [n, k] as PyTorch stores it, or [k, n] if `input_major`.
struct LinearAttrs {
  bool input_major = false;
  bool operator==(const LinearAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("input_major", input_major);
  }
};

// Convolution over 1 to 3 spatial axes: x [b, c, ...], W [n, c / groups, kernel...], bias [n].
// Transposed: W is [c, n / groups, kernel...] and the output size is
// (in - 1) * stride - pads + dilation * (kernel - 1) + output_padding + 1.
struct ConvAttrs {
  Ints stride, dilation, pad_begin, pad_end, output_padding;
  int64_t groups = 1;
  bool transposed = false;
  bool operator==(const ConvAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("stride", stride), f("dilation", dilation), f("pad_begin", pad_begin), f("pad_end", pad_end),
        f("output_padding", output_padding), f("groups", groups), f("transposed", transposed);
  }
};

enum class PoolFn : uint8_t { Max, Average };

// Pooling over the spatial axes of x [b, c, ...].
struct PoolAttrs {
  PoolFn fn = PoolFn::Max;
  Ints kernel, stride, dilation, pad_begin, pad_end;
  bool ceil_mode = false;
  bool count_include_pad = false;  // average only
  bool operator==(const PoolAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("fn", fn), f("kernel", kernel), f("stride", stride), f("dilation", dilation),
        f("pad_begin", pad_begin), f("pad_end", pad_end), f("ceil_mode", ceil_mode),
        f("count_include_pad", count_include_pad);
  }
};

// Batch normalisation of x [b, c, ...] over all axes but c. Operands: x, scale, bias, running mean,
// running variance. Training: statistics of the batch, running ones updated in place.
struct BatchNormAttrs {
  double epsilon = 1e-5;
  double momentum = 0.1;  // weight of the new statistics
  bool training = true;
  bool operator==(const BatchNormAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("epsilon", epsilon), f("momentum", momentum), f("training", training);
  }
};

// Layer or RMS normalisation over the axes from `axis` to the last. RMS: scale_offset is added to
// the scale (1 for Gemma).
struct LayerNormAttrs {
  int64_t axis = 0;
  double epsilon = 1e-5;
  double scale_offset = 0;
  bool operator==(const LayerNormAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis), f("epsilon", epsilon), f("scale_offset", scale_offset);
  }
};

// Group normalisation of x [b, c, ...] over each of `groups` equal parts of c; scale and bias are
// [c].
struct GroupNormAttrs {
  int64_t groups = 1;
  double epsilon = 1e-5;
  bool operator==(const GroupNormAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("groups", groups), f("epsilon", epsilon);
  }
};

struct SoftmaxAttrs {
  int64_t axis = 0;
  bool log = false;
  bool operator==(const SoftmaxAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis), f("log", log);
  }
};

// softmax(scale * Q K^T + mask) V over q [b, h, s, d], k [b, g, t, d], v [b, g, t, e], g dividing h
// (query head i uses key head i * g / h), optional additive mask broadcast to [b, h, s, t].
// The scores are never stored: the backward pass computes them again from q, k and the statistics.
struct AttentionAttrs {
  double scale = 1;
  bool causal = false;  // query i sees keys up to i + (t - s)
  int64_t window = 0;   // > 0: and none further back than window - 1
  double dropout = 0;   // of the probabilities; drawn again in the backward pass, not stored
  bool operator==(const AttentionAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("scale", scale), f("causal", causal), f("window", window), f("dropout", dropout);
  }
};

// Rotary position embedding of x [..., s, d]: the first `dims` of d are rotated in pairs by
// position times theta^(-2i/dims). Pairs are (i, i + dims/2), or (2i, 2i + 1) if interleaved.
struct RotaryAttrs {
  double theta = 10000;
  int64_t dims = 0;
  bool interleaved = false;
  bool operator==(const RotaryAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("theta", theta), f("dims", dims), f("interleaved", interleaved);
  }
};

enum class UnaryFn : uint8_t {
  Identity,
  Relu,
  LeakyRelu,  // slope alpha below 0
  Elu,        // alpha (e^x - 1) below 0, beta * x above
  Clip,       // to [alpha, beta]
  Gelu,       // exact, by erf
  GeluTanh,
  Silu,
  Sigmoid,
  HardSigmoid,  // clip(alpha x + beta, 0, 1)
  HardSwish,    // x clip(x / 6 + 1/2, 0, 1)
  Softplus,
  Mish,
  Tanh,
  Erf,
  Exp,
  Log,
  Sqrt,
  Rsqrt,
  Reciprocal,
  Square,
  Abs,
  Neg,
  Sin,
  Cos,
  Affine,  // alpha x + beta
  Power,   // x^alpha
  Sign,
  Floor,
  Ceil,
  Round,
  Not,
  IsNan,
  Tan,
  Asin,
  Acos,
  Atan,
  Sinh,
  Cosh,
  Asinh,
  Acosh,
  Atanh,
};

struct UnaryAttrs {
  UnaryFn fn = UnaryFn::Identity;
  double alpha = 0;
  double beta = 0;
  bool operator==(const UnaryAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("fn", fn), f("alpha", alpha), f("beta", beta);
  }
};

enum class BinaryFn : uint8_t {
  Add,
  Sub,
  Mul,
  Div,  // of integers: truncated
  Mod,
  Pow,
  Max,
  Min,
  Equal,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  And,
  Or,
  Xor,
};

struct BinaryAttrs {
  BinaryFn fn = BinaryFn::Add;
  bool operator==(const BinaryAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("fn", fn);
  }
};

struct DropoutAttrs {
  double ratio = 0.5;
  bool operator==(const DropoutAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("ratio", ratio);
  }
};

enum class RandomFn : uint8_t { Uniform, Normal, Bernoulli };

// Fresh random numbers of a fixed shape: uniform in [alpha, beta), normal (mean alpha, deviation
// beta), or 1 with probability alpha and 0 otherwise.
struct RandomAttrs {
  RandomFn fn = RandomFn::Uniform;
  Shape shape;
  DType dtype = DType::F32;
  double alpha = 0;
  double beta = 1;
  bool operator==(const RandomAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("fn", fn), f("shape", shape), f("dtype", dtype), f("alpha", alpha), f("beta", beta);
  }
};

struct CastAttrs {
  DType to = DType::F32;
  bool operator==(const CastAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("to", to);
  }
};

// One axis: of Gather, GatherElements, Concat, CumSum, ArgMax.
struct AxisAttrs {
  int64_t axis = 0;
  bool operator==(const AxisAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis);
  }
};

// The k largest (or smallest) values along an axis in falling (rising) order, and where they were;
// of equal ones the first comes first.
struct TopKAttrs {
  int64_t axis = 0;
  int64_t k = 1;
  bool largest = true;
  bool operator==(const TopKAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis), f("k", k), f("largest", largest);
  }
};

// Updates written over, or added to, the places along an axis that indices name; of several written
// to one place the last stays.
struct ScatterAttrs {
  int64_t axis = 0;
  bool add = false;
  bool operator==(const ScatterAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis), f("add", add);
  }
};

// Target shape: of Reshape and Expand.
struct ShapeAttrs {
  Shape shape;
  bool operator==(const ShapeAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("shape", shape);
  }
};

// Output axis i is input axis order[i].
struct TransposeAttrs {
  Ints order;
  bool operator==(const TransposeAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("order", order);
  }
};

// Output index j on axis i reads input index start[i] + j * step[i]; `size` is the output shape.
struct SliceAttrs {
  Ints start, step;
  Shape size;
  bool operator==(const SliceAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("start", start), f("step", step), f("size", size);
  }
};

struct SplitAttrs {
  int64_t axis = 0;
  Ints sizes;
  bool operator==(const SplitAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis), f("sizes", sizes);
  }
};

enum class PadMode : uint8_t { Constant, Reflect, Edge };

// Negative amounts crop.
struct PadAttrs {
  Ints begin, end;
  PadMode mode = PadMode::Constant;
  double value = 0;
  bool operator==(const PadAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("begin", begin), f("end", end), f("mode", mode), f("value", value);
  }
};

enum class ReduceFn : uint8_t { Sum, Mean, Max, Min, Prod, L1, L2, SumSquare, LogSumExp };

struct ReduceAttrs {
  ReduceFn fn = ReduceFn::Sum;
  Ints axes;  // ascending
  bool keep_dims = true;
  bool operator==(const ReduceAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("fn", fn), f("axes", axes), f("keep_dims", keep_dims);
  }
};

enum class ResizeMode : uint8_t { Nearest, Linear };
enum class ResizeCoordinates : uint8_t { HalfPixel, AlignCorners, Asymmetric };

// Resampling of the spatial axes of x [b, c, ...] to `size`.
struct ResizeAttrs {
  Ints size;
  ResizeMode mode = ResizeMode::Nearest;
  ResizeCoordinates coordinates = ResizeCoordinates::HalfPixel;
  bool operator==(const ResizeAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("size", size), f("mode", mode), f("coordinates", coordinates);
  }
};

enum class GateOrder : uint8_t { Onnx, Torch };

// One recurrent layer over x [s, b, i]. Operands: x, W [D, G h, i], R [D, G h, h], bias [D, 2 G h]
// (input part, then recurrent part), initial h [D, b, h], and for LSTM initial c [D, b, h]; the
// last three are optional. D = 2 if bidirectional, G = 4 gates for LSTM (i o f c in ONNX order, i f
// c o in PyTorch's) and 3 for GRU (z r n in ONNX order, r z n in PyTorch's). Outputs: y [s, D, b,
// h], last h and, for LSTM, last c.
struct RecurrentAttrs {
  int64_t hidden = 0;
  bool bidirectional = false;
  bool reverse = false;             // one direction, from the last step to the first
  bool linear_before_reset = true;  // GRU: the reset gate multiplies R h + b, as PyTorch does
  GateOrder gates = GateOrder::Torch;
  bool operator==(const RecurrentAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("hidden", hidden), f("bidirectional", bidirectional), f("reverse", reverse),
        f("linear_before_reset", linear_before_reset), f("gates", gates);
  }
};

// y = x / (bias + alpha / size * sum of x^2 over `size` neighbouring channels)^beta.
struct LrnAttrs {
  int64_t size = 5;
  double alpha = 1e-4;
  double beta = 0.75;
  double bias = 1;
  bool operator==(const LrnAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("size", size), f("alpha", alpha), f("beta", beta), f("bias", bias);
  }
};

// Mean over all rows of -log softmax(logits)[label], classes along `axis`. Rows whose label is
// ignore_index do not count.
struct CrossEntropyAttrs {
  int64_t axis = 1;
  int64_t ignore_index = -100;
  bool operator==(const CrossEntropyAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("axis", axis), f("ignore_index", ignore_index);
  }
};

// Top-k routing of tokens to experts from router logits [t, e]. Outputs: weights [t, k] (softmax
// over the chosen experts if `renormalize`, else over all), and the chosen experts [t, k], best
// first.
struct RouteAttrs {
  int64_t top_k = 2;
  bool renormalize = true;
  bool operator==(const RouteAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("top_k", top_k), f("renormalize", renormalize);
  }
};

// Rows of experts in slots. Tokens are read in blocks of `block`, and each expert has `slots` rows
// for every block, so that rows of experts [e, blocks * slots, width] can be cut by blocks and by
// experts. The rows of an expert lie in the order of tokens, at the beginning of its slots; others
// are zero. More rows than slots are an error: with as many slots as a block has tokens, each of
// which chooses an expert at most once, there never are.
struct SlotAttrs {
  int64_t experts = 1;
  int64_t block = 1;
  int64_t slots = 1;
  bool operator==(const SlotAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("experts", experts), f("block", block), f("slots", slots);
  }
};

// What rows in slots are multiplied by; `filled` is the share of slots that hold a row, which
// prices go by.
struct SlotLinearAttrs {
  double filled = 1;
  bool operator==(const SlotLinearAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("filled", filled);
  }
};

enum class OptimizerKind : uint8_t { Sgd, Momentum, Adam, AdamW };

// Update in place. Operands: weight, gradient, fp32 master copy (optional), state tensors.
struct UpdateAttrs {
  OptimizerKind optimizer = OptimizerKind::Adam;
  bool operator==(const UpdateAttrs&) const = default;
  template <class F>
  void each(F&& f) const {
    f("optimizer", optimizer);
  }
};

using AttrsVariant =
    std::variant<NoAttrs, MatMulAttrs, LinearAttrs, ConvAttrs, PoolAttrs, BatchNormAttrs,
                 LayerNormAttrs, GroupNormAttrs, SoftmaxAttrs, AttentionAttrs, RotaryAttrs,
                 UnaryAttrs, BinaryAttrs, DropoutAttrs, RandomAttrs, CastAttrs, AxisAttrs,
                 ShapeAttrs, TransposeAttrs, SliceAttrs, SplitAttrs, PadAttrs, ReduceAttrs,
                 ResizeAttrs, RecurrentAttrs, LrnAttrs, CrossEntropyAttrs, RouteAttrs, UpdateAttrs,
                 TopKAttrs, ScatterAttrs, SlotAttrs, SlotLinearAttrs>;

// Copied and destroyed in one place: every graph holds some, and compilers would otherwise spell
// out 33 alternatives in each file that sees one.
struct Attrs : AttrsVariant {
  using AttrsVariant::AttrsVariant;
  Attrs();
  Attrs(const Attrs&);
  Attrs(Attrs&&) noexcept;
  Attrs& operator=(const Attrs&);
  Attrs& operator=(Attrs&&) noexcept;
  ~Attrs();
  bool operator==(const Attrs& other) const;
};

std::string_view enum_name(PoolFn value);
std::string_view enum_name(UnaryFn value);
std::string_view enum_name(BinaryFn value);
std::string_view enum_name(RandomFn value);
std::string_view enum_name(PadMode value);
std::string_view enum_name(ReduceFn value);
std::string_view enum_name(ResizeMode value);
std::string_view enum_name(ResizeCoordinates value);
std::string_view enum_name(GateOrder value);
std::string_view enum_name(OptimizerKind value);

// "stride=[2, 2] groups=1": fields in the order of declaration.
std::string format_attrs(const Attrs& attrs);

uint64_t hash_attrs(const Attrs& attrs);

}  // namespace windlass

// Cases of convolution, normalisation, attention and elementwise ops.

#include <cmath>

#include <fmt/format.h>

#include "windlass/graph/reference/op_cases.h"

namespace windlass::reference {
namespace {

Ints draw(CaseMaker& make, size_t count, int64_t low, int64_t high) {
  Ints result;
  for (size_t i = 0; i < count; ++i) result.push_back(make.integer(low, high));
  return result;
}

void add_conv_case(CaseMaker& make, size_t rank, bool transposed) {
  ConvAttrs attrs;
  attrs.stride = draw(make, rank, 1, 2);
  attrs.dilation = draw(make, rank, 1, 2);
  attrs.pad_begin = draw(make, rank, 0, 1);
  attrs.pad_end = draw(make, rank, 0, transposed ? 1 : 2);
  attrs.groups = make.integer(1, 2);
  attrs.transposed = transposed;
  if (transposed)
    for (int64_t stride : attrs.stride) attrs.output_padding.push_back(make.integer(0, stride - 1));
  const int64_t in = make.integer(1, 2), out = make.integer(1, 2);  // channels of a group
  Shape x = {2, in * attrs.groups};
  Shape w = transposed ? Shape{in * attrs.groups, out} : Shape{out * attrs.groups, in};
  for (size_t i = 0; i < rank; ++i) {
    w.push_back(make.integer(rank == 3 ? 1 : 2, rank == 3 ? 2 : 3));
    x.push_back(make.integer(0, 1) + (transposed ? 3 : attrs.dilation[i] * (w.back() - 1) + 1));
  }
  make.add(fmt::format("Conv{}d {}", rank, format_attrs(attrs)), OpKind::Conv, attrs,
           {make.uniform(x), make.uniform(w),
            make.rng().chance(0.5) ? make.uniform({out * attrs.groups}) : Operand{}});
}

void add_pool_case(CaseMaker& make, size_t rank, PoolFn fn) {
  PoolAttrs attrs;
  attrs.fn = fn;
  attrs.kernel = draw(make, rank, 1, 3);
  attrs.stride = draw(make, rank, 1, 3);
  attrs.dilation = draw(make, rank, 1, 2);
  attrs.ceil_mode = make.rng().chance(0.5);
  attrs.count_include_pad = make.rng().chance(0.5);
  Shape x = {2, 2};
  for (size_t i = 0; i < rank; ++i) {
    // Every window must reach the input: padding stays below the first step of the kernel.
    const int64_t pad = attrs.kernel[i] > 1 && attrs.dilation[i] == 1 ? 1 : 0;
    attrs.pad_begin.push_back(make.integer(0, pad));
    attrs.pad_end.push_back(make.integer(0, pad));
    x.push_back(attrs.dilation[i] * (attrs.kernel[i] - 1) + 1 + make.integer(0, 3));
  }
  make.add(fmt::format("Pool {}", format_attrs(attrs)), OpKind::Pool, attrs, {make.spread(x)});
}

Operand maybe(CaseMaker& make, const Shape& shape) {
  return make.rng().chance(0.6) ? make.uniform(shape) : Operand{};
}

// Points where the derivative of a function jumps.
std::vector<double> kinks_of(const UnaryAttrs& attrs) {
  switch (attrs.fn) {
    case UnaryFn::Clip: return {attrs.alpha, attrs.beta};
    case UnaryFn::HardSigmoid: return {-attrs.beta / attrs.alpha, (1 - attrs.beta) / attrs.alpha};
    case UnaryFn::HardSwish: return {-3, 3};
    case UnaryFn::Floor:
    case UnaryFn::Ceil: return {-3, -2, -1, 0, 1, 2, 3};
    case UnaryFn::Round: return {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5};
    default: return {0};
  }
}

bool needs_positive(const UnaryAttrs& attrs) {
  return attrs.fn == UnaryFn::Log || attrs.fn == UnaryFn::Sqrt || attrs.fn == UnaryFn::Rsqrt ||
         attrs.fn == UnaryFn::Power;
}

void add_unary_case(CaseMaker& make, const UnaryAttrs& attrs) {
  Operand x =
      needs_positive(attrs) ? make.uniform({3, 5}, 0.3, 2) : make.spread({3, 5}, kinks_of(attrs));
  if (attrs.fn == UnaryFn::Acosh) x = make.uniform({3, 5}, 1.3, 3);
  if (attrs.fn == UnaryFn::Asin || attrs.fn == UnaryFn::Acos || attrs.fn == UnaryFn::Atanh ||
      attrs.fn == UnaryFn::Tan)
    x = make.uniform({3, 5}, -0.8, 0.8);
  if (attrs.fn == UnaryFn::HardSwish)
    for (double& value : x.array.values) value *= 4.2;  // beyond the kinks on both sides
  make.add(fmt::format("Unary {}", format_attrs(attrs)), OpKind::Unary, attrs, {x});
}

// Values in [low, high) that differ from those of `other` wherever the two may meet.
void add_binary_case(CaseMaker& make, BinaryFn fn, const Shape& a, const Shape& b) {
  Operand all = make.spread({element_count(a) + element_count(b)});
  if (fn == BinaryFn::Pow)
    for (double& value : all.array.values) value = 0.5 + std::abs(value) / 4;
  if (fn >= BinaryFn::And)
    for (double& value : all.array.values) value = value > 0 ? 1 : 0;
  const auto split = all.array.values.begin() + element_count(a);
  const DType dtype = fn >= BinaryFn::And ? DType::Bool : DType::F32;
  make.add(fmt::format("Binary {} {} {}", enum_name(fn), format_shape(a), format_shape(b)),
           OpKind::Binary, BinaryAttrs{fn},
           {{dtype, Array(a, {all.array.values.begin(), split})},
            {dtype, Array(b, {split, all.array.values.end()})}});
}

}  // namespace

void add_convolution_cases(CaseMaker& make) {
  for (const size_t rank : {1, 2, 3}) {
    for (const bool transposed : {false, true})
      for (int i = 0; i < 3; ++i) add_conv_case(make, rank, transposed);
    for (const PoolFn fn : {PoolFn::Max, PoolFn::Average})
      for (int i = 0; i < 3; ++i) add_pool_case(make, rank, fn);
  }
  for (const ResizeMode mode : {ResizeMode::Nearest, ResizeMode::Linear}) {
    for (const auto coordinates : {ResizeCoordinates::HalfPixel, ResizeCoordinates::AlignCorners,
                                   ResizeCoordinates::Asymmetric}) {
      for (const size_t rank : {1, 2}) {
        Shape x = {2, 2};
        for (int64_t size : draw(make, rank, 1, 4)) x.push_back(size);
        const ResizeAttrs attrs{draw(make, rank, 1, 5), mode, coordinates};
        make.add(fmt::format("Resize {}", format_attrs(attrs)), OpKind::Resize, attrs,
                 {make.uniform(x)});
      }
    }
  }
}

void add_normalization_cases(CaseMaker& make) {
  for (const bool training : {false, true}) {
    for (const Shape& x : {Shape{4, 3}, Shape{2, 3, 2}, Shape{2, 2, 2, 2}}) {
      const Shape c = {x[1]};
      make.add(fmt::format("BatchNorm training={}", training), OpKind::BatchNorm,
               BatchNormAttrs{1e-3, 0.1, training},
               {make.uniform(x), make.uniform(c), make.uniform(c), make.uniform(c),
                make.uniform(c, 0.5, 2)});
    }
  }
  const Shape x = {2, 3, 4};
  for (const int64_t axis : {0, 1, 2}) {
    for (int i = 0; i < 2; ++i) {
      const Shape normalized(x.begin() + axis, x.end());
      make.add("LayerNorm", OpKind::LayerNorm, LayerNormAttrs{axis, 1e-3},
               {make.uniform(x), maybe(make, normalized), maybe(make, normalized)});
      make.add("RmsNorm", OpKind::RmsNorm, LayerNormAttrs{axis, 1e-3, i == 0 ? 0.0 : 1.0},
               {make.uniform(x), maybe(make, normalized)});
    }
  }
  for (const int64_t groups : {1, 2, 4}) {
    make.add("GroupNorm", OpKind::GroupNorm, GroupNormAttrs{groups, 1e-3},
             {make.uniform({2, 4, 3}), maybe(make, {4}), maybe(make, {4})});
  }
  for (const int64_t size : {1, 2, 3, 4, 5}) {
    make.add("LocalResponseNorm", OpKind::LocalResponseNorm, LrnAttrs{size, 0.5, 0.75, 1.5},
             {make.uniform({2, 5, 2})});
  }
}

void add_attention_cases(CaseMaker& make) {
  for (const int64_t axis : {0, 1, 2}) {
    for (const bool log : {false, true})
      make.add("Softmax", OpKind::Softmax, SoftmaxAttrs{axis, log}, {make.uniform({2, 3, 2})});
  }
  for (const bool causal : {false, true}) {
    for (const int64_t window : {0, 2}) {
      for (const double dropout : {0.0, 0.4}) {
        for (const Shape& mask : {Shape{}, Shape{3, 4}, Shape{2, 1, 1, 4}, Shape{4, 3, 1}}) {
          const int64_t key_heads = int64_t{1} << make.integer(0, 2);
          make.add(
              fmt::format("Attention causal={} window={} dropout={} mask={}", causal, window,
                          dropout, format_shape(mask)),
              OpKind::Attention, AttentionAttrs{0.7, causal, window, dropout},
              {make.uniform({2, 4, 3, 2}), make.uniform({2, key_heads, 4, 2}),
               make.uniform({2, key_heads, 4, 3}), mask.empty() ? Operand{} : make.uniform(mask)});
        }
      }
    }
  }
  for (const bool interleaved : {false, true}) {
    for (const int64_t dims : {2, 4, 6}) {
      make.add("Rotary", OpKind::Rotary, RotaryAttrs{100, dims, interleaved},
               {make.uniform({2, 3, 6})});
    }
  }
}

void add_elementwise_cases(CaseMaker& make) {
  for (int fn = 0; fn <= static_cast<int>(UnaryFn::Atanh); ++fn) {
    UnaryAttrs attrs{static_cast<UnaryFn>(fn), 0.3, 0.6};
    if (attrs.fn == UnaryFn::Clip) attrs = {attrs.fn, -0.4, 0.6};
    add_unary_case(make, attrs);
  }
  add_unary_case(make, {UnaryFn::LeakyRelu, -0.3, 0});
  add_unary_case(make, {UnaryFn::Elu, -0.3, 1});
  add_unary_case(make, {UnaryFn::Elu, 0, 1});
  for (int fn = 0; fn <= static_cast<int>(BinaryFn::Xor); ++fn) {
    add_binary_case(make, static_cast<BinaryFn>(fn), {2, 3}, {2, 3});
    add_binary_case(make, static_cast<BinaryFn>(fn), {2, 1, 3}, {2, 1});
    add_binary_case(make, static_cast<BinaryFn>(fn), {}, {2, 2});
  }
  make.add("Where", OpKind::Where, NoAttrs{},
           {make.booleans({2, 1, 3}), make.uniform({2, 3}), make.uniform({2, 2, 1})});
  make.add("Cast", OpKind::Cast, CastAttrs{DType::F64}, {make.uniform({2, 3})});
  make.add("Cast to int", OpKind::Cast, CastAttrs{DType::I64}, {make.uniform({2, 3}, 0.1, 0.9)});
  make.add("Dropout", OpKind::Dropout, DropoutAttrs{0.4}, {make.uniform({3, 4})});
  for (const RandomFn fn : {RandomFn::Uniform, RandomFn::Normal, RandomFn::Bernoulli})
    make.add("Random", OpKind::Random, RandomAttrs{fn, {3, 2}, DType::F32, 0.4, 2}, {});
  make.add("Accumulate", OpKind::Accumulate, NoAttrs{},
           {make.uniform({2, 3}), make.uniform({2, 3})});
}

}  // namespace windlass::reference

// Cases with less tame shapes than those of op_cases: windows that leave gaps, lie in the padding
// or reach beyond it, axes long enough for four pieces, steps backwards, ignored labels.

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "windlass/graph/reference/op_cases.h"

namespace windlass::reference {
namespace {

Ints draw_ints(CaseMaker& make, size_t count, int64_t low, int64_t high) {
  Ints result;
  for (size_t i = 0; i < count; ++i) result.push_back(make.integer(low, high));
  return result;
}

Operand perhaps(CaseMaker& make, const Shape& shape) {
  return make.rng().chance(0.5) ? make.uniform(shape) : Operand{};
}

void add_hard_conv(CaseMaker& make, size_t rank, bool transposed) {
  ConvAttrs attrs;
  attrs.stride = draw_ints(make, rank, 1, 4);
  attrs.dilation = draw_ints(make, rank, 1, 3);
  attrs.groups = make.integer(1, 3);
  attrs.transposed = transposed;
  const int64_t in = make.integer(1, 3), out = make.integer(1, 3);
  Shape x = {make.integer(1, 3), in * attrs.groups};
  Shape w = transposed ? Shape{in * attrs.groups, out} : Shape{out * attrs.groups, in};
  for (size_t i = 0; i < rank; ++i) {
    w.push_back(make.integer(1, rank == 1 ? 4 : 3));
    const int64_t extent = attrs.dilation[i] * (w.back() - 1) + 1;
    attrs.pad_begin.push_back(make.integer(0, transposed ? extent - 1 : 5));
    attrs.pad_end.push_back(make.integer(0, transposed ? extent - 1 : 5));
    if (transposed) attrs.output_padding.push_back(make.integer(0, attrs.stride[i] - 1));
    const int64_t least =
        transposed ? 2 + (attrs.pad_begin[i] + attrs.pad_end[i]) / attrs.stride[i]
                   : std::max<int64_t>(1, extent - attrs.pad_begin[i] - attrs.pad_end[i]);
    x.push_back(least + make.integer(0, rank == 1 ? 9 : 4));
  }
  make.add(fmt::format("Conv{}d {}", rank, format_attrs(attrs)), OpKind::Conv, attrs,
           {make.uniform(x), make.uniform(w), perhaps(make, {out * attrs.groups})});
}

void add_hard_pool(CaseMaker& make, size_t rank) {
  PoolAttrs attrs;
  attrs.fn = make.rng().chance(0.3) ? PoolFn::Max : PoolFn::Average;
  attrs.kernel = draw_ints(make, rank, 1, 4);
  attrs.stride = draw_ints(make, rank, 1, 4);
  attrs.dilation = draw_ints(make, rank, 1, 2);
  attrs.ceil_mode = make.rng().chance(0.7);
  attrs.count_include_pad = make.rng().chance(0.6);
  Shape x = {make.integer(1, 3), 2};
  for (size_t i = 0; i < rank; ++i) {
    const int64_t extent = attrs.dilation[i] * (attrs.kernel[i] - 1) + 1;
    attrs.pad_begin.push_back(make.integer(0, extent - 1));
    attrs.pad_end.push_back(make.integer(0, extent - 1));
    x.push_back(extent + make.integer(0, rank == 1 ? 9 : 5));
  }
  make.add(fmt::format("Pool {}", format_attrs(attrs)), OpKind::Pool, attrs, {make.spread(x)});
}

void add_hard_slice(CaseMaker& make) {
  SliceAttrs attrs;
  const Shape x = {make.integer(1, 9), make.integer(3, 9), make.integer(1, 4)};
  for (int64_t size : x) {
    const int64_t step = make.integer(1, 3), count = make.integer(1, (size - 1) / step + 1);
    const int64_t first = make.integer(0, size - 1 - (count - 1) * step);
    const bool back = make.rng().chance(0.3);
    attrs.start.push_back(back ? first + (count - 1) * step : first);
    attrs.step.push_back(back ? -step : step);
    attrs.size.push_back(count);
  }
  make.add(fmt::format("Slice {}", format_attrs(attrs)), OpKind::Slice, attrs, {make.uniform(x)});
}

void add_hard_pad(CaseMaker& make) {
  PadAttrs attrs;
  attrs.mode = static_cast<PadMode>(make.integer(0, 2));
  attrs.value = 0.7;
  const Shape x = {make.integer(2, 5), make.integer(4, 7)};
  for (int64_t size : x) {
    const int64_t most = attrs.mode == PadMode::Reflect ? size - 1 : 5;
    attrs.begin.push_back(make.integer(make.rng().chance(0.5) ? -1 : 0, most));
    attrs.end.push_back(make.integer(make.rng().chance(0.5) ? -1 : 0, most));
    if (make.rng().chance(0.3)) attrs.begin.back() = -1, attrs.end.back() = 0;
  }
  make.add(fmt::format("Pad {}", format_attrs(attrs)), OpKind::Pad, attrs, {make.uniform(x)});
}

// The same elements in axes that were joined or cut elsewhere.
void add_hard_reshape(CaseMaker& make) {
  const auto regroup = [&](int64_t count) {
    Shape shape;
    while (count > 1) {
      int64_t factor = make.integer(2, 6);
      while (count % factor != 0) --factor;
      if (factor == 1 || make.rng().chance(0.2)) factor = count;
      shape.push_back(factor);
      count /= factor;
      if (make.rng().chance(0.2)) shape.push_back(1);
    }
    return shape;
  };
  const int64_t count =
      std::array<int64_t, 5>{24, 36, 48, 60, 64}.at(static_cast<size_t>(make.integer(0, 4)));
  const Shape from = regroup(count), to = regroup(count);
  make.add(fmt::format("Reshape {} to {}", format_shape(from), format_shape(to)), OpKind::Reshape,
           ShapeAttrs{to}, {make.uniform(from)});
}

void add_hard_attention(CaseMaker& make) {
  AttentionAttrs attrs{0.6, make.rng().chance(0.6), make.integer(0, 4),
                       make.rng().chance(0.5) ? 0.3 : 0.0};
  const int64_t groups = make.integer(1, 3), shared = make.integer(1, 3),
                batch = make.integer(1, 3);
  const int64_t queries = make.integer(1, 6), keys = make.integer(1, 7);
  Operand mask;
  if (make.rng().chance(0.6)) {
    Shape shape = {batch, groups * shared, queries, keys};
    for (int64_t& size : shape)
      if (make.rng().chance(0.4)) size = 1;
    shape.erase(shape.begin(), shape.begin() + make.integer(0, 2));
    mask = make.uniform(shape);
  }
  make.add(fmt::format("Attention {} mask {}", format_attrs(attrs), format_shape(mask.array.shape)),
           OpKind::Attention, attrs,
           {make.uniform({batch, groups * shared, queries, 2}),
            make.uniform({batch, groups, keys, 2}), make.uniform({batch, groups, keys, 3}), mask});
}

void add_hard_cross_entropy(CaseMaker& make) {
  Shape logits = {make.integer(2, 4), make.integer(2, 5), make.integer(1, 3)};
  const int64_t axis = make.integer(0, 2);
  Shape rows = logits;
  rows.erase(rows.begin() + axis);
  const int64_t classes = logits[static_cast<size_t>(axis)];
  const int64_t ignore = make.rng().chance(0.5) ? -100 : classes - 1;
  Operand labels = make.indices(rows, 0, classes - 1);
  for (double& label : labels.array.values)
    if (make.rng().chance(0.3)) label = static_cast<double>(ignore);
  labels.array.values[0] = 0;  // one that counts
  if (ignore == 0) return;
  make.add("CrossEntropy", OpKind::CrossEntropy, CrossEntropyAttrs{axis, ignore},
           {make.uniform(logits), labels});
}

void add_hard_experts(CaseMaker& make) {
  const int64_t experts = make.integer(3, 6), n = make.integer(2, 4), k = make.integer(2, 4);
  const int64_t tokens = make.integer(2, 6), top_k = make.integer(1, 3);
  // One expert has no row.
  for (const Shape& x : {Shape{tokens, k}, Shape{tokens, top_k, k}})
    make.add("GroupedLinear", OpKind::GroupedLinear, NoAttrs{},
             {make.uniform(x), make.uniform({experts, n, k}),
              make.indices({tokens, top_k}, 1, experts - 1)});
  make.add("Combine", OpKind::Combine, NoAttrs{},
           {make.uniform({tokens, top_k, 4}), make.uniform({tokens, top_k})});
}

void add_hard_norms(CaseMaker& make) {
  const Shape x = {make.integer(2, 4), 6, make.integer(1, 4), make.integer(1, 3)};
  const Shape c = {6};
  for (const bool training : {false, true})
    make.add("BatchNorm", OpKind::BatchNorm, BatchNormAttrs{1e-3, 0.1, training},
             {make.uniform(x), make.uniform(c), make.uniform(c), make.uniform(c),
              make.uniform(c, 0.5, 2)});
  const int64_t groups =
      std::array<int64_t, 4>{1, 2, 3, 6}.at(static_cast<size_t>(make.integer(0, 3)));
  make.add("GroupNorm", OpKind::GroupNorm, GroupNormAttrs{groups, 1e-3},
           {make.uniform(x), perhaps(make, c), perhaps(make, c)});
  const int64_t axis = make.integer(0, 3);
  const Shape normalized(x.begin() + axis, x.end());
  make.add("LayerNorm", OpKind::LayerNorm, LayerNormAttrs{axis, 1e-3},
           {make.uniform(x), perhaps(make, normalized), perhaps(make, normalized)});
  make.add("RmsNorm", OpKind::RmsNorm, LayerNormAttrs{axis, 1e-3, 1},
           {make.uniform(x), perhaps(make, normalized)});
  make.add("LocalResponseNorm", OpKind::LocalResponseNorm,
           LrnAttrs{make.integer(1, 7), 0.5, 0.75, 1.5},
           {make.uniform({2, make.integer(4, 9), 2})});
}

void add_hard_recurrent(CaseMaker& make) {
  for (const OpKind kind : {OpKind::Lstm, OpKind::Gru}) {
    RecurrentAttrs attrs;
    attrs.hidden = 2;
    attrs.bidirectional = true;
    attrs.gates = make.rng().chance(0.5) ? GateOrder::Onnx : GateOrder::Torch;
    attrs.linear_before_reset = make.rng().chance(0.5);
    const int64_t rows = kind == OpKind::Lstm ? 8 : 6, batch = make.integer(2, 5);
    std::vector<Operand> inputs = {make.uniform({make.integer(2, 4), batch, 3}),
                                   make.uniform({2, rows, 3}), make.uniform({2, rows, 2}),
                                   perhaps(make, {2, 2 * rows}), perhaps(make, {2, batch, 2})};
    if (kind == OpKind::Lstm) inputs.push_back(perhaps(make, {2, batch, 2}));
    make.add("bidirectional", kind, attrs, std::move(inputs));
  }
}

void add_hard_lookups(CaseMaker& make) {
  const Shape data = {make.integer(2, 6), make.integer(2, 6), make.integer(2, 6)};
  const int64_t axis = make.integer(0, 2), size = data[static_cast<size_t>(axis)];
  const Shape where(static_cast<size_t>(make.integer(0, 2)), 3);
  make.add("Gather", OpKind::Gather, AxisAttrs{axis},
           {make.uniform(data), make.indices(where, -size, size - 1)});
  Operand whole_numbers = make.indices(data, -9, 9);
  make.add("Gather of integers", OpKind::Gather, AxisAttrs{axis},
           {whole_numbers, make.indices(where, -size, size - 1)});
  make.add("Embedding", OpKind::Embedding, NoAttrs{},
           {make.indices({3, 4}, 0, size - 1), make.uniform({size, 6})});
}

void add_hard_elementwise(CaseMaker& make) {
  make.add("Linear", OpKind::Linear, LinearAttrs{make.rng().chance(0.5)},
           {make.uniform({3, 2, 6}), make.uniform({6, 6}), make.uniform({6})});
  make.add("Binary", OpKind::Binary, BinaryAttrs{BinaryFn::Mul},
           {make.uniform({4, 1, 5}), make.uniform({3, 1})});
  make.add("Binary", OpKind::Binary, BinaryAttrs{BinaryFn::Add},
           {make.uniform({1, 5}), make.uniform({4, 5})});
  make.add("Expand", OpKind::Expand, ShapeAttrs{{3, 4, 5}}, {make.uniform({4, 1})});
  make.add("Dropout", OpKind::Dropout, DropoutAttrs{0.3}, {make.uniform({5, 3, 11})});
  for (const RandomFn fn : {RandomFn::Uniform, RandomFn::Normal, RandomFn::Bernoulli})
    make.add("Random", OpKind::Random, RandomAttrs{fn, {6, 45}, DType::F32, 0.4, 2}, {});
  make.add("Rotary", OpKind::Rotary, RotaryAttrs{100, 4, make.rng().chance(0.5)},
           {make.uniform({2, 3, make.integer(2, 8), 6})});
  make.add("Softmax", OpKind::Softmax, SoftmaxAttrs{make.integer(0, 2), make.rng().chance(0.5)},
           {make.uniform({4, 7, 3})});
  make.add("MeanSquaredError", OpKind::MeanSquaredError, NoAttrs{},
           {make.uniform({5, 4}), make.uniform({5, 4})});
  const int64_t joined = make.integer(0, 1);
  make.add("Concat of equal parts", OpKind::Concat, AxisAttrs{joined},
           {make.uniform({4, 6}), make.uniform({4, 6}), make.uniform({4, 6})});
  make.add("Split into equal parts", OpKind::Split, SplitAttrs{1, {4, 4, 4}},
           {make.uniform({3, 12, 2})});
}

}  // namespace

std::vector<OpCase> hard_op_cases(uint64_t seed) {
  CaseMaker make(seed * 7919 + 1);
  for (const size_t rank : {1, 2}) {
    for (int i = 0; i < 3; ++i) add_hard_conv(make, rank, false);
    for (int i = 0; i < 3; ++i) add_hard_pool(make, rank);
    add_hard_conv(make, rank, true);
  }
  for (int i = 0; i < 3; ++i) {
    add_hard_slice(make);
    add_hard_pad(make);
    add_hard_reshape(make);
    add_hard_attention(make);
    add_hard_cross_entropy(make);
  }
  add_hard_experts(make);
  add_hard_norms(make);
  add_hard_recurrent(make);
  add_hard_lookups(make);
  add_hard_elementwise(make);
  return make.take();
}

std::vector<OpCase> tied_op_cases(uint64_t seed) {
  CaseMaker make(seed * 104729 + 1);
  for (const ReduceFn fn : {ReduceFn::Max, ReduceFn::Min}) {
    Operand x = make.indices({4, 3, 5}, 0, 2);
    x.dtype = DType::F32;
    make.add("Reduce with ties", OpKind::Reduce, ReduceAttrs{fn, {0, 2}, make.rng().chance(0.5)},
             {x});
  }
  make.add("Reduce integers", OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {1}, true},
           {make.indices({3, 5}, -9, 9)});
  Operand a = make.indices({3, 4}, 0, 1), b = make.indices({4}, 0, 1);
  a.dtype = b.dtype = DType::F32;
  make.add("Binary with ties", OpKind::Binary, BinaryAttrs{BinaryFn::Max}, {a, b});
  Operand pooled = make.indices({2, 2, 9}, 0, 2);
  pooled.dtype = DType::F32;
  make.add("Pool with ties", OpKind::Pool,
           PoolAttrs{PoolFn::Max, {3}, {2}, {1}, {1}, {2}, true, false}, {pooled});
  return make.take();
}

}  // namespace windlass::reference

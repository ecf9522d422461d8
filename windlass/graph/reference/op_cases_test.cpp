#include "windlass/graph/reference/op_cases.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace windlass::reference {

Signature OpCase::signature() const {
  const OpInfo& info = op_info(kind);
  Signature result;
  result.kind = kind;
  result.attrs = &attrs;
  for (const Operand& input : inputs) result.inputs.push_back({input.dtype, input.array.shape});
  result.outputs = info.infer(result);
  if (info.auxiliaries != nullptr) result.auxiliaries = info.auxiliaries(result);
  return result;
}

std::vector<const Array*> OpCase::arrays() const {
  std::vector<const Array*> result;
  for (const Operand& input : inputs)
    result.push_back(input.dtype == DType::None ? nullptr : &input.array);
  return result;
}

Operand CaseMaker::uniform(const Shape& shape, double low, double high) {
  Array array(shape);
  for (double& value : array.values) value = rng_.uniform(low, high);
  return {DType::F32, std::move(array)};
}

Operand CaseMaker::spread(const Shape& shape, const std::vector<double>& kinks) {
  Array array(shape);
  const auto count = static_cast<int64_t>(array.values.size());
  std::vector<double> pool;
  for (int64_t i = 0; static_cast<int64_t>(pool.size()) < count; ++i) {
    const int64_t place = (i / 2 + 1) * (i % 2 == 0 ? 1 : -1);
    const double candidate = 0.11 * static_cast<double>(place) + rng_.uniform(-0.02, 0.02);
    const bool clear = std::all_of(kinks.begin(), kinks.end(), [&](double kink) {
      return candidate < kink - 0.02 || candidate > kink + 0.02;
    });
    if (clear) pool.push_back(candidate);
  }
  for (size_t i = pool.size(); i > 1; --i)
    std::swap(pool[i - 1], pool[static_cast<size_t>(integer(0, static_cast<int64_t>(i) - 1))]);
  array.values = std::move(pool);
  return {DType::F32, std::move(array)};
}

Operand CaseMaker::indices(const Shape& shape, int64_t low, int64_t high) {
  Array array(shape);
  for (double& value : array.values) value = static_cast<double>(integer(low, high));
  return {DType::I64, std::move(array)};
}

Operand CaseMaker::booleans(const Shape& shape) {
  Operand result = indices(shape, 0, 1);
  result.dtype = DType::Bool;
  return result;
}

void CaseMaker::add(std::string name, OpKind kind, Attrs attrs, std::vector<Operand> inputs) {
  const RandomState random = {rng_.bits(), rng_.bits()};
  cases_.push_back({std::move(name), kind, std::move(attrs), std::move(inputs), random});
}

void add_contraction_cases(CaseMaker& make) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      const int64_t m = make.integer(1, 3), n = make.integer(1, 3), k = make.integer(2, 4);
      Shape a = transpose_a ? Shape{k, m} : Shape{m, k};
      Shape b = transpose_b ? Shape{n, k} : Shape{k, n};
      const MatMulAttrs attrs{transpose_a, transpose_b};
      make.add("MatMul", OpKind::MatMul, attrs, {make.uniform(a), make.uniform(b)});
      a.insert(a.begin(), {2, 1});
      b.insert(b.begin(), {3});
      make.add("MatMul broadcast", OpKind::MatMul, attrs, {make.uniform(a), make.uniform(b)});
    }
  }
  for (const bool input_major : {false, true}) {
    for (const bool bias : {false, true}) {
      const int64_t n = make.integer(2, 4), k = make.integer(2, 4);
      Shape x(static_cast<size_t>(make.integer(0, 2)), 2);
      x.push_back(k);
      make.add("Linear", OpKind::Linear, LinearAttrs{input_major},
               {make.uniform(x), make.uniform(input_major ? Shape{k, n} : Shape{n, k}),
                bias ? make.uniform({n}) : Operand{}});
    }
  }
  const int64_t experts = make.integer(2, 4), n = make.integer(2, 3), k = make.integer(2, 3);
  const int64_t tokens = make.integer(2, 4), top_k = make.integer(1, 2);
  for (const Shape& x : {Shape{tokens, k}, Shape{tokens, top_k, k}})
    make.add("GroupedLinear", OpKind::GroupedLinear, NoAttrs{},
             {make.uniform(x), make.uniform({experts, n, k}),
              make.indices({tokens, top_k}, 0, experts - 1)});
}

void add_layout_cases(CaseMaker& make) {
  make.add("Reshape", OpKind::Reshape, ShapeAttrs{{6, 1, 4}}, {make.uniform({2, 3, 4})});
  make.add("Reshape regroup", OpKind::Reshape, ShapeAttrs{{6, 4}}, {make.uniform({4, 6})});
  make.add("Reshape flat", OpKind::Reshape, ShapeAttrs{{24}}, {make.uniform({2, 1, 4, 3})});
  make.add("Reshape heads", OpKind::Reshape, ShapeAttrs{{2, 3, 2, 4}}, {make.uniform({2, 3, 8})});
  make.add("Transpose", OpKind::Transpose, TransposeAttrs{{2, 0, 1}}, {make.uniform({2, 3, 4})});
  make.add("Slice", OpKind::Slice, SliceAttrs{{1, 0}, {2, 1}, {2, 3}}, {make.uniform({5, 4})});
  make.add("Slice back", OpKind::Slice, SliceAttrs{{4, 1}, {-2, 1}, {3, 2}},
           {make.uniform({5, 4})});
  for (const int64_t axis : {0, 1}) {
    Shape a = {2, 3}, b = {2, 3}, c = {2, 3};
    b[static_cast<size_t>(axis)] = 1;
    c[static_cast<size_t>(axis)] = 4;
    make.add("Concat", OpKind::Concat, AxisAttrs{axis},
             {make.uniform(a), make.uniform(b), make.uniform(c)});
    Shape whole = {3, 2};
    whole[static_cast<size_t>(axis)] = 6;
    make.add("Split", OpKind::Split, SplitAttrs{axis, {1, 3, 2}}, {make.uniform(whole)});
  }
  make.add("Pad", OpKind::Pad, PadAttrs{{1, 0}, {2, 1}, PadMode::Constant, 0.5},
           {make.uniform({3, 4})});
  make.add("Pad crop", OpKind::Pad, PadAttrs{{-1, 2}, {1, -1}}, {make.uniform({3, 4})});
  make.add("Pad reflect", OpKind::Pad, PadAttrs{{2, 0}, {1, 2}, PadMode::Reflect},
           {make.uniform({3, 4})});
  make.add("Pad edge", OpKind::Pad, PadAttrs{{2, -1}, {0, 3}, PadMode::Edge},
           {make.uniform({3, 4})});
  make.add("Expand", OpKind::Expand, ShapeAttrs{{2, 3, 4}}, {make.uniform({3, 1})});
  make.add("Embedding", OpKind::Embedding, NoAttrs{},
           {make.indices({2, 3}, 0, 4), make.uniform({5, 2})});
  make.add("Gather", OpKind::Gather, AxisAttrs{1},
           {make.uniform({2, 4, 3}), make.indices({3, 2}, -4, 3)});
  for (const int64_t axis : {0, 1}) {
    Shape where = {3, 4};
    where[static_cast<size_t>(axis)] = 2;
    make.add("GatherElements", OpKind::GatherElements, AxisAttrs{axis},
             {make.uniform({3, 4}), make.indices(where, -3, 2)});
    for (const bool add : {false, true})
      make.add("ScatterElements", OpKind::ScatterElements, ScatterAttrs{axis, add},
               {make.uniform({3, 4}), make.indices(where, -3, 2), make.uniform(where)});
  }
  make.add("Gather one", OpKind::Gather, AxisAttrs{0},
           {make.uniform({4, 3}), make.indices({}, -4, 3)});
}

void add_reduction_cases(CaseMaker& make) {
  for (int fn = 0; fn <= static_cast<int>(ReduceFn::LogSumExp); ++fn) {
    for (const bool keep_dims : {false, true}) {
      for (const Ints& axes : {Ints{1}, Ints{0, 2}, Ints{0, 1, 2}}) {
        const ReduceAttrs attrs{static_cast<ReduceFn>(fn), axes, keep_dims};
        make.add("Reduce " + std::string(enum_name(attrs.fn)), OpKind::Reduce, attrs,
                 {make.spread({2, 3, 2})});
      }
    }
  }
  for (const int64_t axis : {0, 1}) {
    make.add("CumSum", OpKind::CumSum, AxisAttrs{axis}, {make.uniform({3, 4})});
    make.add("ArgMax", OpKind::ArgMax, AxisAttrs{axis}, {make.spread({3, 4})});
    for (const bool largest : {false, true})
      make.add("TopK", OpKind::TopK, TopKAttrs{axis, 2, largest}, {make.spread({3, 4})});
  }
}

void add_recurrent_cases(CaseMaker& make) {
  for (const OpKind kind : {OpKind::Lstm, OpKind::Gru}) {
    for (int variant = 0; variant < 16; ++variant) {
      RecurrentAttrs attrs;
      attrs.hidden = 2;
      attrs.bidirectional = (variant & 1) != 0;
      attrs.reverse = !attrs.bidirectional && (variant & 2) != 0;
      attrs.gates = (variant & 4) != 0 ? GateOrder::Onnx : GateOrder::Torch;
      attrs.linear_before_reset = (variant & 8) != 0;
      const int64_t directions = attrs.bidirectional ? 2 : 1;
      const int64_t rows = kind == OpKind::Lstm ? 8 : 6;
      const int64_t steps = make.integer(1, 3), batch = make.integer(1, 3);
      std::vector<Operand> inputs = {make.uniform({steps, batch, 3}),
                                     make.uniform({directions, rows, 3}),
                                     make.uniform({directions, rows, 2})};
      const auto optional = [&](const Shape& shape) {
        inputs.push_back(make.rng().chance(0.6) ? make.uniform(shape) : Operand{});
      };
      optional({directions, 2 * rows});
      optional({directions, batch, 2});
      if (kind == OpKind::Lstm) optional({directions, batch, 2});
      make.add(kind == OpKind::Lstm ? "Lstm" : "Gru", kind, attrs, std::move(inputs));
    }
  }
}

void add_routing_cases(CaseMaker& make) {
  for (const bool renormalize : {false, true}) {
    for (const int64_t top_k : {1, 2})
      make.add("Route", OpKind::Route, RouteAttrs{top_k, renormalize}, {make.spread({3, 4})});
  }
  const int64_t tokens = make.integer(2, 4), top_k = make.integer(1, 2);
  make.add("Combine", OpKind::Combine, NoAttrs{},
           {make.uniform({tokens, top_k, 3}), make.uniform({tokens, top_k})});
  // Three blocks of two tokens, with room for every choice, and counts of what is used.
  const SlotAttrs slots{4, 2, 4};
  make.add("Dispatch", OpKind::Dispatch, slots, {make.uniform({6, 3}), make.indices({6, 2}, 0, 3)});
  make.add("Collect", OpKind::Collect, slots,
           {make.uniform({4, 12, 3}), make.indices({6, 2}, 0, 3), make.uniform({6, 2})});
  make.add("SlotLinear", OpKind::SlotLinear, SlotLinearAttrs{0.5},
           {make.uniform({4, 12, 3}), make.uniform({4, 2, 3}), make.indices({4, 3}, 0, 4)});
}

void add_loss_cases(CaseMaker& make) {
  make.add("CrossEntropy", OpKind::CrossEntropy, CrossEntropyAttrs{1},
           {make.uniform({4, 3}), make.indices({4}, 0, 2)});
  make.add("CrossEntropy last", OpKind::CrossEntropy, CrossEntropyAttrs{2},
           {make.uniform({2, 3, 4}), make.indices({2, 3}, 0, 3)});
  Operand labels = make.indices({2, 3, 2}, 0, 3);
  labels.array.values[0] = labels.array.values[5] = -100;
  make.add("CrossEntropy images, some ignored", OpKind::CrossEntropy, CrossEntropyAttrs{1, -100},
           {make.uniform({2, 4, 3, 2}), labels});
  make.add("MeanSquaredError", OpKind::MeanSquaredError, NoAttrs{},
           {make.uniform({3, 2}), make.uniform({3, 2})});
}

std::vector<OpCase> op_cases(uint64_t seed) {
  CaseMaker make(seed);
  add_contraction_cases(make);
  add_convolution_cases(make);
  add_normalization_cases(make);
  add_attention_cases(make);
  add_elementwise_cases(make);
  add_layout_cases(make);
  add_reduction_cases(make);
  add_recurrent_cases(make);
  add_routing_cases(make);
  add_loss_cases(make);
  return make.take();
}

}  // namespace windlass::reference

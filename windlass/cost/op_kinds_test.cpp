// What holds for the work and the price of every kind of op, forward and backward.

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "windlass/cost/cost_model.h"
#include "windlass/graph/builder.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

const TensorType kNone = {};
TensorType f32(Shape shape) { return {DType::F32, std::move(shape)}; }
TensorType i64(Shape shape) { return {DType::I64, std::move(shape)}; }

struct Case {
  OpKind kind;
  Attrs attrs;
  std::vector<TensorType> inputs;
  bool differentiable = true;
};

ConvAttrs conv(int64_t stride, int64_t groups, bool transposed) {
  return {{stride, stride}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, groups, transposed};
}

RecurrentAttrs recurrent() {
  RecurrentAttrs attrs;
  attrs.hidden = 4;
  attrs.bidirectional = true;
  return attrs;
}

AttentionAttrs window() {
  AttentionAttrs attrs;
  attrs.causal = true;
  attrs.window = 4;
  return attrs;
}

std::vector<Case> cases() {
  const TensorType image = f32({2, 4, 8, 8}), rows = f32({4, 6}), channel = f32({4});
  const PoolAttrs pool = {PoolFn::Max, {2, 2}, {2, 2}, {1, 1}, {0, 0}, {0, 0}, false, false};
  const RecurrentAttrs cell = recurrent();
  return {
      {OpKind::MatMul, MatMulAttrs{true, false}, {f32({2, 6, 4}), f32({6, 8})}},
      {OpKind::Linear, LinearAttrs{true}, {f32({2, 4, 6}), f32({6, 8}), f32({8})}},
      {OpKind::Linear, LinearAttrs{}, {f32({4, 6}), f32({8, 6}), kNone}},
      {OpKind::GroupedLinear, NoAttrs{}, {f32({8, 6}), f32({4, 2, 6}), i64({8, 2})}},
      {OpKind::GroupedLinear, NoAttrs{}, {f32({8, 2, 6}), f32({4, 2, 6}), i64({8, 2})}},
      {OpKind::Conv, conv(2, 1, false), {image, f32({6, 4, 3, 3}), f32({6})}},
      {OpKind::Conv, conv(1, 4, false), {image, f32({4, 1, 3, 3}), kNone}},
      {OpKind::Conv, conv(2, 2, true), {image, f32({4, 2, 3, 3}), kNone}},
      {OpKind::Pool, pool, {image}},
      {OpKind::Resize, ResizeAttrs{{16, 16}, ResizeMode::Linear, {}}, {image}},
      {OpKind::BatchNorm, BatchNormAttrs{}, {image, channel, channel, channel, channel}},
      {OpKind::LayerNorm, LayerNormAttrs{1, 1e-5, 0}, {rows, f32({6}), f32({6})}},
      {OpKind::RmsNorm, LayerNormAttrs{1, 1e-5, 0}, {rows, f32({6})}},
      {OpKind::GroupNorm, GroupNormAttrs{2, 1e-5}, {image, channel, channel}},
      {OpKind::LocalResponseNorm, LrnAttrs{}, {image}},
      {OpKind::Softmax, SoftmaxAttrs{1, false}, {rows}},
      {OpKind::Attention,
       AttentionAttrs{},
       {f32({2, 4, 8, 4}), f32({2, 2, 8, 4}), f32({2, 2, 8, 4})}},
      {OpKind::Attention, window(), {f32({2, 4, 8, 4}), f32({2, 2, 8, 4}), f32({2, 2, 8, 4})}},
      {OpKind::Rotary, RotaryAttrs{10000, 4, false}, {f32({2, 8, 4})}},
      {OpKind::Unary, UnaryAttrs{UnaryFn::Gelu, 0, 0}, {rows}},
      {OpKind::Unary, UnaryAttrs{}, {rows}},
      {OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {rows, f32({6})}},
      {OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {rows, rows}},
      {OpKind::Where, NoAttrs{}, {{DType::Bool, {4, 6}}, rows, rows}},
      {OpKind::Cast, CastAttrs{DType::F16}, {rows}},
      {OpKind::Dropout, DropoutAttrs{}, {rows}},
      {OpKind::Random, RandomAttrs{RandomFn::Normal, {4, 6}, DType::F32, 0, 1}, {}, false},
      {OpKind::Embedding, NoAttrs{}, {i64({2, 4}), f32({16, 6})}},
      {OpKind::Gather, AxisAttrs{0}, {rows, i64({2})}},
      {OpKind::Reshape, ShapeAttrs{{24}}, {rows}},
      {OpKind::Transpose, TransposeAttrs{{1, 0}}, {rows}},
      {OpKind::Slice, SliceAttrs{{0, 2}, {1, 1}, {4, 2}}, {rows}},
      {OpKind::Concat, AxisAttrs{1}, {rows, rows}},
      {OpKind::Split, SplitAttrs{1, {2, 4}}, {rows}},
      {OpKind::Split, SplitAttrs{1, {2, 2, 2}}, {rows}},
      {OpKind::Pad, PadAttrs{{0, 1}, {0, 1}, PadMode::Constant, 0}, {rows}},
      {OpKind::Expand, ShapeAttrs{{4, 6}}, {f32({1, 6})}},
      {OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {1}, true}, {rows}},
      {OpKind::CumSum, AxisAttrs{1}, {rows}},
      {OpKind::ArgMax, AxisAttrs{1}, {rows}, false},
      {OpKind::TopK, TopKAttrs{1, 2, true}, {rows}},
      {OpKind::GatherElements, AxisAttrs{1}, {rows, i64({4, 2})}},
      {OpKind::ScatterElements, ScatterAttrs{1, false}, {rows, i64({4, 2}), f32({4, 2})}},
      {OpKind::Lstm, cell, {f32({6, 4, 2}), f32({2, 16, 2}), f32({2, 16, 4}), f32({2, 32})}},
      {OpKind::Gru, cell, {f32({6, 4, 2}), f32({2, 12, 2}), f32({2, 12, 4}), f32({2, 24})}},
      {OpKind::Route, RouteAttrs{}, {f32({8, 4})}},
      {OpKind::Combine, NoAttrs{}, {f32({4, 2, 6}), f32({4, 2})}},
      {OpKind::Dispatch, SlotAttrs{4, 2, 2}, {f32({8, 6}), i64({8, 2})}},
      {OpKind::Collect, SlotAttrs{4, 2, 2}, {f32({4, 8, 6}), i64({8, 2}), f32({8, 2})}},
      {OpKind::SlotLinear, SlotLinearAttrs{0.5}, {f32({4, 8, 6}), f32({4, 2, 6}), i64({4, 4})}},
      {OpKind::CrossEntropy, CrossEntropyAttrs{1, -100}, {rows, i64({4})}},
      {OpKind::MeanSquaredError, NoAttrs{}, {rows, rows}},
  };
}

// A training graph around the op, or the op alone.
Graph graph_of(const Case& test) {
  GraphBuilder builder("case");
  std::vector<TensorId> inputs;
  for (const TensorType& type : test.inputs) {
    const std::string name = "x" + std::to_string(inputs.size());
    inputs.push_back(!type.present()        ? TensorId()
                     : is_float(type.dtype) ? builder.weight(name, type)
                                            : builder.input(name, type));
  }
  const TensorId out = builder.op(test.kind, test.attrs, inputs, "op");
  builder.set_output(out);
  const bool loss = op_info(test.kind).family == OpFamily::Loss;
  if (loss) builder.set_loss(out);
  if (!loss && test.differentiable) {
    // Twice, so that gradients are summed.
    const TensorId sum =
        builder.op(OpKind::Binary, BinaryAttrs{BinaryFn::Mul}, {out, out}, "square");
    builder.attach_mean_squared_error(sum);
  }
  Graph graph = builder.finish();
  return test.differentiable ? differentiate(graph).graph : graph;
}

struct Totals {
  double multiply_adds = 0, pointwise = 0;
  int64_t bytes = 0;
};

Totals totals(const Work& work) {
  Totals sum;
  for (const Kernel& kernel : work.kernels) {
    sum.multiply_adds += kernel.multiply_adds;
    sum.pointwise += kernel.pointwise;
    sum.bytes += kernel.read.value + kernel.written.value;
  }
  return sum;
}

LocalSizes whole(const LoopNest& nest) {
  LocalSizes local;
  for (const LoopDim& loop : nest.loops) local.push_back(loop.size);
  return local;
}

template <typename F>
void for_each_op(F&& check) {
  for (const Case& test : cases()) {
    const Graph graph = graph_of(test);
    for (const Op& op : graph.ops) {
      SCOPED_TRACE(std::string(op_info(op.kind).name) +
                   (op.pass == Pass::Backward ? " backward" : ""));
      check(graph, op, loops_of(graph, op));
    }
  }
}

TEST(OpKinds, AllAreCovered) {
  std::set<OpKind> seen;
  for_each_op([&](const Graph&, const Op& op, const LoopNest&) { seen.insert(op.kind); });
  EXPECT_EQ(seen.size(), kOpKindCount);
}

TEST(OpKinds, ArithmeticIsThatOfTheOpTable) {
  for_each_op([](const Graph& graph, const Op& op, const LoopNest& nest) {
    const Totals sum = totals(work_of(graph, op, nest, whole(nest)));
    const Arithmetic expected = arithmetic_of(graph, op);
    // Fused attention leaves out pairs that cannot be seen.
    if (op.kind == OpKind::Attention)
      EXPECT_LE(sum.multiply_adds, expected.multiply_adds);
    else
      EXPECT_DOUBLE_EQ(sum.multiply_adds, expected.multiply_adds);
    EXPECT_LE(sum.pointwise, expected.pointwise * (1 + 1e-12));
  });
}

TEST(OpKinds, PiecesAddUpToNoLessThanTheWhole) {
  for_each_op([](const Graph& graph, const Op& op, const LoopNest& nest) {
    const Totals all = totals(work_of(graph, op, nest, whole(nest)));
    for (size_t i = 0; i < nest.loops.size(); ++i) {
      if (nest.loops[i].role == LoopRole::Whole || nest.loops[i].size % 2 != 0) continue;
      LocalSizes local = whole(nest);
      local[i] /= 2;
      const Work half = work_of(graph, op, nest, local);
      EXPECT_NEAR(2 * totals(half).multiply_adds, all.multiply_adds, 1e-9 * all.multiply_adds);
      EXPECT_GE(2 * totals(half).bytes, all.bytes) << nest.loops[i].name;
      EXPECT_LE(totals(half).bytes, all.bytes) << nest.loops[i].name;
    }
  });
}

TEST(OpKinds, AllArePricedOnEveryDevice) {
  std::vector<DeviceType> devices;
  for (const MachinePreset& preset : machine_presets())
    for (const DeviceType& type : load_machine(std::string(preset.name)).device_types)
      devices.push_back(type);
  const auto model = analytic_cost_model();
  for_each_op([&](const Graph& graph, const Op& op, const LoopNest& nest) {
    const Work work = work_of(graph, op, nest, whole(nest));
    for (const DeviceType& device : devices) {
      const Price price = model->price(work, device);
      EXPECT_TRUE(std::isfinite(price.time.value));
      EXPECT_EQ(price.time.value > 0, !work.kernels.empty());
      EXPECT_LT(price.time.value, 1e-3);
      EXPECT_GE(price.workspace.value, 0);
    }
  });
}

}  // namespace
}  // namespace windlass

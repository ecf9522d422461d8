#include "windlass/cost/work.h"

#include <gtest/gtest.h>

#include "windlass/graph/builder.h"
#include "windlass/graph/differentiate.h"

namespace windlass {
namespace {

// A network of one op on trainable operands, with its backward op.
struct OneOp {
  TrainingGraph training;
  LoopNest nest;

  const Op& op(Pass pass) const {
    for (const Op& candidate : training.graph.ops)
      if (candidate.pass == pass && candidate.kind == training.graph.ops[0].kind) return candidate;
    throw std::logic_error("no such op");
  }
  LocalSizes whole() const {
    LocalSizes local;
    for (const LoopDim& loop : nest.loops) local.push_back(loop.size);
    return local;
  }
  // Work with some loops cut down to the sizes given by name.
  Work work(Pass pass, const std::vector<std::pair<std::string, int64_t>>& cut = {}) const {
    LocalSizes local = whole();
    for (const auto& [name, size] : cut)
      for (size_t i = 0; i < nest.loops.size(); ++i)
        if (nest.loops[i].name == name) local[i] = size;
    return work_of(training.graph, op(pass), nest, local);
  }
};

OneOp one_op(OpKind kind, Attrs attrs, const std::vector<TensorType>& inputs) {
  GraphBuilder builder("one");
  std::vector<TensorId> ids;
  for (const TensorType& type : inputs) {
    const std::string name = "x" + std::to_string(ids.size());
    ids.push_back(!type.present()        ? TensorId()
                  : is_float(type.dtype) ? builder.weight(name, type)
                                         : builder.input(name, type));
  }
  const TensorId out = builder.op(kind, std::move(attrs), ids, "op");
  builder.set_output(out);
  builder.attach_mean_squared_error(out);
  OneOp result;
  result.training = differentiate(builder.finish());
  result.nest = loops_of(result.training.graph, result.training.graph.ops[0]);
  return result;
}

TensorType floats(Shape shape) { return {DType::F32, std::move(shape)}; }
TensorType halves(Shape shape) { return {DType::F16, std::move(shape)}; }

void expect_product(const Kernel& kernel, int64_t batch, int64_t m, int64_t n, int64_t k) {
  EXPECT_EQ(kernel.batch, batch);
  EXPECT_EQ(kernel.m, m);
  EXPECT_EQ(kernel.n, n);
  EXPECT_EQ(kernel.k, k);
  EXPECT_DOUBLE_EQ(kernel.multiply_adds, static_cast<double>(batch * m * n * k));
}

TEST(Work, LinearForward) {
  const OneOp linear =
      one_op(OpKind::Linear, LinearAttrs{}, {floats({2, 4, 8}), floats({16, 8}), floats({16})});
  const Work work = linear.work(Pass::Forward);
  ASSERT_EQ(work.kernels.size(), 1u);
  expect_product(work.kernels[0], 1, 8, 16, 8);
  EXPECT_EQ(work.kernels[0].read.value, 4 * (64 + 128 + 16));
  EXPECT_EQ(work.kernels[0].written.value, 4 * 128);
  EXPECT_DOUBLE_EQ(work.kernels[0].pointwise, 128);

  // Columns split in two: the whole input, half of weight, bias and output.
  const Work columns = linear.work(Pass::Forward, {{"n", 8}});
  expect_product(columns.kernels[0], 1, 8, 8, 8);
  EXPECT_EQ(columns.kernels[0].read.value, 4 * (64 + 64 + 8));
  EXPECT_EQ(columns.kernels[0].written.value, 4 * 64);

  // The inner size split in two: a partial sum of the whole output.
  const Work inner = linear.work(Pass::Forward, {{"k", 4}});
  expect_product(inner.kernels[0], 1, 8, 16, 4);
  EXPECT_EQ(inner.kernels[0].written.value, 4 * 128);
}

TEST(Work, LinearBackwardHasOneKernelPerGradient) {
  const OneOp linear =
      one_op(OpKind::Linear, LinearAttrs{}, {halves({4, 8}), halves({16, 8}), halves({16})});
  const Work work = linear.work(Pass::Backward);
  ASSERT_EQ(work.kernels.size(), 3u);
  expect_product(work.kernels[0], 1, 4, 8, 16);  // dx = dy W
  EXPECT_EQ(work.kernels[0].read.value, 2 * (64 + 128));
  EXPECT_EQ(work.kernels[0].written.value, 2 * 32);
  EXPECT_EQ(work.kernels[0].precision, Precision::Fp16);
  expect_product(work.kernels[1], 1, 8, 16, 4);  // dW = x' dy
  EXPECT_EQ(work.kernels[1].read.value, 2 * (32 + 64));
  EXPECT_EQ(work.kernels[1].written.value, 2 * 128);
  EXPECT_DOUBLE_EQ(work.kernels[2].multiply_adds, 0);
  EXPECT_EQ(work.kernels[2].read.value, 2 * 64);
  EXPECT_EQ(work.kernels[2].written.value, 2 * 16);
}

TEST(Work, MatMulBatchesAndBroadcasts) {
  const OneOp same =
      one_op(OpKind::MatMul, MatMulAttrs{}, {floats({2, 3, 4, 5}), floats({2, 3, 5, 7})});
  expect_product(same.work(Pass::Forward).kernels[0], 6, 4, 7, 5);
  // b0 is only in the first operand: more rows, not more products.
  const OneOp wide =
      one_op(OpKind::MatMul, MatMulAttrs{}, {floats({2, 3, 4, 5}), floats({3, 5, 7})});
  expect_product(wide.work(Pass::Forward).kernels[0], 3, 8, 7, 5);
}

TEST(Work, SlotLinear) {
  // Four experts with 4 slots for each of 2 blocks, half of which are used.
  const OneOp slots = one_op(OpKind::SlotLinear, SlotLinearAttrs{0.5},
                             {floats({4, 8, 6}), floats({4, 16, 6}), {DType::I64, {4, 2}}});
  const Kernel whole = slots.work(Pass::Forward).kernels[0];
  expect_product(whole, 4, 4, 16, 6);
  EXPECT_EQ(whole.read.value, 4 * (4 * 4 * 6 + 4 * 16 * 6) + 8 * 8);
  EXPECT_EQ(whole.written.value, 4 * 4 * 8 * 16);
  expect_product(slots.work(Pass::Forward, {{"expert", 1}}).kernels[0], 1, 4, 16, 6);
  expect_product(slots.work(Pass::Forward, {{"block", 1}}).kernels[0], 4, 2, 16, 6);
}

TEST(Work, GroupedLinear) {
  const OneOp grouped = one_op(OpKind::GroupedLinear, NoAttrs{},
                               {floats({16, 8}), floats({4, 16, 8}), {DType::I64, {16, 2}}});
  // Two rows for each of 16 tokens, 8 rows an expert.
  expect_product(grouped.work(Pass::Forward).kernels[0], 4, 8, 16, 8);
  // Half of the experts: half of the rows are read, zeros are written for the others.
  const Kernel half = grouped.work(Pass::Forward, {{"expert", 2}}).kernels[0];
  expect_product(half, 2, 8, 16, 8);
  EXPECT_EQ(half.read.value, 4 * (16 * 8 + 2 * 16 * 8) + 8 * 32);
  EXPECT_EQ(half.written.value, 4 * 32 * 16);
  EXPECT_EQ(grouped.work(Pass::Backward).kernels.size(), 2u);
}

ConvAttrs conv3x3(int64_t groups, bool transposed = false) {
  return {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {0, 0}, groups, transposed};
}

TEST(Work, Convolution) {
  const OneOp conv =
      one_op(OpKind::Conv, conv3x3(1), {floats({2, 3, 8, 8}), floats({5, 3, 3, 3}), floats({5})});
  expect_product(conv.work(Pass::Forward).kernels[0], 1, 128, 5, 27);
  const Work backward = conv.work(Pass::Backward);
  ASSERT_EQ(backward.kernels.size(), 3u);
  expect_product(backward.kernels[0], 1, 128, 3, 45);
  expect_product(backward.kernels[1], 1, 5, 27, 128);
  // Two of eight rows need one more row of the input on both sides: 4 x 8 of 3 channels.
  const Kernel rows = conv.work(Pass::Forward, {{"y", 2}}).kernels[0];
  expect_product(rows, 1, 32, 5, 27);
  EXPECT_EQ(rows.read.value, 4 * (2 * 3 * 4 * 8 + 5 * 27 + 5));
  EXPECT_EQ(rows.written.value, 4 * 2 * 5 * 2 * 8);
}

TEST(Work, DenseWindowsOfThreeSuitWinograd) {
  const auto first = [](const ConvAttrs& attrs, const Shape& w) {
    return one_op(OpKind::Conv, attrs, {floats({2, 32, 8, 8}), floats(w)})
        .work(Pass::Forward)
        .kernels[0];
  };
  EXPECT_TRUE(first(conv3x3(1), {64, 32, 3, 3}).winograd);
  EXPECT_FALSE(first(conv3x3(1), {64, 32, 1, 1}).winograd);
  EXPECT_FALSE(first(conv3x3(32), {32, 1, 3, 3}).winograd);
  EXPECT_FALSE(first(conv3x3(1), {8, 32, 3, 3}).winograd);
  ConvAttrs strided = conv3x3(1);
  strided.stride = {2, 2};
  EXPECT_FALSE(first(strided, {64, 32, 3, 3}).winograd);
}

TEST(Work, GroupedAndTransposedConvolution) {
  const OneOp grouped =
      one_op(OpKind::Conv, conv3x3(2), {floats({2, 4, 8, 8}), floats({6, 2, 3, 3})});
  expect_product(grouped.work(Pass::Forward).kernels[0], 2, 128, 3, 18);
  expect_product(grouped.work(Pass::Forward, {{"group", 1}}).kernels[0], 1, 128, 3, 18);
  // One group of them is no dense convolution.
  EXPECT_TRUE(grouped.work(Pass::Forward, {{"group", 1}}).kernels[0].grouped);
  EXPECT_TRUE(grouped.work(Pass::Backward, {{"group", 1}}).kernels[1].grouped);
  const OneOp back =
      one_op(OpKind::Conv, conv3x3(1, true), {floats({2, 4, 8, 8}), floats({4, 6, 3, 3})});
  EXPECT_FALSE(back.work(Pass::Forward).kernels[0].grouped);
  expect_product(back.work(Pass::Forward).kernels[0], 1, 128, 54, 4);
  expect_product(back.work(Pass::Backward).kernels[0], 1, 128, 4, 54);
  expect_product(back.work(Pass::Backward).kernels[1], 1, 4, 54, 128);
}

TEST(Work, FusedAttention) {
  const Shape q = {2, 8, 1024, 64}, kv = {2, 4, 1024, 64};
  const OneOp full =
      one_op(OpKind::Attention, AttentionAttrs{}, {halves(q), halves(kv), halves(kv)});
  const Work forward = full.work(Pass::Forward);
  ASSERT_EQ(forward.kernels.size(), 1u);
  // 16 heads x 1024^2 pairs x (64 + 64).
  EXPECT_DOUBLE_EQ(forward.kernels[0].multiply_adds, 16.0 * 1024 * 1024 * 128);
  EXPECT_EQ(forward.kernels[0].batch, 16);
  // q, k, v; the output and an fp32 statistic a row.
  EXPECT_EQ(forward.kernels[0].read.value, 2 * 2 * (8 + 4 + 4) * 1024 * 64);
  EXPECT_EQ(forward.kernels[0].written.value, 2 * 2 * 8 * 1024 * 64 + 4 * 2 * 8 * 1024);
  // Half of the key heads take half of the query heads with them.
  EXPECT_EQ(full.work(Pass::Forward, {{"head", 2}}).kernels[0].batch, 8);
  // Five products to the two of forward, and fp32 sums for dQ.
  const Work backward = full.work(Pass::Backward);
  ASSERT_EQ(backward.kernels.size(), 2u);
  EXPECT_DOUBLE_EQ(backward.kernels[1].multiply_adds, 2.5 * forward.kernels[0].multiply_adds);
  EXPECT_EQ(backward.kernels[1].scratch.value, 4 * 2 * 8 * 1024 * 64);

  AttentionAttrs causal;
  causal.causal = true;
  const OneOp half = one_op(OpKind::Attention, causal, {halves(q), halves(kv), halves(kv)});
  // Each query sees 512.5 keys on average, and half a block of 128 that is cut by the diagonal.
  EXPECT_DOUBLE_EQ(half.work(Pass::Forward).kernels[0].multiply_adds,
                   forward.kernels[0].multiply_adds * (512.5 + 64) / 1024);
}

// Of causal attention over parts of the queries the last one has most to do, of parts of the keys
// the first one.
TEST(Work, PartsOfCausalAttention) {
  const Shape q = {1, 1, 1024, 64};
  const AttentionAttrs causal{.causal = true};
  const OneOp op = one_op(OpKind::Attention, causal, {halves(q), halves(q), halves(q)});
  const auto seen = [&](LocalSizes local, LoopBlocks blocks) {
    const LoopNest nest = loops_of(op.training.graph, op.op(Pass::Forward));
    const Work work =
        work_of(op.training.graph, op.op(Pass::Forward), nest, local, std::move(blocks));
    const double pairs = static_cast<double>(local[2]) * static_cast<double>(local[3]);
    return work.kernels[0].multiply_adds / (pairs * 128) * 1024;
  };
  const LoopBlocks plain(6, 1);
  EXPECT_DOUBLE_EQ(seen({1, 1, 1024, 1024, 64, 64}, plain), 512.5 + 64);
  // Queries 768 to 1023 see 769 to 1024 keys.
  EXPECT_DOUBLE_EQ(seen({1, 1, 256, 1024, 64, 64}, plain), 896.5 + 64);
  // 384 to 511 and 896 to 1023.
  EXPECT_DOUBLE_EQ(seen({1, 1, 256, 1024, 64, 64}, {1, 1, 2, 1, 1, 1}), (448.5 + 960.5) / 2 + 64);
  // Nothing is said of where they lie: the mean.
  EXPECT_DOUBLE_EQ(seen({1, 1, 256, 1024, 64, 64}, {}), 512.5 + 64);
  // Keys 0 to 255: queries up to 255 see 1 to 256 of them, the others all. In shares of 1024.
  EXPECT_NEAR(seen({1, 1, 1024, 256, 64, 64}, plain) - 64, 4 * (128.5 / 4 + 256 * 0.75), 1);
}

TEST(Work, RecurrentStepsAreLaunchedOneByOne) {
  RecurrentAttrs attrs;
  attrs.hidden = 16;
  const OneOp lstm =
      one_op(OpKind::Lstm, attrs, {floats({10, 4, 8}), floats({1, 64, 8}), floats({1, 64, 16})});
  const Work forward = lstm.work(Pass::Forward);
  ASSERT_EQ(forward.kernels.size(), 3u);
  expect_product(forward.kernels[0], 1, 40, 64, 8);
  EXPECT_EQ(forward.kernels[1].launches, 10);
  EXPECT_EQ(forward.kernels[1].m, 4);
  EXPECT_DOUBLE_EQ(forward.kernels[1].multiply_adds, 10.0 * 4 * 64 * 16);
  EXPECT_EQ(forward.kernels[2].launches, 10);
  double total = 0;
  for (const Kernel& kernel : lstm.work(Pass::Backward).kernels) total += kernel.multiply_adds;
  EXPECT_DOUBLE_EQ(total,
                   arithmetic_of(lstm.training.graph, lstm.op(Pass::Backward)).multiply_adds);
}

TEST(Work, LookupsReadRowsNotTables) {
  const OneOp lookup =
      one_op(OpKind::Embedding, NoAttrs{}, {{DType::I64, {4, 8}}, floats({1000, 16})});
  const Kernel forward = lookup.work(Pass::Forward).kernels[0];
  EXPECT_EQ(forward.read.value, 8 * 32 + 4 * 32 * 16);
  EXPECT_EQ(forward.written.value, 4 * 32 * 16);
  // The gradient is as large as the table.
  EXPECT_GE(lookup.work(Pass::Backward).kernels[0].written.value, 4 * 1000 * 16);
}

TEST(Work, ViewsAndPassedGradientsAreFree) {
  const OneOp reshape = one_op(OpKind::Reshape, ShapeAttrs{{8}}, {floats({2, 4})});
  EXPECT_TRUE(reshape.work(Pass::Forward).kernels.empty());
  EXPECT_TRUE(reshape.work(Pass::Backward).kernels.empty());
  EXPECT_TRUE(reshape.work(Pass::Forward, {}).kernels.empty());
  const OneOp identity = one_op(OpKind::Unary, UnaryAttrs{}, {floats({2, 4})});
  EXPECT_TRUE(identity.work(Pass::Forward).kernels.empty());
}

TEST(Work, EmptyPiecesHaveNoKernels) {
  const OneOp relu = one_op(OpKind::Unary, UnaryAttrs{UnaryFn::Relu, 0, 0}, {floats({2, 4})});
  EXPECT_EQ(relu.work(Pass::Forward).kernels.size(), 1u);
  EXPECT_TRUE(relu.work(Pass::Forward, {{"d0", 0}}).kernels.empty());
}

TEST(Work, Updates) {
  // Reads gradient 2, master 4, two states 8; writes master 4, states 8, weight 2.
  const Work adam = update_work(OptimizerKind::Adam, 1000, DType::F16, DType::F16, true);
  EXPECT_EQ(adam.kernels[0].read.value, 14'000);
  EXPECT_EQ(adam.kernels[0].written.value, 14'000);
  const Work sgd = update_work(OptimizerKind::Sgd, 1000, DType::F32, DType::F32, false);
  EXPECT_EQ(sgd.kernels[0].read.value, 8'000);
  EXPECT_EQ(sgd.kernels[0].written.value, 4'000);
  EXPECT_TRUE(update_work(OptimizerKind::Adam, 0, DType::F32, DType::F32, false).kernels.empty());

  const OneOp relu = one_op(OpKind::Unary, UnaryAttrs{UnaryFn::Relu, 0, 0}, {floats({4, 6})});
  const Op& update = relu.training.graph.ops.back();
  ASSERT_EQ(update.kind, OpKind::Update);
  const LoopNest nest = loops_of(relu.training.graph, update);
  EXPECT_EQ(work_of(relu.training.graph, update, nest, {2, 6}),
            update_work(OptimizerKind::Adam, 12, DType::F32, DType::F32, false));
}

TEST(Work, MemoryWork) {
  EXPECT_TRUE(memory_work(Bytes(0), Bytes(0)).kernels.empty());
  EXPECT_EQ(memory_work(Bytes(5), Bytes(3)).kernels[0].written.value, 3);
}

// 36 operations an element one way, 6 the other.
TEST(Work, Compression) {
  EXPECT_TRUE(compression_work(0, Bytes(0), Bytes(0)).kernels.empty());
  const Kernel out = compression_work(1000, Bytes(4000), Bytes(560)).kernels[0];
  EXPECT_EQ(out.pointwise, 36'000);
  EXPECT_EQ(out.read.value, 4000);
  EXPECT_EQ(out.written.value, 560);
  const Kernel back = decompression_work(1000, Bytes(560), Bytes(4000)).kernels[0];
  EXPECT_EQ(back.pointwise, 6'000);
  EXPECT_EQ(back.read.value, 560);
  EXPECT_TRUE(out.compression && back.compression);
}

// As libtorch 1.13 with oneDNN was seen to allocate on a CPU with AVX-512.
TEST(Work, CopiesOfConvolutions) {
  const auto bytes = [](Shape x, Shape w, int64_t stride, int64_t padding, Pass pass) {
    const ConvAttrs attrs = {.stride = {stride, stride},
                             .dilation = {1, 1},
                             .pad_begin = {padding, padding},
                             .pad_end = {padding, padding},
                             .output_padding = {0, 0}};
    const OneOp one = one_op(OpKind::Conv, attrs, {floats(std::move(x)), floats(std::move(w))});
    int64_t most = 0;
    for (const Kernel& kernel : one.work(pass).kernels) most = std::max(most, kernel.blocked.value);
    return most;
  };
  const Pass forward = Pass::Forward, backward = Pass::Backward;
  // The output, then weights and input.
  EXPECT_EQ(bytes({8, 32, 35, 35}, {64, 32, 3, 3}, 1, 1, forward), 2508800);
  EXPECT_EQ(bytes({4, 128, 8, 8}, {128, 128, 3, 3}, 1, 1, forward), 720896);
  EXPECT_EQ(bytes({8, 80, 17, 17}, {192, 80, 3, 3}, 1, 0, forward), 1382400);
  // Input and output, or weights.
  EXPECT_EQ(bytes({8, 32, 35, 35}, {64, 32, 3, 3}, 1, 1, backward), 3763200);
  EXPECT_EQ(bytes({8, 80, 17, 17}, {192, 80, 3, 3}, 1, 0, backward), 2122240);
  EXPECT_EQ(bytes({4, 256, 4, 4}, {256, 256, 3, 3}, 1, 1, backward), 2359296);
  EXPECT_EQ(bytes({8, 64, 16, 16}, {128, 64, 3, 3}, 2, 1, backward), 786432);
  // Products as they lie; one small sample, unfolded.
  EXPECT_EQ(bytes({8, 64, 17, 17}, {80, 64, 1, 1}, 1, 0, forward), 0);
  EXPECT_EQ(bytes({8, 64, 17, 17}, {80, 64, 1, 1}, 1, 0, backward), 0);
  EXPECT_EQ(bytes({1, 64, 16, 16}, {64, 64, 3, 3}, 1, 1, forward), 589824);
  EXPECT_EQ(bytes({1, 512, 2, 2}, {512, 512, 3, 3}, 1, 1, forward), 73728);
}

}  // namespace
}  // namespace windlass

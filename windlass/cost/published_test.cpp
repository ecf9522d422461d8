// The analytic model against published iterations of large transformers: time of one layer and one
// micro-batch, taken out of the iteration by
//   layer = (iteration - rest) / (1 + (p - 1) / (m v)) / (micro-batches x layers of a device)
// with p stages, m micro-batches, v chunks of a stage. One set of constants for all rows.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/cost/cost_model.h"
#include "windlass/cost/traffic.h"
#include "windlass/graph/builder.h"
#include "windlass/graph/differentiate.h"
#include "windlass/machine/read_machine.h"

namespace windlass {
namespace {

struct LayerSize {
  int64_t hidden, heads, sequence, batch;
  int64_t ways = 1;  // devices that share the layer
  DType dtype = DType::F16;
  bool fused = true;  // softmax with scale and mask, and GELU, are one kernel each
};

// What one of `ways` devices has of a layer: heads, columns of the first and rows of the second
// product of each half. The attention is not fused, as it was not in these runs.
class Layer {
 public:
  explicit Layer(const LayerSize& size) : builder_("layer"), size_(size) {
    const int64_t hidden = size.hidden, batch = size.batch;
    const int64_t local = hidden / size.ways;
    const TensorId x = weight({batch, size.sequence, hidden});
    const TensorId qkv = linear(norm(x), 3 * local);
    const auto parts =
        builder_.add(OpKind::Split, SplitAttrs{2, {local, local, local}}, {qkv}, next("split"));
    std::vector<TensorId> split;
    for (TensorId part : parts) split.push_back(to_heads(part));
    const TensorId scores = add(OpKind::MatMul, MatMulAttrs{false, true}, {split[0], split[1]});
    const TensorId weights =
        add(OpKind::Softmax, SoftmaxAttrs{3, false}, {size.fused ? scores : masked(scores)});
    const TensorId kept = add(OpKind::Dropout, DropoutAttrs{0.1}, {weights});
    const TensorId mixed = add(OpKind::MatMul, MatMulAttrs{}, {kept, split[2]});
    const TensorId back = add(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {mixed});
    const TensorId joined = add(OpKind::Reshape, ShapeAttrs{{batch, size.sequence, local}}, {back});
    const TensorId middle = residual(x, linear(joined, hidden));
    const TensorId wide = linear(norm(middle), 4 * local);
    const TensorId active = size.fused ? unary(UnaryFn::GeluTanh, wide) : gelu(wide);
    const TensorId out = residual(middle, linear(active, hidden));
    builder_.set_output(out);
    builder_.attach_mean_squared_error(out);
    training_ = differentiate(builder_.finish());
  }

  Seconds time(Pass pass, const DeviceType& device) const {
    const auto model = analytic_cost_model();
    Seconds total;
    for (const Op& op : training_.graph.ops) {
      if (op.pass != pass || op.kind == OpKind::MeanSquaredError) continue;
      const LoopNest nest = loops_of(training_.graph, op);
      LocalSizes local;
      for (const LoopDim& loop : nest.loops) local.push_back(loop.size);
      total += model->price(work_of(training_.graph, op, nest, local), device).time;
    }
    return total;
  }

 private:
  std::string next(const std::string& what) { return what + std::to_string(count_++); }
  TensorId add(OpKind kind, Attrs attrs, std::vector<TensorId> inputs) {
    return builder_.op(kind, std::move(attrs), std::move(inputs), next("op"));
  }
  TensorId weight(Shape shape) {
    return builder_.weight(next("w"), {size_.dtype, std::move(shape)});
  }
  TensorId linear(TensorId x, int64_t n) {
    return add(OpKind::Linear, LinearAttrs{},
               {x, weight({n, builder_.shape(x).back()}), weight({n})});
  }
  TensorId norm(TensorId x) {
    const int64_t width = builder_.shape(x).back();
    return add(OpKind::LayerNorm, LayerNormAttrs{2, 1e-5, 0},
               {x, weight({width}), weight({width})});
  }
  TensorId residual(TensorId x, TensorId y) {
    return add(OpKind::Binary, BinaryAttrs{BinaryFn::Add},
               {x, add(OpKind::Dropout, DropoutAttrs{0.1}, {y})});
  }
  TensorId unary(UnaryFn fn, TensorId x) { return add(OpKind::Unary, UnaryAttrs{fn, 0.5, 3}, {x}); }
  TensorId binary(BinaryFn fn, TensorId x, TensorId y) {
    return add(OpKind::Binary, BinaryAttrs{fn}, {x, y});
  }
  TensorId masked(TensorId scores) {
    const TensorId mask =
        builder_.input(next("mask"), {size_.dtype, {size_.sequence, size_.sequence}});
    return binary(BinaryFn::Add, unary(UnaryFn::Affine, scores), mask);
  }
  // 0.5 x (1 + tanh(a (x + b x^3))), op by op.
  TensorId gelu(TensorId x) {
    const TensorId cube = unary(UnaryFn::Affine, unary(UnaryFn::Power, x));
    const TensorId inner = unary(UnaryFn::Affine, binary(BinaryFn::Add, x, cube));
    const TensorId gate = unary(UnaryFn::Affine, unary(UnaryFn::Tanh, inner));
    return binary(BinaryFn::Mul, unary(UnaryFn::Affine, x), gate);
  }
  TensorId to_heads(TensorId x) {
    const Shape shape = {size_.batch, size_.sequence, size_.heads / size_.ways,
                         size_.hidden / size_.heads};
    const TensorId split = add(OpKind::Reshape, ShapeAttrs{shape}, {x});
    return add(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {split});
  }

  GraphBuilder builder_;
  LayerSize size_;
  TrainingGraph training_;
  int count_ = 0;
};

// Forward twice, backward once, and the sums over the devices of a layer in each.
Seconds recomputed_layer(const LayerSize& size) {
  const Machine machine = load_machine("8xa100-80g");
  const DeviceType& device = machine.device_types[0];
  DeviceGroup group;
  for (int64_t i = 0; i < size.ways; ++i) group.push_back(DeviceId(static_cast<size_t>(i)));
  const Layer layer(size);
  const Bytes activation(2 * size.batch * size.sequence * size.hidden);
  const Traffic sum = plan_collective(machine, Collective::AllReduce, {{group}}, activation);
  return layer.time(Pass::Forward, device) * 2 + layer.time(Pass::Backward, device) +
         time_alone(machine, sum) * 6;
}

// Korthikanti et al., Table 5, full recomputation.
struct Iteration {
  std::string name;
  int64_t hidden, heads, batch;
  double seconds;  // one layer, one micro-batch
};

TEST(Published, LayerTimesOfFullRecomputation) {
  // 22B: (1.42 - 0.06 for update and logits) / 48. 175B: 18.13 / (1 + 7/192) / (64 x 12).
  // 530B: 49.05 / (1 + 34/840) / (280 x 3). 1T: 94.42 / (1 + 63/512) / (512 x 2).
  const std::vector<Iteration> rows = {{"22B", 6144, 64, 4, 28.3e-3},
                                       {"175B", 12288, 96, 1, 22.8e-3},
                                       {"530B", 20480, 128, 1, 56.1e-3},
                                       {"1T", 25600, 160, 1, 82.1e-3}};
  for (const Iteration& row : rows) {
    const double seconds = recomputed_layer({row.hidden, row.heads, 2048, row.batch, 8}).value;
    RecordProperty(row.name + "_layer_ms", std::to_string(seconds * 1e3));
    EXPECT_NEAR(seconds / row.seconds, 1, 0.1) << row.name;
  }
}

// Narayanan et al., arXiv 2104.04473, Table 1: TFLOP/s of a device over the whole iteration.
struct Rate {
  int64_t hidden, heads, layers, ways, stages, devices, batch, micro, chunks;
  double teraflops;
};

// What a layer may take: the iteration less logits, update and sum of gradients over replicas.
double layer_seconds(const Rate& row) {
  constexpr double kVocabulary = 51200;
  const auto h = static_cast<double>(row.hidden), l = static_cast<double>(row.layers);
  const auto b = static_cast<double>(row.batch), s = 2048.0;
  const auto ways = static_cast<double>(row.ways * row.stages);
  const auto devices = static_cast<double>(row.devices);
  const double logits = kVocabulary / (16 * l * h);
  const double flops = 96 * b * s * l * h * h * (1 + s / (6 * h) + logits);
  const double iteration = flops / devices / (row.teraflops * 1e12);
  // 12 h^2 weights of a layer: 28 bytes each to update, 2 each to sum over 25 GB/s, there and back.
  const double weights = 12 * h * h * l / ways;
  const double rest = weights * 28 / 1.73e12 + weights * 2 * 2 / 25e9;
  const double micro_batches = b / (devices / ways) / static_cast<double>(row.micro);
  const auto stages = static_cast<double>(row.stages);
  const double bubble = (stages - 1) / (micro_batches * static_cast<double>(row.chunks));
  const double share = 1 / (1 + logits / (1 + s / (6 * h)));
  return (iteration - rest) * share / (1 + bubble) / (micro_batches * l / stages);
}

TEST(Published, LayerTimesOfMegatron) {
  const std::vector<Rate> rows = {{2304, 24, 24, 1, 1, 32, 512, 16, 1, 137},
                                  {3072, 32, 30, 2, 1, 64, 512, 16, 1, 138},
                                  {4096, 32, 36, 4, 1, 128, 512, 16, 1, 142},
                                  {6144, 48, 40, 8, 1, 256, 1024, 8, 1, 135},
                                  {8192, 64, 48, 8, 2, 512, 1536, 4, 1, 138},
                                  {10240, 80, 60, 8, 4, 1024, 1792, 2, 3, 140},
                                  {12288, 96, 80, 8, 8, 1536, 2304, 2, 2, 148},
                                  {16384, 128, 96, 8, 16, 1920, 2160, 1, 2, 155},
                                  {20480, 128, 105, 8, 35, 2520, 2520, 1, 3, 163},
                                  {25600, 160, 128, 8, 64, 3072, 3072, 1, 1, 163}};
  for (const Rate& row : rows) {
    const double seconds =
        recomputed_layer({row.hidden, row.heads, 2048, row.micro, row.ways}).value;
    const double published = layer_seconds(row);
    RecordProperty("h" + std::to_string(row.hidden) + "_percent_off",
                   std::to_string((seconds / published - 1) * 100));
    // Sends between stages are in the published time only.
    EXPECT_NEAR(seconds / published, 1, row.stages > 2 ? 0.15 : 0.08) << row.hidden;
  }
}

// Profiles that were released with Harmony (VLDB 2022): one layer on a GTX 1080 Ti, fp32, PyTorch
// 1.5. VGG416 is 3 x 3 convolutions of 256 channels on 56 x 56 points, 9 samples.
TEST(Published, LayersOnASmallCard) {
  const DeviceType device = load_machine("4x1080ti").device_types[0];
  struct Row {
    std::string name;
    LayerSize size;
    double forward, recompute_and_backward;  // seconds
  };
  const std::vector<Row> rows = {
      {"BERT", {1024, 16, 512, 8, 1, DType::F32, false}, 20.4e-3, 62.1e-3},
      {"GPT2", {1600, 25, 1024, 2, 1, DType::F32, false}, 26.3e-3, 73.5e-3},
  };
  for (const Row& row : rows) {
    const Layer layer(row.size);
    const double forward = layer.time(Pass::Forward, device).value;
    const double both = forward + layer.time(Pass::Backward, device).value;
    RecordProperty(row.name + "_ms", fmt::format("{:.1f} {:.1f}", forward * 1e3, both * 1e3));
    EXPECT_NEAR(forward / row.forward, 1, 0.15) << row.name;
    EXPECT_NEAR(both / row.recompute_and_backward, 1, 0.15) << row.name;
  }
  Kernel vgg;
  vgg.family = OpFamily::Convolution;
  vgg.m = 9 * 56 * 56, vgg.n = 256, vgg.k = 256 * 9;
  vgg.multiply_adds = 9.0 * 56 * 56 * 256 * 256 * 9;
  vgg.winograd = true;
  EXPECT_NEAR(analytic_cost_model()->price({{vgg}}, device).time.value / 2.8e-3, 1, 0.15);
}

}  // namespace
}  // namespace windlass

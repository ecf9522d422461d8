// Whole steps whose cost can be worked out by hand: model, strategy and machine in, time, bytes and
// traffic out. The arithmetic stands beside each case.

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/graph/builder.h"
#include "windlass/machine/read_machine.h"
#include "windlass/sim/simulate.h"
#include "windlass/sim/timeline_check.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

constexpr int64_t kWidth = 256;
constexpr int64_t kWeightBytes = kWidth * kWidth * 4;

// A chain of square dense layers, each with its ReLU, without biases. A trainable offset comes
// first, so that every layer has both gradients to compute.
Graph chain(int64_t layers, int64_t batch) {
  GraphBuilder b("chain");
  TensorId x = b.input("x", {DType::F32, {batch, kWidth}});
  x = b.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add},
           {x, b.weight("offset", {DType::F32, {kWidth}})}, "add");
  for (int64_t i = 0; i < layers; ++i) {
    const TensorId w = b.weight(fmt::format("w{}", i), {DType::F32, {kWidth, kWidth}});
    x = b.op(OpKind::Linear, LinearAttrs{}, {x, w}, fmt::format("linear{}", i));
    x = b.op(OpKind::Unary, UnaryAttrs{UnaryFn::Relu}, {x}, fmt::format("relu{}", i));
  }
  b.set_output(x);
  b.attach_mean_squared_error(x);
  return b.finish();
}

// A product takes a nanosecond for so many multiply-adds, anything else nothing.
class ProductsOnly : public CostModel {
 public:
  explicit ProductsOnly(double rate) : rate_(rate) {}
  Price price(const Work& work, const DeviceType&) const override {
    double count = 0;
    for (const Kernel& kernel : work.kernels) count += kernel.multiply_adds;
    return {Seconds(count / rate_ * 1e-9), Bytes(0)};
  }
  Price price_on_host(const Work&, const Node&) const override { return {}; }
  Seconds step_overhead(const DeviceType&) const override { return {}; }
  std::string provenance() const override { return "products only"; }

 private:
  double rate_;
};

Machine star(int devices, const std::string& memory = "16GiB") {
  return machine_from_json(fmt::format(R"({{"name": "star",
        "device_types": {{"d": {{"memory": "{}", "peak": {{"fp32": "1TFLOPS"}}, "memory_bandwidth": "1TB/s"}}}},
        "nodes": [{{"host": {{"memory": "1TiB", "memory_bandwidth": "1TB/s", "peak": "1TFLOPS"}},
          "devices": [{{"type": "d", "count": {}}}], "switches": ["s"],
          "links": [{{"from": "gpu*", "to": "s", "bandwidth": "100GB/s"}},
                    {{"from": "s", "to": "host", "bandwidth": "400GB/s"}}]}}]}})",
                                       memory, devices),
                           "star");
}

struct Step {
  PreparedStep prepared;
  TaskGraph tasks;
  TaskTimes times;
  SimResult result;

  double seconds() const { return static_cast<double>(result.makespan) * 1e-9; }

  // Most buffers of one kind and tensor name that live at once in a memory.
  int most_alive(size_t memory, BufferKind kind, const std::string& tensor) const {
    std::map<Nanoseconds, int> change;
    std::vector<Nanoseconds> from(tasks.buffers.size(), -1), to(tasks.buffers.size(), -1);
    for (size_t i = 0; i < tasks.size(); ++i)
      for (const Use& use : tasks.uses_of(TaskId(i))) {
        const size_t b = use.buffer.index();
        if (from[b] < 0 || result.start[i] < from[b]) from[b] = result.start[i];
        to[b] = std::max(to[b], result.end[i]);
      }
    for (size_t b = 0; b < tasks.buffers.size(); ++b) {
      const Buffer& buffer = tasks.buffers[b];
      if (buffer.memory.index() != memory || buffer.kind != kind || from[b] < 0) continue;
      if (!tensor.empty() && prepared.training.graph[buffer.tensor].name != tensor) continue;
      ++change[from[b]];
      --change[to[b]];
    }
    int alive = 0, most = 0;
    for (const auto& [time, by] : change) most = std::max(most, alive += by);
    return most;
  }

  int64_t resident(BufferKind kind) const {
    int64_t total = 0;
    for (const Buffer& buffer : tasks.buffers)
      if (buffer.kind == kind && buffer.at_start && tasks[buffer.memory].team.valid())
        total += buffer.bytes.value;
    return total;
  }

  // Bytes that cross from and to the host, over all members, of buffers of one kind.
  int64_t swapped(TaskKind kind, BufferKind what) const {
    int64_t total = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const TaskId id(i);
      if (tasks[id].kind != kind) continue;
      for (const Use& use : tasks.uses_of(id)) {
        const Buffer& buffer = tasks[use.buffer];
        if (!tasks[buffer.memory].team.valid() || buffer.kind != what) continue;
        total += buffer.bytes.value *
                 static_cast<int64_t>(tasks[tasks[buffer.memory].team].devices.size());
      }
    }
    return total;
  }
};

Step run(const Graph& graph, const Machine& machine, const std::string& strategy,
         OptimizerKind optimizer = OptimizerKind::Adam, bool enforce = true, double rate = 1000) {
  Step step;
  step.prepared = prepare_step(graph, parse_baseline(strategy), machine, {.optimizer = optimizer});
  step.tasks = lower(step.prepared.training, step.prepared.strategy, machine);
  check_task_graph(step.tasks);
  const ProductsOnly cost(rate);
  step.times = price_tasks(step.tasks, machine, cost);
  Simulator simulator;
  step.result = simulator.run(step.tasks, step.times, {.enforce_limits = enforce});
  EXPECT_EQ(step.result.status, SimStatus::Done) << strategy;
  const auto complaints = check_timeline(step.tasks, step.times, step.result);
  EXPECT_TRUE(complaints.empty()) << strategy << ": " << complaints.front();
  return step;
}

// Four stages of one layer, eight micro-batches of 64 samples. A layer's product is 64 x 256 x 256
// multiply-adds = 4.194 ms at one a nanosecond; backward is two of them. Both schedules take
// (m + p - 1) (f + b) = 11 x 12.58 ms, plus sends of 64 KiB that take about 4 us each.
TEST(HandComputed, PipelineBubbles) {
  const double f = 64.0 * 256 * 256 * 1e-9;
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const Step step = run(chain(4, 512), star(4), fmt::format("{}:stages=4,micro=64", schedule),
                          OptimizerKind::Sgd, true, 1);
    EXPECT_NEAR(step.seconds(), 11 * 3 * f, 0.01 * 11 * 3 * f) << schedule;
  }
}

// GPipe keeps all eight micro-batches on every stage; 1F1B keeps p - rank of them.
TEST(HandComputed, PipelineActivations) {
  const Step gpipe = run(chain(4, 512), star(4), "gpipe:stages=4,micro=64");
  const Step one = run(chain(4, 512), star(4), "1f1b:stages=4,micro=64");
  for (size_t rank = 0; rank < 4; ++rank) {
    const std::string saved = fmt::format("relu{}", rank);
    EXPECT_EQ(gpipe.most_alive(rank, BufferKind::Activation, saved), rank == 3 ? 8 : 8);
    EXPECT_EQ(one.most_alive(rank, BufferKind::Activation, saved), 4 - static_cast<int>(rank));
  }
}

// Interleaving v stages on each device divides the bubble by v: with m = 8, p = 2, v = 2 the
// bubble is (p - 1) (f + b) / v where f, b are those of a whole device's share of two layers.
TEST(HandComputed, InterleavingShrinksTheBubble) {
  const double layer = 3 * 64.0 * 256 * 256 * 1e-9;  // forward and backward
  const Step plain =
      run(chain(4, 512), star(2), "1f1b:stages=2,micro=64", OptimizerKind::Sgd, true, 1);
  const Step interleaved = run(chain(4, 512), star(2), "1f1b:stages=2,micro=64,interleave=2",
                               OptimizerKind::Sgd, true, 1);
  EXPECT_NEAR(plain.seconds(), (8 + 1) * 2 * layer, 0.01 * 18 * layer);
  EXPECT_NEAR(interleaved.seconds(), (8 + 0.5) * 2 * layer, 0.02 * 17 * layer);
}

// One bucket: 4 layers of 256 KiB and 1 KiB of offset, reduced by a ring over 4 devices: each sends
// 2 x 3/4 of it at 100 GB/s.
TEST(HandComputed, RingAllReduce) {
  const Machine machine = star(4);
  const Step step = run(chain(4, 64), machine, "data-parallel");
  const int64_t bytes = 4 * kWeightBytes + kWidth * 4;
  int reduces = 0;
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    if (step.tasks.tasks[i].kind != TaskKind::Reduce) continue;
    ++reduces;
    const Traffic& traffic = step.tasks.traffics[static_cast<size_t>(step.tasks.tasks[i].price)];
    const auto taken = static_cast<double>(step.result.end[i] - step.result.start[i]) * 1e-9;
    const double ring = 2.0 * 3 / 4 * static_cast<double>(bytes) / 100e9;
    EXPECT_NEAR(taken, ring + traffic.latency.value, 0.02 * ring + 1e-8);
  }
  EXPECT_EQ(reduces, 1);
}

// fp32 Adam: 4 bytes of weight, 4 of gradient, 8 of state a parameter. Stage 1 shares out the
// state, 2 the gradient as well, 3 the weights as well.
TEST(HandComputed, ZeroBytes) {
  const Graph graph = chain(4, 64);
  const int64_t p = 4 * kWidth * kWidth + kWidth;
  const auto round = [](int64_t bytes, int64_t tensors) { return bytes + tensors * 512; };
  const auto expect_near = [&](int64_t found, int64_t exact) {
    EXPECT_GE(found, exact);
    EXPECT_LE(found, round(exact, 5));
  };
  const Step plain = run(graph, star(4), "data-parallel");
  expect_near(plain.resident(BufferKind::Weight), 4 * p);
  expect_near(plain.resident(BufferKind::OptimizerState), 8 * p);
  for (int stage : {1, 2, 3}) {
    const Step step = run(graph, star(4), fmt::format("zero:stage={}", stage));
    expect_near(step.resident(BufferKind::Weight), stage == 3 ? p : 4 * p);
    expect_near(step.resident(BufferKind::OptimizerState), 2 * p);
    // The optimizer's turn is the peak of a step with so few samples: at its end live the weights,
    // the state and the gradients, whole or shared out.
    int64_t reduced = 0;
    for (const Buffer& buffer : step.tasks.buffers)
      if (buffer.kind == BufferKind::WeightGradient && buffer.micro_batch < 0)
        reduced += buffer.bytes.value;
    expect_near(reduced, stage >= 2 ? p : 4 * p);
  }
}

// Sixteen layers: plain training keeps one ReLU output of each. With four checkpoints, at most the
// four and what is computed again inside of one piece live at once.
TEST(HandComputed, RecomputePeak) {
  const Graph graph = chain(16, 64);
  const Step plain = run(graph, star(1), "single");
  const Step sqrt = run(graph, star(1), "recompute-sqrt");
  EXPECT_GE(plain.most_alive(0, BufferKind::Activation, ""), 16);
  EXPECT_LE(sqrt.most_alive(0, BufferKind::Activation, ""), 4 + 6);
  int again = 0;
  for (const Task& task : sqrt.tasks.tasks) again += task.kind == TaskKind::Recompute ? 1 : 0;
  EXPECT_GT(again, 16);
  EXPECT_LE(again, 33);
}

// Transparent paging of data-parallel training, m = 4 micro-batches on N = 2 devices, a model of 64
// layers where 6 fit: each layer's weights come in and go out for the forward and the backward pass
// of every micro-batch and for the update: (4 m + 2) N |W|. What is still there when the direction
// turns saves a little.
TEST(HandComputed, SwapVolumeOfPaging) {
  const int64_t layers = 64, m = 4, n = 2;
  const Step step =
      run(chain(layers, 32), star(2, "2731KiB"), "lru:micro-batches=4", OptimizerKind::Sgd);
  const int64_t moved = step.swapped(TaskKind::SwapIn, BufferKind::Weight) +
                        step.swapped(TaskKind::SwapOut, BufferKind::Weight);
  const double formula = static_cast<double>((4 * m + 2) * n * layers * kWeightBytes);
  EXPECT_LE(static_cast<double>(moved), formula);
  EXPECT_GE(static_cast<double>(moved), 0.85 * formula);
}

// Harmony's pipeline, 16 layers in 8 packs on 4 devices: weights come in once for the forward and
// once for the backward pass, and gradients leave once: 3 |W|, whatever the number of
// micro-batches. The last pack turns round at once, and device 1 ends its forward passes with pack
// 5 and begins its backward passes with it: these two of eight come in once only.
TEST(HandComputed, SwapVolumeOfPacks) {
  const int64_t layers = 16;
  for (int micro_batches : {1, 4}) {
    const Step step = run(chain(layers, 64), star(4),
                          fmt::format("harmony:mode=pp,packs=8,micro-batches={}", micro_batches));
    const int64_t in = step.swapped(TaskKind::SwapIn, BufferKind::Weight);
    const int64_t out = step.swapped(TaskKind::SwapOut, BufferKind::WeightGradient);
    const int64_t w = layers * kWeightBytes + kWidth * 4;
    EXPECT_NEAR(static_cast<double>(out), static_cast<double>(w), 0.001 * static_cast<double>(w));
    EXPECT_NEAR(static_cast<double>(in), (2 - 2.0 / 8) * static_cast<double>(w),
                0.01 * static_cast<double>(w));
  }
}

}  // namespace
}  // namespace windlass

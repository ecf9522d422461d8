// Small networks and machines for the tests of this folder.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/graph/builder.h"
#include "windlass/machine/read_machine.h"

namespace windlass::cases {

inline TensorType f32(Shape shape) { return {DType::F32, std::move(shape)}; }

class Net {
 public:
  explicit Net(std::string name) : b(std::move(name)) {}

  TensorId linear(TensorId x, int64_t out, const std::string& name) {
    const int64_t in = b.shape(x).back();
    const TensorId w = b.weight(name + ".weight", f32({out, in}));
    return b.op(OpKind::Linear, LinearAttrs{}, {x, w, b.weight(name + ".bias", f32({out}))}, name);
  }
  TensorId relu(TensorId x, const std::string& name) {
    return b.op(OpKind::Unary, UnaryAttrs{.fn = UnaryFn::Relu}, {x}, name);
  }
  TensorId add(TensorId x, TensorId y, const std::string& name) {
    return b.op(OpKind::Binary, BinaryAttrs{.fn = BinaryFn::Add}, {x, y}, name);
  }
  TensorId norm(TensorId x, const std::string& name) {
    const int64_t size = b.shape(x).back();
    return b.op(
        OpKind::LayerNorm, LayerNormAttrs{.axis = static_cast<int64_t>(b.shape(x).size()) - 1},
        {x, b.weight(name + ".scale", f32({size})), b.weight(name + ".bias", f32({size}))}, name);
  }
  TensorId reshape(TensorId x, Shape shape, const std::string& name) {
    return b.op(OpKind::Reshape, ShapeAttrs{std::move(shape)}, {x}, name);
  }
  TensorId conv(TensorId x, int64_t out, const std::string& name) {
    const TensorId w = b.weight(name + ".weight", f32({out, b.shape(x)[1], 3, 3}));
    const TensorId y = b.op(OpKind::Conv,
                            ConvAttrs{.stride = {1, 1},
                                      .dilation = {1, 1},
                                      .pad_begin = {1, 1},
                                      .pad_end = {1, 1},
                                      .output_padding = {0, 0}},
                            {x, w}, name);
    return relu(y, name + ".relu");
  }
  Graph finish(TensorId x) {
    b.set_output(x);
    b.attach_cross_entropy(x);
    return b.finish();
  }

  GraphBuilder b;
};

inline Graph mlp(int64_t batch = 16, int64_t layers = 4, int64_t hidden = 64) {
  Net net("mlp");
  TensorId x = net.b.input("x", f32({batch, 32}));
  for (int64_t i = 0; i < layers; ++i)
    x = net.relu(net.linear(x, hidden, fmt::format("layer{}", i)), fmt::format("relu{}", i));
  return net.finish(net.linear(x, 16, "head"));
}

inline Graph cnn(int64_t batch = 16, bool batch_norm = false) {
  Net net("cnn");
  TensorId x = net.b.input("x", f32({batch, 3, 16, 16}));
  for (int i = 0; i < 3; ++i) {
    x = net.conv(x, 16, fmt::format("conv{}", i));
    if (!batch_norm) continue;
    const std::string name = fmt::format("norm{}", i);
    x = net.b.op(
        OpKind::BatchNorm, BatchNormAttrs{},
        {x, net.b.weight(name + ".scale", f32({16})), net.b.weight(name + ".bias", f32({16})),
         net.b.buffer(name + ".mean", f32({16})), net.b.buffer(name + ".var", f32({16}))},
        name);
  }
  x = net.b.op(OpKind::Pool,
               PoolAttrs{.fn = PoolFn::Max,
                         .kernel = {2, 2},
                         .stride = {2, 2},
                         .dilation = {1, 1},
                         .pad_begin = {0, 0},
                         .pad_end = {0, 0}},
               {x}, "pool");
  x = net.reshape(x, {batch, 16 * 64}, "flatten");
  return net.finish(net.linear(net.relu(net.linear(x, 32, "dense"), "dense.relu"), 16, "head"));
}

// With residual sums, and an output that shares the weights of the embedding if `tied`.
inline Graph transformer(int64_t batch = 8, int64_t layers = 4, bool tied = true) {
  constexpr int64_t kSequence = 16, kHidden = 32, kHeads = 4, kVocabulary = 64;
  Net net("transformer");
  const TensorId ids = net.b.input("ids", {DType::I64, {batch, kSequence}});
  const TensorId table = net.b.weight("embedding", f32({kVocabulary, kHidden}));
  TensorId x = net.b.op(OpKind::Embedding, NoAttrs{}, {ids, table}, "embed");
  x = net.add(x, net.b.weight("positions", f32({kSequence, kHidden})), "embed.add");
  for (int64_t i = 0; i < layers; ++i) {
    const std::string layer = fmt::format("layer{}", i);
    const TensorId n = net.norm(x, layer + ".norm1");
    const auto heads = [&](const std::string& part) {
      const TensorId y =
          net.reshape(net.linear(n, kHidden, layer + part),
                      {batch, kSequence, kHeads, kHidden / kHeads}, layer + part + ".heads");
      return net.b.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, layer + part + ".turn");
    };
    TensorId y = net.b.op(OpKind::Attention, AttentionAttrs{.scale = 0.35, .causal = true},
                          {heads(".q"), heads(".k"), heads(".v")}, layer + ".attention");
    y = net.b.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, layer + ".back");
    y = net.reshape(y, {batch, kSequence, kHidden}, layer + ".join");
    x = net.add(x, net.linear(y, kHidden, layer + ".out"), layer + ".add1");
    TensorId z = net.linear(net.norm(x, layer + ".norm2"), 4 * kHidden, layer + ".up");
    z = net.b.op(OpKind::Unary, UnaryAttrs{.fn = UnaryFn::Gelu}, {z}, layer + ".gelu");
    x = net.add(x, net.linear(z, kHidden, layer + ".down"), layer + ".add2");
  }
  x = net.norm(x, "norm");
  if (!tied) return net.finish(net.linear(x, kVocabulary, "head"));
  return net.finish(net.b.op(OpKind::Linear, LinearAttrs{}, {x, table}, "head"));
}

// Weights that reach their ops through views, one of them twice and directly too.
inline Graph views(int64_t batch = 8) {
  Net net("views");
  const TensorId x = net.b.input("x", f32({batch, 32}));
  const TensorId flat = net.b.weight("flat", f32({16 * 32}));
  const TensorId matrix = net.reshape(flat, {16, 32}, "matrix");
  TensorId y = net.b.op(OpKind::Linear, LinearAttrs{}, {x, matrix}, "first");
  const TensorId slopes = net.reshape(net.b.weight("slopes", f32({16})), {1, 16}, "row");
  y = net.b.op(OpKind::Binary, BinaryAttrs{.fn = BinaryFn::Mul}, {y, slopes}, "scaled");
  y = net.relu(net.add(y, slopes, "shifted"), "relu");
  const TensorId turned = net.reshape(flat, {32, 16}, "turned");
  return net.finish(net.b.op(OpKind::Linear, LinearAttrs{}, {y, turned}, "second"));
}

// Random numbers on the way, in a residual block too.
inline Graph dropout(int64_t batch = 8) {
  Net net("dropout");
  const auto drop = [&](TensorId x, const std::string& name) {
    return net.b.op(OpKind::Dropout, DropoutAttrs{.ratio = 0.3}, {x}, name);
  };
  TensorId x = net.b.input("x", f32({batch, 12}));
  x = drop(net.relu(net.linear(x, 16, "in"), "in.relu"), "in.drop");
  for (int i = 0; i < 2; ++i) {
    const std::string block = fmt::format("block{}", i);
    const TensorId y = net.relu(net.linear(x, 16, block), block + ".relu");
    x = net.add(x, drop(y, block + ".drop"), block + ".add");
  }
  return net.finish(net.linear(x, 16, "head"));
}

inline Machine machine(int devices, int nodes = 1, const std::string& memory = "8GiB") {
  const std::string network =
      nodes > 1 ? R"(, "network": {"bandwidth": "10GB/s", "latency": "5us"})" : "";
  return machine_from_json(fmt::format(R"({{"name": "test{}x{}",
        "device_types": {{"card": {{"memory": "{}", "peak": {{"fp32": "10TFLOPS", "bf16": "20TFLOPS"}},
                                    "memory_bandwidth": "500GB/s"}}}},
        "nodes": [{{"count": {}, "host": {{"memory": "64GiB", "memory_bandwidth": "50GB/s", "peak": "1TFLOPS"}},
                    "devices": [{{"type": "card", "count": {}}}], "switches": ["root"],
                    "links": [{{"from": "gpu*", "to": "root", "bandwidth": "12GB/s", "latency": "5us"}},
                              {{"from": "root", "to": "host", "bandwidth": "20GB/s", "latency": "1us"}}]}}]{}}})",
                                       nodes, devices, memory, nodes, devices, network),
                           "test");
}

}  // namespace windlass::cases

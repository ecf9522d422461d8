// The networks that PaSE was evaluated on. Structure and sizes as in its released code
// (baidu-research/PaSE); AlexNet with 1024 classes, Inception-v3 without its auxiliary head.

#include <algorithm>

#include "windlass/model/pase/layer_graph.h"

namespace windlass {
namespace {

// A tensor: output `output` of vertex `vertex`; none for an input of the network.
struct Value {
  size_t vertex = SIZE_MAX;
  size_t output = 0;
  Extents shape;
};

class Builder {
 public:
  Builder(std::string_view name, int64_t batch, int64_t cutoff) {
    graph_.name = name;
    graph_.batch = batch;
    graph_.cutoff = cutoff;
  }

  static Value data(Extents shape) { return {SIZE_MAX, 0, std::move(shape)}; }

  Value conv(const Value& in, int64_t n, int64_t r, int64_t s, int64_t stride, int64_t pad_h,
             int64_t pad_w, int64_t pointwise = 0) {
    const Extents& x = in.shape;
    const int64_t h = (x[2] + 2 * pad_h - r) / stride + 1, w = (x[3] + 2 * pad_w - s) / stride + 1;
    Layer layer = {.kind = LayerKind::Conv, .space = {x[0], x[1], h, w, r, s, n}};
    layer.filter = {n, x[1], r, s};
    layer.pointwise = pointwise;
    return add(layer, {in}, {x[0], n, h, w});
  }
  Value pool(const Value& in, int64_t r, int64_t stride, int64_t pad) {
    const Extents& x = in.shape;
    const Extents out = {x[0], x[1], (x[2] + 2 * pad - r) / stride + 1,
                         (x[3] + 2 * pad - r) / stride + 1};
    Layer layer = {.kind = LayerKind::Pooling, .space = out};
    layer.filter = {r, r};
    return add(layer, {in}, out);
  }
  Value norm(const Value& in, int64_t axis) {
    Layer layer = {.kind = LayerKind::Norm, .space = in.shape};
    layer.axes = {axis};
    return add(layer, {in}, in.shape);
  }
  // Convolution and batch norm, which PaSE counts as a norm over axis 0.
  Value conv_norm(const Value& in, int64_t n, int64_t r, int64_t s, int64_t stride, int64_t pad_h,
                  int64_t pad_w) {
    return norm(conv(in, n, r, s, stride, pad_h, pad_w), 0);
  }
  Value conv_norm(const Value& in, int64_t n, int64_t r, int64_t stride = 1, int64_t pad = 0) {
    return conv_norm(in, n, r, r, stride, pad, pad);
  }
  Value concat(const std::vector<Value>& in) {
    Extents out = in[0].shape;
    out[1] = 0;
    for (const Value& value : in) out[1] += value.shape[1];
    Layer layer = {.kind = LayerKind::Concat, .space = out};
    layer.space[1] = 1;
    layer.axes = {1};
    return add(layer, in, out);
  }
  Value fully_connected(const Value& in, int64_t n, int64_t pointwise = 0) {
    Extents space(in.shape.begin(), in.shape.end() - 1), out = space;
    out.push_back(n);
    space.push_back(n);
    space.push_back(in.shape.back());
    Layer layer = {.kind = LayerKind::FullyConnected, .space = std::move(space)};
    layer.pointwise = pointwise;
    return add(layer, {in}, out);
  }
  Value flatten(const Value& in) {
    int64_t elements = 1;
    for (int64_t size : in.shape) elements *= size;
    const Value flat = add({.kind = LayerKind::Ravel, .space = in.shape}, {in}, Extents{elements});
    const Extents out = {in.shape[0], elements / in.shape[0]};
    return add({.kind = LayerKind::Unravel, .space = out}, {flat}, out);
  }
  Value mean_of_image(const Value& in) {
    Layer layer = {.kind = LayerKind::ReduceMean, .space = in.shape};
    layer.axes = {2, 3};
    return add(layer, {in}, {in.shape[0], in.shape[1]});
  }
  void cross_entropy(const Value& in) {
    add({.kind = LayerKind::SoftmaxCrossEntropy, .space = in.shape}, {in}, in.shape);
  }
  Value elementwise(const std::vector<Value>& in, int64_t pointwise = 0) {
    Layer layer = {.kind = LayerKind::Elementwise, .space = in[0].shape};
    layer.pointwise = pointwise;
    return add(layer, in, in[0].shape);
  }
  Value softmax(const Value& in) {
    Layer layer = {.kind = LayerKind::Softmax, .space = in.shape};
    layer.axes = {static_cast<int64_t>(in.shape.size()) - 1};
    return add(layer, {in}, in.shape);
  }
  Value einsum(const std::string& equation, const Value& first, const Value& second,
               int64_t pointwise = 0) {
    const EinsumLetters letters = einsum_letters(equation);
    const auto size_of = [&](char c) {
      const size_t at = letters.first.find(c);
      return at != std::string::npos ? first.shape[at] : second.shape[letters.second.find(c)];
    };
    Layer layer = {.kind = LayerKind::Einsum};
    layer.equation = equation;
    layer.pointwise = pointwise;
    for (char c : letters.space) layer.space.push_back(size_of(c));
    Extents out;
    for (char c : letters.output) out.push_back(size_of(c));
    return add(layer, {first, second}, out);
  }
  Value stack(const std::vector<Value>& in) {
    Extents out = in[0].shape;
    out.insert(out.begin(), static_cast<int64_t>(in.size()));
    Layer layer = {.kind = LayerKind::Stack, .space = out};
    layer.space[0] = 1;
    layer.axes = {0};
    return add(layer, in, out);
  }
  std::vector<Value> unstack(const Value& in) {
    Layer layer = {.kind = LayerKind::Unstack, .space = in.shape};
    layer.space[0] = 1;
    layer.axes = {0};
    const Extents out(in.shape.begin() + 1, in.shape.end());
    Value first = add(layer, {in}, out);
    std::vector<Value> values;
    for (int64_t i = 0; i < in.shape[0]; ++i) {
      if (i > 0) graph_.layers.back().outputs.push_back(out);
      first.output = static_cast<size_t>(i);
      values.push_back(first);
    }
    return values;
  }
  Value lstm(const Value& in, int64_t units, int64_t layers) {
    Layer layer = {.kind = LayerKind::Lstm,
                   .space = {layers, in.shape[1], in.shape[0], units, units}};
    layer.units = units;
    layer.layers = layers;
    return add(layer, {in}, in.shape);
  }

  LayerGraph take() { return std::move(graph_); }

 private:
  Value add(Layer layer, const std::vector<Value>& in, const Extents& out) {
    const size_t id = graph_.layers.size();
    for (size_t i = 0; i < in.size(); ++i) {
      layer.inputs.push_back(in[i].shape);
      if (in[i].vertex != SIZE_MAX) graph_.edges.push_back({in[i].vertex, in[i].output, id, i});
    }
    layer.outputs = {out};
    graph_.layers.push_back(std::move(layer));
    return {id, 0, out};
  }

  LayerGraph graph_;
};

LayerGraph alexnet(int64_t batch) {
  Builder b("alexnet", batch, 4);
  Value x = b.conv(Builder::data({batch, 3, 227, 227}), 96, 11, 11, 4, 0, 0, 1);
  x = b.conv(b.pool(x, 3, 2, 0), 256, 5, 5, 1, 2, 2, 1);
  x = b.pool(x, 3, 2, 0);
  for (int64_t n : {384, 384, 256}) x = b.conv(x, n, 3, 3, 1, 1, 1, 1);
  x = b.flatten(b.pool(x, 3, 2, 0));
  x = b.fully_connected(b.fully_connected(x, 4096, 1), 4096, 1);
  b.cross_entropy(b.fully_connected(x, 1024));
  return b.take();
}

Value inception_a(Builder& b, const Value& x, int64_t pool_features) {
  const Value one = b.conv_norm(x, 64, 1);
  const Value five = b.conv_norm(b.conv_norm(x, 48, 1), 64, 5, 1, 2);
  const Value three = b.conv_norm(b.conv_norm(b.conv_norm(x, 64, 1), 96, 3, 1, 1), 96, 3, 1, 1);
  const Value pooled = b.conv_norm(b.pool(x, 3, 1, 1), pool_features, 1);
  return b.concat({one, five, three, pooled});
}

Value inception_b(Builder& b, const Value& x) {
  const Value three = b.conv_norm(x, 384, 3, 2);
  const Value twice = b.conv_norm(b.conv_norm(b.conv_norm(x, 64, 1), 96, 3, 1, 1), 96, 3, 2);
  return b.concat({three, twice, b.pool(x, 3, 2, 0)});
}

Value inception_c(Builder& b, const Value& x, int64_t n) {
  const Value one = b.conv_norm(x, 192, 1);
  Value seven = b.conv_norm(b.conv_norm(x, n, 1), n, 1, 7, 1, 0, 3);
  seven = b.conv_norm(seven, 192, 7, 1, 1, 3, 0);
  Value twice = b.conv_norm(b.conv_norm(x, n, 1), n, 7, 1, 1, 3, 0);
  twice = b.conv_norm(b.conv_norm(twice, n, 1, 7, 1, 0, 3), n, 7, 1, 1, 3, 0);
  twice = b.conv_norm(twice, 192, 1, 7, 1, 0, 3);
  const Value pooled = b.conv_norm(b.pool(x, 3, 1, 1), 192, 1);
  return b.concat({one, seven, twice, pooled});
}

Value inception_d(Builder& b, const Value& x) {
  const Value three = b.conv_norm(b.conv_norm(x, 192, 1), 320, 3, 2);
  Value seven = b.conv_norm(b.conv_norm(x, 192, 1), 192, 1, 7, 1, 0, 3);
  seven = b.conv_norm(b.conv_norm(seven, 192, 7, 1, 1, 3, 0), 192, 3, 2);
  return b.concat({three, seven, b.pool(x, 3, 2, 0)});
}

Value inception_e(Builder& b, const Value& x) {
  const auto both = [&](const Value& in) {
    const Value wide = b.conv_norm(in, 384, 1, 3, 1, 0, 1);
    const Value high = b.conv_norm(in, 384, 3, 1, 1, 1, 0);
    return b.concat({wide, high});
  };
  const Value one = b.conv_norm(x, 320, 1);
  const Value three = both(b.conv_norm(x, 384, 1));
  const Value twice = both(b.conv_norm(b.conv_norm(x, 448, 1), 384, 3, 1, 1));
  const Value pooled = b.conv_norm(b.pool(x, 3, 1, 1), 192, 1);
  return b.concat({one, three, twice, pooled});
}

LayerGraph inception_v3(int64_t batch) {
  Builder b("inception3", batch, 4);
  Value x = b.conv_norm(Builder::data({batch, 3, 299, 299}), 32, 3, 2);
  x = b.conv_norm(b.conv_norm(x, 32, 3), 64, 3, 1, 1);
  x = b.conv_norm(b.conv_norm(b.pool(x, 3, 2, 0), 80, 1), 192, 3);
  x = b.pool(x, 3, 2, 0);
  for (int64_t features : {32, 64, 64}) x = inception_a(b, x, features);
  x = inception_b(b, x);
  for (int64_t n : {128, 160, 160, 192}) x = inception_c(b, x, n);
  x = inception_e(b, inception_e(b, inception_d(b, x)));
  b.cross_entropy(b.fully_connected(b.mean_of_image(x), 1000));
  return b.take();
}

LayerGraph rnnlm(int64_t batch) {
  constexpr int64_t kWords = 100000, kUnits = 2048, kSequence = 256;
  Builder b("rnnlm", batch, 1);
  Value x = b.einsum("abc,cd->abd", Builder::data({batch, kSequence, kWords}),
                     Builder::data({kWords, kUnits}));
  b.cross_entropy(b.fully_connected(b.lstm(x, kUnits, 2), kWords));
  return b.take();
}

// A transformer of six encoder and six decoder layers.
class TransformerBuilder {
 public:
  explicit TransformerBuilder(int64_t batch) : b_("transformer", batch, 1), batch_(batch) {}

  LayerGraph run() {
    constexpr int kLayers = 6;
    Value memory = embed();
    for (int i = 0; i < kLayers; ++i) memory = feed_forward(attend(memory, nullptr));
    Value x = embed();
    for (int i = 0; i < kLayers; ++i) x = feed_forward(attend(attend(x, nullptr), &memory));
    b_.cross_entropy(b_.einsum("ble,ev->blv", x, Builder::data({kModel, kWords})));
    return b_.take();
  }

 private:
  static constexpr int64_t kSequence = 256, kWords = 50000, kModel = 512, kHeads = 8, kHead = 64,
                           kHidden = 2048;

  Value embed() {
    const Value x = b_.einsum("abc,cd->abd", Builder::data({batch_, kSequence, kWords}),
                              Builder::data({kWords, kModel}));
    return b_.elementwise({x, Builder::data(x.shape)});
  }
  Value attend(const Value& x, const Value* memory) {
    const Value weights = Builder::data({3, kHeads, kModel, kHead});
    const Value qkv = memory == nullptr
                          ? b_.einsum("ble,shek->sbhlk", x, weights)
                          : b_.einsum("sble,shek->sbhlk", b_.stack({x, *memory, *memory}), weights);
    const std::vector<Value> parts = b_.unstack(qkv);
    const Value scores = b_.softmax(b_.einsum("bhlk,bhmk->bhlm", parts[0], parts[1]));
    const Value mixed = b_.einsum("bhlm,bhmk->bhlk", scores, parts[2]);
    const Value out = b_.einsum("bhlk,hek->ble", mixed, Builder::data({kHeads, kModel, kHead}));
    return b_.norm(b_.elementwise({x, out}), 2);
  }
  Value feed_forward(const Value& x) {
    const Value wide = b_.einsum("ble,ef->blf", x, Builder::data({kModel, kHidden}), 2);
    const Value out = b_.einsum("blf,fe->ble", wide, Builder::data({kHidden, kModel}));
    return b_.norm(b_.elementwise({x, out}), 2);
  }

  Builder b_;
  int64_t batch_;
};

LayerGraph transformer(int64_t batch) { return TransformerBuilder(batch).run(); }

LayerGraph resnet_101(int64_t batch) {
  Builder b("resnet101", batch, 4);
  Value x = b.conv_norm(Builder::data({batch, 3, 227, 227}), 64, 7, 2, 3);
  x = b.pool(x, 3, 2, 1);
  int64_t width = 64;
  for (const int blocks : {3, 4, 23, 3}) {
    for (int i = 0; i < blocks; ++i) {
      const int64_t stride = i == 0 && width > 64 ? 2 : 1;
      Value y = b.conv_norm(b.conv_norm(x, width, 1), width, 3, stride, 1);
      y = b.conv_norm(y, 4 * width, 1);
      const Value shortcut = i == 0 ? b.conv_norm(x, 4 * width, 1, stride) : x;
      x = b.elementwise({y, shortcut}, 1);
    }
    width *= 2;
  }
  b.cross_entropy(b.fully_connected(b.mean_of_image(x), 1000));
  return b.take();
}

// Huang et al. 2017: every layer of a block reads what all layers before it made.
LayerGraph densenet_121(int64_t batch) {
  constexpr int64_t kGrowth = 32;
  Builder b("densenet121", batch, 4);
  Value x = b.conv_norm(Builder::data({batch, 3, 224, 224}), 64, 7, 2, 3);
  x = b.pool(x, 3, 2, 1);
  const std::vector<int> blocks = {6, 12, 24, 16};
  for (size_t k = 0; k < blocks.size(); ++k) {
    std::vector<Value> features = {x};
    for (int i = 0; i < blocks[k]; ++i) {
      const Value all = features.size() == 1 ? x : b.concat(features);
      const Value narrow = b.norm(b.conv(b.norm(all, 0), 4 * kGrowth, 1, 1, 1, 0, 0), 0);
      features.push_back(b.conv(narrow, kGrowth, 3, 3, 1, 1, 1));
    }
    x = b.norm(b.concat(features), 0);
    if (k + 1 == blocks.size()) break;
    x = b.conv(x, x.shape[1] / 2, 1, 1, 1, 0, 0);
    x = b.pool(x, 2, 2, 0);
  }
  b.cross_entropy(b.fully_connected(b.mean_of_image(x), 1000));
  return b.take();
}

struct Network {
  std::string_view name;
  int64_t batch;
  LayerGraph (*build)(int64_t batch);
};
constexpr Network kNetworks[] = {
    {"alexnet", 128, alexnet},
    {"inception-v3", 128, inception_v3},
    {"rnnlm", 64, rnnlm},
    {"transformer", 64, transformer},
    {"resnet-101", 128, resnet_101},
    {"densenet-121", 128, densenet_121},
};

}  // namespace

std::vector<std::string_view> pase_network_names() {
  std::vector<std::string_view> names;
  for (const Network& network : kNetworks) names.push_back(network.name);
  return names;
}

std::optional<LayerGraph> pase_network(std::string_view name, int64_t batch) {
  for (const Network& network : kNetworks)
    if (network.name == name) return network.build(batch > 0 ? batch : network.batch);
  return std::nullopt;
}

}  // namespace windlass

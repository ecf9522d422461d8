// Random networks of a few ops for tests: layers of MLPs, of CNNs and of transformers, with
// residual sums, products, views of activations, data and weights, halves that are read apart,
// dropout, statistics, tied weights.
#pragma once

#include <random>

#include "windlass/base/error.h"
#include "windlass/plan/cases.h"

namespace windlass::cases {

class SmallNetwork {
 public:
  explicit SmallNetwork(std::mt19937_64& random) : random_(random), net_("small") {}

  // Throws Error if what was drawn is no network.
  Graph draw(size_t most_ops) {
    const int64_t batch = any({2, 4, 8});
    switch (pick(3)) {
      case 0: x_ = net_.b.input("x", f32({batch, any({6, 8, 16})})); break;
      case 1: x_ = net_.b.input("x", f32({batch, any({3, 4}), any({8, 16})})); break;
      default: x_ = net_.b.input("x", f32({batch, any({3, 4}), any({4, 8}), 4})); break;
    }
    const size_t steps = 1 + pick(most_ops);
    for (size_t i = 0; i < steps; ++i) {
      made_.push_back(x_);
      step(std::to_string(i));
    }
    if (pick(2) == 0) {
      net_.b.set_output(x_);
      net_.b.attach_mean_squared_error(x_);
      return net_.b.finish();
    }
    if (net_.b.shape(x_).size() != 2) flatten("end");
    return net_.finish(pick(2) == 0 ? x_ : net_.linear(x_, any({4, 16}), "head"));
  }

 private:
  size_t pick(size_t count) { return random_() % count; }
  int64_t any(std::vector<int64_t> sizes) { return sizes[pick(sizes.size())]; }
  const Shape& shape() const { return net_.b.shape(x_); }

  void step(const std::string& name) {
    const size_t kind = pick(12);
    if (shape().size() == 4 && kind < 4) return image(kind, name);
    switch (kind) {
      case 0:
      case 1: x_ = net_.linear(x_, any({4, 8, 16, shape().back()}), name + ".linear"); break;
      case 2: x_ = net_.norm(x_, name + ".norm"); break;
      case 3: one_by_one(UnaryFn::Gelu, name); break;
      case 4: one_by_one(pick(2) == 0 ? UnaryFn::Relu : UnaryFn::Tanh, name); break;
      case 5: x_ = net_.b.op(OpKind::Dropout, DropoutAttrs{.ratio = 0.3}, {x_}, name); break;
      case 6: with_another(BinaryFn::Add, name); break;
      case 7: with_another(BinaryFn::Mul, name); break;
      case 8: flatten(name); break;
      case 9: halves(name); break;
      case 10: weight_again(name); break;
      default:
        x_ = net_.b.op(OpKind::Softmax,
                       SoftmaxAttrs{.axis = static_cast<int64_t>(shape().size()) - 1}, {x_}, name);
    }
  }

  void image(size_t kind, const std::string& name) {
    if (kind < 2) {
      x_ = net_.conv(x_, any({4, 8}), name);
    } else if (kind == 2) {
      const int64_t channels = shape()[1];
      x_ = net_.b.op(OpKind::BatchNorm, BatchNormAttrs{},
                     {x_, net_.b.weight(name + ".scale", f32({channels})),
                      net_.b.weight(name + ".bias", f32({channels})),
                      net_.b.buffer(name + ".mean", f32({channels})),
                      net_.b.buffer(name + ".var", f32({channels}))},
                     name);
    } else if (pick(2) == 0) {
      x_ = net_.b.op(OpKind::Attention, AttentionAttrs{.scale = 0.5, .causal = pick(2) == 0},
                     {x_, x_, x_}, name);
    } else {
      x_ = net_.b.op(OpKind::Pool,
                     PoolAttrs{.fn = PoolFn::Max,
                               .kernel = {2, 2},
                               .stride = {2, 2},
                               .dilation = {1, 1},
                               .pad_begin = {0, 0},
                               .pad_end = {0, 0}},
                     {x_}, name);
    }
  }

  void one_by_one(UnaryFn fn, const std::string& name) {
    x_ = net_.b.op(OpKind::Unary, UnaryAttrs{.fn = fn}, {x_}, name);
  }

  void with_another(BinaryFn fn, const std::string& name) {
    TensorId other = x_;
    for (TensorId id : made_)
      if (net_.b.shape(id) == shape() && pick(2) == 0) other = id;
    x_ = net_.b.op(OpKind::Binary, BinaryAttrs{.fn = fn}, {x_, other}, name);
  }

  void flatten(const std::string& name) {
    int64_t rest = 1;
    for (size_t a = 1; a < shape().size(); ++a) rest *= shape()[a];
    const Shape to = shape().size() > 2 ? Shape{shape()[0], rest}
                     : rest % 4 == 0    ? Shape{shape()[0], rest / 4, 4}
                                        : Shape{shape()[0], 1, rest};
    x_ = net_.reshape(x_, to, name + ".view");
  }

  void halves(const std::string& name) {
    const auto axis = static_cast<int64_t>(shape().size()) - 1;
    const int64_t half = shape().back() / 2;
    if (shape().back() % 2 != 0) return;
    const auto parts = net_.b.add(OpKind::Split, SplitAttrs{axis, {half, half}}, {x_}, name);
    TensorId second = parts[1];
    if (pick(2) == 0) second = net_.relu(second, name + ".second");
    x_ = net_.b.op(OpKind::Binary, BinaryAttrs{.fn = BinaryFn::Mul}, {parts[0], second},
                   name + ".join");
  }

  // A square weight, now and then as a view of a flat one; a second time it is the same.
  void weight_again(const std::string& name) {
    const int64_t size = shape().back();
    if (!square_.valid() || net_.b.shape(square_)[0] != size)
      square_ = pick(3) == 0 ? net_.reshape(net_.b.weight(name + ".flat", f32({size * size})),
                                            {size, size}, name + ".square")
                             : net_.b.weight(name + ".weight", f32({size, size}));
    x_ = net_.b.op(OpKind::Linear, LinearAttrs{}, {x_, square_}, name);
  }

  std::mt19937_64& random_;
  Net net_;
  TensorId x_, square_;
  std::vector<TensorId> made_;
};

// With 2 to `most_ops` ops.
inline Graph small_network(std::mt19937_64& random, size_t most_ops = 6) {
  for (;;) try {
      Graph graph = SmallNetwork(random).draw(most_ops);
      if (graph.ops.size() < 2 || graph.ops.size() > most_ops) continue;
      differentiate(graph);
      return graph;
    } catch (const Error&) {
    }
}

}  // namespace windlass::cases

// More small networks for tests: of each family that people train, one that the slow executor can
// carry out quickly.
#pragma once

#include "windlass/plan/cases.h"

namespace windlass::cases {

// Attention of single ops, with dropout of the scores and of what is added to the residual.
inline Graph unfused_transformer(int64_t batch = 2) {
  constexpr int64_t kSequence = 4, kHidden = 8, kHeads = 2, kVocabulary = 16;
  Net net("unfused");
  const TensorId ids = net.b.input("ids", {DType::I64, {batch, kSequence}});
  const TensorId table = net.b.weight("embedding", f32({kVocabulary, kHidden}));
  TensorId x = net.b.op(OpKind::Embedding, NoAttrs{}, {ids, table}, "embed");
  const auto dropout = [&](TensorId from, const std::string& name) {
    return net.b.op(OpKind::Dropout, DropoutAttrs{0.3}, {from}, name);
  };
  const auto turn = [&](TensorId from, const std::string& name) {
    return net.b.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {from}, name);
  };
  const TensorId n = net.norm(x, "norm1");
  const TensorId joined = net.linear(n, 3 * kHidden, "qkv");
  const auto parts =
      net.b.add(OpKind::Split, SplitAttrs{2, {kHidden, kHidden, kHidden}}, {joined}, "parts");
  const auto heads = [&](size_t part, const std::string& name) {
    return turn(net.reshape(parts[part], {batch, kSequence, kHeads, kHidden / kHeads}, name),
                name + ".turn");
  };
  TensorId scores = net.b.op(OpKind::MatMul, MatMulAttrs{.transpose_b = true},
                             {heads(0, "q"), heads(1, "k")}, "scores");
  scores = net.b.op(OpKind::Softmax, SoftmaxAttrs{.axis = 3}, {scores}, "softmax");
  TensorId y = net.b.op(OpKind::MatMul, MatMulAttrs{},
                        {dropout(scores, "softmax.dropout"), heads(2, "v")}, "mixed");
  y = net.reshape(turn(y, "back"), {batch, kSequence, kHidden}, "join");
  x = net.add(x, dropout(net.linear(y, kHidden, "out"), "out.dropout"), "add1");
  TensorId z = net.linear(net.norm(x, "norm2"), 2 * kHidden, "up");
  z = net.b.op(OpKind::Unary, UnaryAttrs{.fn = UnaryFn::Tanh}, {z}, "tanh");
  x = net.add(x, net.linear(z, kHidden, "down"), "add2");
  return net.finish(net.b.op(OpKind::Linear, LinearAttrs{}, {net.norm(x, "norm"), table}, "head"));
}

// Two layers over time, the second one in both directions and from the states of the first.
inline Graph lstm(int64_t batch = 3, bool batch_first = false) {
  constexpr int64_t kSteps = 3, kHidden = 4;
  Net net("lstm");
  TensorId x = net.b.input("x", batch_first ? f32({batch, kSteps, 6}) : f32({kSteps, batch, 6}));
  if (batch_first) x = net.b.op(OpKind::Transpose, TransposeAttrs{{1, 0, 2}}, {x}, "steps_first");
  const auto layer = [&](TensorId from, int64_t directions, const std::string& name) {
    const int64_t in = net.b.shape(from)[2];
    return net.b.add(OpKind::Lstm,
                     RecurrentAttrs{.hidden = kHidden, .bidirectional = directions == 2},
                     {from, net.b.weight(name + ".ih", f32({directions, 4 * kHidden, in})),
                      net.b.weight(name + ".hh", f32({directions, 4 * kHidden, kHidden})),
                      net.b.weight(name + ".bias", f32({directions, 8 * kHidden}))},
                     name);
  };
  const auto first = layer(x, 1, "first");
  x = net.reshape(first[0], {kSteps, batch, kHidden}, "join");
  x = net.b.op(OpKind::Dropout, DropoutAttrs{0.2}, {x}, "dropout");
  const auto second = layer(x, 2, "second");
  x = net.b.op(OpKind::Transpose, TransposeAttrs{{2, 0, 1, 3}}, {second[0]}, "turn");
  x = net.reshape(x, {batch, kSteps * 2 * kHidden}, "flat");
  const TensorId last = net.reshape(first[1], {batch, kHidden}, "last");
  return net.finish(net.add(net.linear(x, 16, "head"), net.linear(last, 16, "skip"), "sum"));
}

// Two of three experts for each token.
inline Graph mixture(int64_t batch = 4) {
  constexpr int64_t kExperts = 3, kHidden = 6, kInner = 4;
  Net net("mixture");
  TensorId x = net.b.input("x", f32({batch, 8}));
  x = net.relu(net.linear(x, kHidden, "in"), "in.relu");
  const TensorId logits = net.linear(x, kExperts, "gate");
  const auto routed = net.b.add(OpKind::Route, RouteAttrs{.top_k = 2}, {logits}, "route");
  const auto experts = [&](TensorId from, int64_t out, const std::string& name) {
    const TensorId w =
        net.b.weight(name + ".weight", f32({kExperts, out, net.b.shape(from).back()}));
    return net.b.op(OpKind::GroupedLinear, NoAttrs{}, {from, w, routed[1]}, name);
  };
  TensorId rows =
      net.b.op(OpKind::Unary, UnaryAttrs{.fn = UnaryFn::Tanh}, {experts(x, kInner, "up")}, "act");
  rows = experts(rows, kHidden, "down");
  const TensorId y = net.b.op(OpKind::Combine, NoAttrs{}, {rows, routed[0]}, "combine");
  return net.finish(net.linear(net.add(x, y, "add"), 16, "head"));
}

// Sequences: causal attention with dropout of its scores, dropout of what is added, and two of four
// experts for each token.
inline Graph sequences(int64_t batch = 4, int64_t length = 8) {
  constexpr int64_t kHidden = 8, kInner = 6, kHeads = 2, kVocabulary = 16, kExperts = 4;
  Net net("sequences");
  const TensorId ids = net.b.input("ids", {DType::I64, {batch, length}});
  const TensorId table = net.b.weight("embedding", f32({kVocabulary, kHidden}));
  TensorId x = net.b.op(OpKind::Embedding, NoAttrs{}, {ids, table}, "embed");
  const TensorId n = net.norm(x, "norm1");
  const auto heads = [&](const std::string& part) {
    const TensorId y = net.reshape(net.linear(n, kHidden, part),
                                   {batch, length, kHeads, kHidden / kHeads}, part + ".heads");
    return net.b.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, part + ".turn");
  };
  TensorId y =
      net.b.op(OpKind::Attention, AttentionAttrs{.scale = 0.5, .causal = true, .dropout = 0.2},
               {heads("q"), heads("k"), heads("v")}, "attention");
  y = net.b.op(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, "back");
  y = net.linear(net.reshape(y, {batch, length, kHidden}, "join"), kHidden, "out");
  x = net.add(x, net.b.op(OpKind::Dropout, DropoutAttrs{0.3}, {y}, "out.dropout"), "add1");
  const TensorId tokens = net.reshape(net.norm(x, "norm2"), {batch * length, kHidden}, "tokens");
  const auto routed = net.b.add(OpKind::Route, RouteAttrs{.top_k = 2},
                                {net.linear(tokens, kExperts, "gate")}, "route");
  const auto experts = [&](TensorId from, int64_t out, const std::string& name) {
    const TensorId w =
        net.b.weight(name + ".weight", f32({kExperts, out, net.b.shape(from).back()}));
    return net.b.op(OpKind::GroupedLinear, NoAttrs{}, {from, w, routed[1]}, name);
  };
  const TensorId gate = net.b.op(OpKind::Unary, UnaryAttrs{.fn = UnaryFn::Sigmoid},
                                 {experts(tokens, kInner, "w1")}, "act");
  const TensorId rows = net.b.op(OpKind::Binary, BinaryAttrs{.fn = BinaryFn::Mul},
                                 {gate, experts(tokens, kInner, "w3")}, "gated");
  y = net.b.op(OpKind::Combine, NoAttrs{}, {experts(rows, kHidden, "w2"), routed[0]}, "combine");
  x = net.add(x, net.reshape(y, {batch, length, kHidden}, "whole"), "add2");
  return net.finish(net.linear(net.norm(x, "norm"), kVocabulary, "head"));
}

// One of four experts for each token, and little else.
inline Graph wide_mixture(int64_t batch = 4, int64_t length = 1024) {
  constexpr int64_t kExperts = 4, kHidden = 256, kInner = 4096;
  Net net("wide mixture");
  const TensorId all = net.linear(net.b.input("x", f32({batch, length, 8})), kHidden, "in");
  const TensorId x = net.reshape(all, {batch * length, kHidden}, "tokens");
  const auto routed =
      net.b.add(OpKind::Route, RouteAttrs{.top_k = 1}, {net.linear(x, kExperts, "gate")}, "route");
  const auto experts = [&](TensorId from, int64_t out, const std::string& name) {
    const TensorId w =
        net.b.weight(name + ".weight", f32({kExperts, out, net.b.shape(from).back()}));
    return net.b.op(OpKind::GroupedLinear, NoAttrs{}, {from, w, routed[1]}, name);
  };
  const TensorId rows = experts(net.relu(experts(x, kInner, "up"), "relu"), kHidden, "down");
  TensorId y = net.b.op(OpKind::Combine, NoAttrs{}, {rows, routed[0]}, "combine");
  y = net.reshape(y, {batch, length, kHidden}, "whole");
  return net.finish(net.linear(net.add(all, y, "add"), 16, "head"));
}

// Down and up again, with a skip over the middle; group norms.
inline Graph unet(int64_t batch = 2) {
  Net net("unet");
  const auto norm = [&](TensorId x, const std::string& name) {
    const int64_t channels = net.b.shape(x)[1];
    return net.b.op(OpKind::GroupNorm, GroupNormAttrs{.groups = 2},
                    {x, net.b.weight(name + ".scale", f32({channels})),
                     net.b.weight(name + ".bias", f32({channels}))},
                    name);
  };
  const TensorId image = net.b.input("x", f32({batch, 2, 8, 8}));
  const TensorId top = norm(net.conv(image, 4, "down0"), "norm0");
  TensorId x = net.b.op(OpKind::Pool,
                        PoolAttrs{.fn = PoolFn::Average,
                                  .kernel = {2, 2},
                                  .stride = {2, 2},
                                  .dilation = {1, 1},
                                  .pad_begin = {0, 0},
                                  .pad_end = {0, 0}},
                        {top}, "pool");
  x = norm(net.conv(x, 6, "down1"), "norm1");
  x = net.b.op(OpKind::Conv,
               ConvAttrs{.stride = {2, 2},
                         .dilation = {1, 1},
                         .pad_begin = {0, 0},
                         .pad_end = {0, 0},
                         .output_padding = {0, 0},
                         .transposed = true},
               {x, net.b.weight("up.weight", f32({6, 4, 2, 2})), net.b.weight("up.bias", f32({4}))},
               "up");
  x = net.b.op(OpKind::Concat, AxisAttrs{1}, {top, x}, "skip");
  x = net.conv(x, 4, "last");
  x = net.b.op(OpKind::Resize, ResizeAttrs{.size = {16, 8}}, {x}, "stretch");
  net.b.set_output(x);
  net.b.attach_mean_squared_error(x);
  return net.b.finish();
}

// A constant that is there for each sample, and weights that are added to all of them; the loss is
// a mean of squares, with a term that has no samples.
inline Graph repeated(int64_t batch = 4) {
  Net net("repeated");
  TensorId x = net.b.input("x", f32({batch, 6}));
  std::vector<double> values;
  for (int64_t i = 0; i < batch * 6; ++i) values.push_back(0.1 * static_cast<double>(i % 6));
  x = net.add(x, net.b.constant("start", f32({batch, 6}), values), "begun");
  const TensorId shift = net.b.weight("shift", f32({1, 6}));
  x = net.relu(net.linear(net.add(x, shift, "shifted"), 10, "first"), "relu");
  x = net.b.op(OpKind::Dropout, DropoutAttrs{0.3}, {x}, "dropout");
  x = net.linear(x, 6, "second");
  const auto mean = [&](TensorId of, const std::string& name) {
    const TensorId squares =
        net.b.op(OpKind::Binary, BinaryAttrs{.fn = BinaryFn::Mul}, {of, of}, name + ".squares");
    return net.b.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, {0, 1}, false}, {squares}, name);
  };
  net.b.set_output(x);
  net.b.set_loss(net.add(mean(x, "mean"), mean(shift, "decay"), "loss"));
  return net.b.finish();
}

// Weights that are first read in parts: rows of a table of positions, some of them more than once,
// others never, and a pattern under windows that overlap.
inline Graph positions(int64_t batch = 2) {
  constexpr int64_t kSequence = 4, kHidden = 8, kRows = 9, kVocabulary = 16;
  Net net("positions");
  const TensorId ids = net.b.input("ids", {DType::I64, {batch, kSequence}});
  const TensorId tokens = net.b.weight("embedding", f32({kVocabulary, kHidden}));
  TensorId x = net.b.op(OpKind::Embedding, NoAttrs{}, {ids, tokens}, "embed");
  const TensorId table = net.b.weight("table", f32({kRows, kHidden}));
  const auto add_rows = [&](int64_t first, int64_t step, const std::string& name) {
    const SliceAttrs attrs{.start = {first, 0}, .step = {step, 1}, .size = {kSequence, kHidden}};
    x = net.add(x, net.b.op(OpKind::Slice, attrs, {table}, name), name + ".add");
  };
  add_rows(0, 1, "rows");
  const TensorId pattern = net.b.weight("pattern", f32({1, 2, kSequence, kHidden}));
  x = net.add(x, net.reshape(net.conv(pattern, 1, "windows"), {kSequence, kHidden}, "flat"),
              "windows.add");
  x = net.linear(net.norm(x, "norm1"), kHidden, "mix");
  add_rows(1, 2, "sparse");
  add_rows(3, 1, "later");
  return net.finish(net.linear(net.norm(x, "norm2"), kVocabulary, "head"));
}

// Noise is added to the activations.
inline Graph noisy(int64_t batch = 4) {
  Net net("noisy");
  TensorId x = net.b.input("x", f32({batch, 6}));
  x = net.linear(x, 10, "first");
  const TensorId noise = net.b.op(
      OpKind::Random, RandomAttrs{.fn = RandomFn::Normal, .shape = {batch, 10}}, {}, "noise");
  x = net.relu(net.add(x, noise, "sum"), "relu");
  return net.finish(net.linear(x, 16, "head"));
}

}  // namespace windlass::cases

// Attention over several blocks of queries and heads, against the same written out with ATen.

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "windlass/base/philox.h"
#include "windlass/runtime/kernels/exponential.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/random.h"

namespace windlass {
namespace {

constexpr RandomKey kKey{21, 22};

at::Tensor normal(const Shape& shape, uint64_t stream) {
  at::Tensor x = at::empty(shape, at::kFloat);
  fill_normal({20, stream}, 0, 1, x);
  return x;
}

struct Example {
  int64_t batch, heads, key_heads, queries, keys;
  AttentionAttrs attrs;
};

struct Outcome {
  at::Tensor y, lse, dq, dk, dv;
};

Outcome run(const Example& e, const std::vector<at::Tensor>& inputs, const at::Tensor& dy) {
  const Attrs attrs = e.attrs;
  std::vector<TensorType> types;
  for (const at::Tensor& x : inputs)
    types.push_back({DType::F32, Shape(x.sizes().begin(), x.sizes().end())});
  const Shape rows = {e.batch, e.heads, e.queries};
  std::vector<Result> outputs = {Result({DType::F32, {e.batch, e.heads, e.queries, 24}})};
  std::vector<Result> auxiliaries = {Result({DType::F32, rows})};
  ForwardCall forward{OpKind::Attention, attrs, inputs, outputs, auxiliaries, kKey};
  run_forward(forward);
  Outcome result;
  result.y = outputs[0].tensor();
  result.lse = auxiliaries[0].tensor();
  using Source = SavedRef::Source;
  const std::vector<SavedRef> refs = {{Source::Input, 0},
                                      {Source::Input, 1},
                                      {Source::Input, 2},
                                      {Source::Output, 0},
                                      {Source::Auxiliary, 0}};
  std::vector<at::Tensor> saved = inputs;
  saved.insert(saved.end(), {result.y, result.lse});
  const std::vector<at::Tensor> gradients = {dy};
  std::vector<Result> results = {Result(types[0]), Result(types[1]), Result(types[2])};
  BackwardCall backward{OpKind::Attention, attrs, types, gradients, refs, saved, results, kKey};
  run_backward(backward);
  result.dq = results[0].tensor();
  result.dk = results[1].tensor();
  result.dv = results[2].tensor();
  return result;
}

// In fp64, with all scores at once.
Outcome written_out(const Example& e, const std::vector<at::Tensor>& inputs, const at::Tensor& dy) {
  const int64_t shared = e.heads / e.key_heads;
  const at::Tensor q = inputs[0].to(at::kDouble), g = dy.to(at::kDouble);
  const at::Tensor k = inputs[1].to(at::kDouble).repeat_interleave(shared, 1);
  const at::Tensor v = inputs[2].to(at::kDouble).repeat_interleave(shared, 1);
  at::Tensor s = at::matmul(q, k.transpose(-1, -2)) * e.attrs.scale;
  const at::Tensor position = at::arange(e.queries).unsqueeze(1) + (e.keys - e.queries);
  const at::Tensor key = at::arange(e.keys).unsqueeze(0);
  at::Tensor hidden = at::zeros({e.queries, e.keys}, at::kBool);
  if (e.attrs.causal) hidden = at::logical_or(hidden, key > position);
  if (e.attrs.window > 0) hidden = at::logical_or(hidden, key <= position - e.attrs.window);
  s = s.masked_fill(hidden, -INFINITY);
  const at::Tensor p = at::nan_to_num(at::softmax(s, -1), 0.0);
  at::Tensor f = at::ones_like(p);
  if (e.attrs.dropout > 0) {
    auto* data = f.data_ptr<double>();
    for (int64_t i = 0; i < f.numel(); ++i) {
      const auto index = static_cast<uint64_t>(i);
      const bool drop = random_chance(kKey.seed, kKey.stream, index, e.attrs.dropout);
      data[i] = drop ? 0 : 1 / (1 - e.attrs.dropout);
    }
  }
  Outcome r;
  r.y = at::matmul(p * f, v);
  r.lse = at::logsumexp(s, {-1});
  const at::Tensor dp = at::matmul(g, v.transpose(-1, -2)) * f;
  const at::Tensor ds = p * (dp - (g * r.y).sum(-1, true));
  const auto joined = [&](const at::Tensor& x) {
    return x.view({e.batch, e.key_heads, shared, e.keys, -1}).sum(2);
  };
  r.dq = at::matmul(ds, k) * e.attrs.scale;
  r.dk = joined(at::matmul(ds.transpose(-1, -2), q) * e.attrs.scale);
  r.dv = joined(at::matmul((p * f).transpose(-1, -2), g));
  return r;
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.to(at::kDouble), y = b.to(at::kDouble);
  return at::where(x == y, at::zeros_like(x), (x - y).abs()).max().item<double>();
}

TEST(Attention, BlocksAgreeWithAllScoresAtOnce) {
  const std::vector<Example> examples = {
      {2, 3, 3, 300, 300, {0.2, true, 0, 0}},   {1, 2, 2, 300, 300, {0.2, true, 70, 0.3}},
      {1, 6, 2, 150, 150, {0.2, true, 0, 0.1}}, {1, 6, 2, 40, 50, {0.2, false, 0, 0.1}},
      {2, 4, 1, 1, 200, {0.2, true, 0, 0}},     {1, 2, 2, 200, 90, {0.2, true, 0, 0}},
      {1, 1, 1, 100, 5000, {0.2, false, 0, 0}}, {3, 7, 7, 64, 64, {0.2, false, 0, 0}},
      {1, 2, 1, 200, 200, {0.2, false, 33, 0}},
  };
  for (const Example& e : examples) {
    SCOPED_TRACE(fmt::format("{} {} {} {} {}", e.batch, e.heads, e.key_heads, e.queries, e.keys));
    const std::vector<at::Tensor> inputs = {normal({e.batch, e.heads, e.queries, 16}, 1),
                                            normal({e.batch, e.key_heads, e.keys, 16}, 2),
                                            normal({e.batch, e.key_heads, e.keys, 24}, 3)};
    const at::Tensor dy = normal({e.batch, e.heads, e.queries, 24}, 4);
    const Outcome found = run(e, inputs, dy), expected = written_out(e, inputs, dy);
    EXPECT_LE(distance(found.y, expected.y), 1e-5);
    EXPECT_LE(distance(found.lse, expected.lse), 1e-5);
    EXPECT_LE(distance(found.dq, expected.dq), 2e-5);
    EXPECT_LE(distance(found.dk, expected.dk), 1e-4);
    EXPECT_LE(distance(found.dv, expected.dv), 1e-4);
    const Outcome again = run(e, inputs, dy);
    EXPECT_TRUE(found.y.equal(again.y) && found.dq.equal(again.dq) && found.dk.equal(again.dk));
  }
}

TEST(Attention, ExponentialIsAccurate) {
  EXPECT_EQ(exp_negative(0.0f), 1.0f);
  EXPECT_EQ(exp_negative(-INFINITY), 0.0f);
  EXPECT_EQ(exp_negative(-1000.0f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_negative(NAN)));
  double worst = 0;
  for (float x = 0; x > -87; x -= 0.000917f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(exp_negative(x)) / exact - 1));
  }
  EXPECT_LE(worst, 2 * 0x1p-23);
}

}  // namespace
}  // namespace windlass

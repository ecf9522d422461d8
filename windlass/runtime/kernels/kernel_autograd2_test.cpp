// Attention, elementwise, layout, lookup, reduction, routing and loss kernels against autograd.

#include <gtest/gtest.h>
#include <torch/types.h>

#include "windlass/base/philox.h"
#include "windlass/runtime/kernels/autograd_peer.h"

namespace windlass {
namespace {

// 0 where an element is dropped, else what makes up for the dropped ones.
at::Tensor dropout_factors(RandomKey key, double ratio, at::IntArrayRef shape) {
  at::Tensor factors = torch::empty(shape);
  auto* data = factors.data_ptr<float>();
  for (int64_t i = 0; i < factors.numel(); ++i) {
    const bool drop = random_chance(key.seed, key.stream, static_cast<uint64_t>(i), ratio);
    data[i] = drop ? 0 : static_cast<float>(1 / (1 - ratio));
  }
  return factors;
}

Tensors softmax_peer(const PeerCall& call) {
  const auto& a = call.attrs<SoftmaxAttrs>();
  return {a.log ? torch::log_softmax(call.input(0), a.axis)
                : torch::softmax(call.input(0), a.axis)};
}

Tensors attention_peer(const PeerCall& call) {
  const auto& a = call.attrs<AttentionAttrs>();
  const at::Tensor& q = call.input(0);
  const int64_t shared = q.size(1) / call.input(1).size(1);
  const at::Tensor k = call.input(1).repeat_interleave(shared, 1);
  const at::Tensor v = call.input(2).repeat_interleave(shared, 1);
  const int64_t queries = q.size(2), keys = k.size(2);
  at::Tensor scores = torch::matmul(q, k.transpose(-1, -2)) * a.scale;
  if (call.has(3)) scores = scores + call.input(3);
  const at::Tensor position = torch::arange(queries).unsqueeze(1) + (keys - queries);
  const at::Tensor key = torch::arange(keys).unsqueeze(0);
  at::Tensor hidden = torch::zeros({queries, keys}, at::kBool);
  if (a.causal) hidden = hidden | (key > position);
  if (a.window > 0) hidden = hidden | (key <= position - a.window);
  scores = scores.masked_fill(hidden, -1e30);
  at::Tensor p = torch::softmax(scores, -1).masked_fill(hidden, 0);
  if (a.dropout > 0) p = p * dropout_factors(call.random, a.dropout, p.sizes());
  return {torch::matmul(p, v)};
}

Tensors rotary_peer(const PeerCall& call) {
  const auto& a = call.attrs<RotaryAttrs>();
  const at::Tensor& x = call.input(0);
  const int64_t half = a.dims / 2;
  const at::Tensor frequency =
      torch::pow(a.theta, torch::arange(half, at::kDouble) * (-2.0 / static_cast<double>(a.dims)));
  const at::Tensor angle = torch::outer(torch::arange(x.size(-2), at::kDouble), frequency);
  const at::Tensor cosine = angle.cos().to(at::kFloat), sine = angle.sin().to(at::kFloat);
  const at::Tensor turned = x.narrow(-1, 0, a.dims);
  const at::Tensor rest = x.narrow(-1, a.dims, x.size(-1) - a.dims);
  const auto pick = [&](int64_t which) {
    return a.interleaved ? turned.slice(-1, which, a.dims, 2)
                         : turned.narrow(-1, which * half, half);
  };
  const at::Tensor first = pick(0) * cosine - pick(1) * sine;
  const at::Tensor second = pick(1) * cosine + pick(0) * sine;
  const at::Tensor joined = a.interleaved ? torch::stack({first, second}, -1).flatten(-2)
                                          : torch::cat({first, second}, -1);
  return {torch::cat({joined, rest}, -1)};
}

at::Tensor unary_of(const UnaryAttrs& a, const at::Tensor& x) {
  switch (a.fn) {
    case UnaryFn::Identity: return x * 1;
    case UnaryFn::Relu: return torch::relu(x);
    case UnaryFn::LeakyRelu: return torch::where(x < 0, x * a.alpha, x);
    case UnaryFn::Elu: return torch::where(x < 0, torch::expm1(x) * a.alpha, x * a.beta);
    case UnaryFn::Clip: return torch::clamp(x, a.alpha, a.beta);
    case UnaryFn::Gelu: return torch::gelu(x);
    case UnaryFn::GeluTanh: return torch::gelu(x, "tanh");
    case UnaryFn::Silu: return torch::silu(x);
    case UnaryFn::Sigmoid: return torch::sigmoid(x);
    case UnaryFn::HardSigmoid: return torch::clamp(x * a.alpha + a.beta, 0, 1);
    case UnaryFn::HardSwish: return torch::hardswish(x);
    case UnaryFn::Softplus: return torch::softplus(x);
    case UnaryFn::Mish: return torch::mish(x);
    case UnaryFn::Tanh: return torch::tanh(x);
    case UnaryFn::Erf: return torch::erf(x);
    case UnaryFn::Exp: return torch::exp(x);
    case UnaryFn::Log: return torch::log(x);
    case UnaryFn::Sqrt: return torch::sqrt(x);
    case UnaryFn::Rsqrt: return torch::rsqrt(x);
    case UnaryFn::Tan: return torch::tan(x);
    case UnaryFn::Asin: return torch::asin(x);
    case UnaryFn::Acos: return torch::acos(x);
    case UnaryFn::Atan: return torch::atan(x);
    case UnaryFn::Sinh: return torch::sinh(x);
    case UnaryFn::Cosh: return torch::cosh(x);
    case UnaryFn::Asinh: return torch::asinh(x);
    case UnaryFn::Acosh: return torch::acosh(x);
    case UnaryFn::Atanh: return torch::atanh(x);
    case UnaryFn::Reciprocal: return torch::reciprocal(x);
    case UnaryFn::Square: return torch::square(x);
    case UnaryFn::Abs: return torch::abs(x);
    case UnaryFn::Neg: return torch::neg(x);
    case UnaryFn::Sin: return torch::sin(x);
    case UnaryFn::Cos: return torch::cos(x);
    case UnaryFn::Affine: return x * a.alpha + a.beta;
    case UnaryFn::Power: return torch::pow(x, a.alpha);
    case UnaryFn::Sign: return torch::sign(x);
    case UnaryFn::Floor: return torch::floor(x);
    case UnaryFn::Ceil: return torch::ceil(x);
    case UnaryFn::Round: return torch::round(x);
    case UnaryFn::Not: return torch::logical_not(x);
    case UnaryFn::IsNan: return torch::isnan(x);
  }
  return {};
}
Tensors unary_peer(const PeerCall& call) {
  return {unary_of(call.attrs<UnaryAttrs>(), call.input(0))};
}

at::Tensor binary_of(BinaryFn fn, const at::Tensor& a, const at::Tensor& b) {
  switch (fn) {
    case BinaryFn::Add: return a + b;
    case BinaryFn::Sub: return a - b;
    case BinaryFn::Mul: return a * b;
    case BinaryFn::Div: return a / b;
    case BinaryFn::Mod: return torch::fmod(a, b);
    case BinaryFn::Pow: return torch::pow(a, b);
    case BinaryFn::Max: return torch::maximum(a, b);
    case BinaryFn::Min: return torch::minimum(a, b);
    case BinaryFn::Equal: return a == b;
    case BinaryFn::Less: return a < b;
    case BinaryFn::LessEqual: return a <= b;
    case BinaryFn::Greater: return a > b;
    case BinaryFn::GreaterEqual: return a >= b;
    case BinaryFn::And: return torch::logical_and(a, b);
    case BinaryFn::Or: return torch::logical_or(a, b);
    case BinaryFn::Xor: return torch::logical_xor(a, b);
  }
  return {};
}
Tensors binary_peer(const PeerCall& call) {
  return {binary_of(call.attrs<BinaryAttrs>().fn, call.input(0), call.input(1))};
}

Tensors where_peer(const PeerCall& call) {
  return {torch::where(call.input(0), call.input(1), call.input(2))};
}
Tensors dropout_peer(const PeerCall& call) {
  const at::Tensor& x = call.input(0);
  return {x * dropout_factors(call.random, call.attrs<DropoutAttrs>().ratio, x.sizes())};
}
Tensors embedding_peer(const PeerCall& call) {
  return {torch::embedding(call.input(1), call.input(0))};
}
Tensors gather_peer(const PeerCall& call) {
  const int64_t axis = call.attrs<AxisAttrs>().axis, size = call.input(0).size(axis);
  const at::Tensor index = torch::remainder(call.input(1), size);
  std::vector<int64_t> shape = call.input(0).sizes().vec();
  shape.erase(shape.begin() + axis);
  shape.insert(shape.begin() + axis, index.sizes().begin(), index.sizes().end());
  return {call.input(0).index_select(axis, index.flatten()).reshape(shape)};
}
Tensors gather_elements_peer(const PeerCall& call) {
  const int64_t axis = call.attrs<AxisAttrs>().axis, size = call.input(0).size(axis);
  return {call.input(0).gather(axis, torch::remainder(call.input(1), size))};
}
Tensors scatter_elements_peer(const PeerCall& call) {
  const auto& a = call.attrs<ScatterAttrs>();
  const at::Tensor index = torch::remainder(call.input(1), call.input(0).size(a.axis));
  if (a.add) return {call.input(0).scatter_add(a.axis, index, call.input(2))};
  // PyTorch's own gradient counts every update, also those that were written over.
  at::Tensor y = call.input(0);
  for (int64_t i = 0; i < index.size(a.axis); ++i)
    y = y.scatter(a.axis, index.narrow(a.axis, i, 1), call.input(2).narrow(a.axis, i, 1));
  return {y};
}
Tensors top_k_peer(const PeerCall& call) {
  const auto& a = call.attrs<TopKAttrs>();
  const auto found = torch::topk(call.input(0), a.k, a.axis, a.largest);
  return {std::get<0>(found), std::get<1>(found)};
}
Tensors reshape_peer(const PeerCall& call) {
  return {call.input(0).reshape(call.attrs<ShapeAttrs>().shape)};
}
Tensors transpose_peer(const PeerCall& call) {
  return {call.input(0).permute(call.attrs<TransposeAttrs>().order)};
}
Tensors slice_peer(const PeerCall& call) {
  const auto& a = call.attrs<SliceAttrs>();
  at::Tensor x = call.input(0);
  for (size_t i = 0; i < a.size.size(); ++i) {
    std::vector<int64_t> at;
    for (int64_t j = 0; j < a.size[i]; ++j) at.push_back(a.start[i] + j * a.step[i]);
    x = x.index_select(static_cast<int64_t>(i), torch::tensor(at));
  }
  return {x};
}
Tensors concat_peer(const PeerCall& call) {
  return {torch::cat(call.inputs, call.attrs<AxisAttrs>().axis)};
}
Tensors split_peer(const PeerCall& call) {
  const auto& a = call.attrs<SplitAttrs>();
  return torch::split_with_sizes(call.input(0), a.sizes, a.axis);
}
Tensors pad_peer(const PeerCall& call) {
  const auto& a = call.attrs<PadAttrs>();
  at::Tensor x = call.input(0);
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    const auto i = static_cast<size_t>(axis);
    if (a.mode == PadMode::Constant) {
      x = torch::constant_pad_nd(x.transpose(axis, -1), {a.begin[i], a.end[i]}, a.value)
              .transpose(axis, -1);
      continue;
    }
    const int64_t size = x.size(axis);
    std::vector<int64_t> from;
    for (int64_t j = -a.begin[i]; j < size + a.end[i]; ++j) {
      const int64_t folded = j < 0 ? -j : j >= size ? 2 * (size - 1) - j : j;
      from.push_back(a.mode == PadMode::Edge ? std::clamp<int64_t>(j, 0, size - 1) : folded);
    }
    x = x.index_select(axis, torch::tensor(from));
  }
  return {x};
}
Tensors expand_peer(const PeerCall& call) {
  return {call.input(0).expand(call.attrs<ShapeAttrs>().shape) * 1};
}

Tensors reduce_peer(const PeerCall& call) {
  const auto& a = call.attrs<ReduceAttrs>();
  const at::Tensor& x = call.input(0);
  switch (a.fn) {
    case ReduceFn::Sum: return {x.sum(a.axes, a.keep_dims)};
    case ReduceFn::Mean: return {x.mean(a.axes, a.keep_dims)};
    case ReduceFn::Max: return {x.amax(a.axes, a.keep_dims)};
    case ReduceFn::Min: return {x.amin(a.axes, a.keep_dims)};
    case ReduceFn::Prod: {
      at::Tensor y = x;
      for (size_t i = a.axes.size(); i-- > 0;) y = y.prod(a.axes[i], a.keep_dims);
      return {y};
    }
    case ReduceFn::L1: return {x.abs().sum(a.axes, a.keep_dims)};
    case ReduceFn::L2: return {x.square().sum(a.axes, a.keep_dims).sqrt()};
    case ReduceFn::SumSquare: return {x.square().sum(a.axes, a.keep_dims)};
    case ReduceFn::LogSumExp: return {torch::logsumexp(x, a.axes, a.keep_dims)};
  }
  return {};
}
Tensors cumsum_peer(const PeerCall& call) {
  return {torch::cumsum(call.input(0), call.attrs<AxisAttrs>().axis)};
}

Tensors route_peer(const PeerCall& call) {
  const auto& a = call.attrs<RouteAttrs>();
  const auto [weights, chosen] = torch::softmax(call.input(0), 1).topk(a.top_k, 1);
  const at::Tensor shares = a.renormalize ? weights / weights.sum(1, true) : weights;
  return {shares, chosen};
}
Tensors combine_peer(const PeerCall& call) {
  return {(call.input(0) * call.input(1).unsqueeze(-1)).sum(1)};
}

// By token and choice: the row of slots, counted through all experts.
at::Tensor slot_indices(const SlotAttrs& a, const at::Tensor& chosen) {
  const int64_t blocks = chosen.size(0) / a.block;
  at::Tensor rows = at::empty(chosen.sizes(), at::kLong);
  for (int64_t b = 0; b < blocks; ++b) {
    std::vector<int64_t> used(static_cast<size_t>(a.experts));
    for (int64_t r = b * a.block * chosen.size(1); r < (b + 1) * a.block * chosen.size(1); ++r) {
      const int64_t e = chosen.data_ptr<int64_t>()[r];
      rows.data_ptr<int64_t>()[r] = (e * blocks + b) * a.slots + used[static_cast<size_t>(e)]++;
    }
  }
  return rows.flatten();
}
Tensors dispatch_peer(const PeerCall& call) {
  const auto& a = call.attrs<SlotAttrs>();
  const at::Tensor &x = call.input(0), &chosen = call.input(1);
  const int64_t blocks = x.size(0) / a.block;
  const at::Tensor rows = slot_indices(a, chosen);
  const at::Tensor from = torch::arange(x.size(0)).repeat_interleave(chosen.size(1));
  const at::Tensor slots = torch::zeros({a.experts * blocks * a.slots, x.size(1)}, x.options())
                               .index_copy(0, rows, x.index_select(0, from));
  const at::Tensor used = torch::bincount(rows.floor_divide(a.slots), {}, a.experts * blocks);
  return {slots.view({a.experts, blocks * a.slots, x.size(1)}), used.view({a.experts, blocks})};
}
Tensors collect_peer(const PeerCall& call) {
  const at::Tensor rows = slot_indices(call.attrs<SlotAttrs>(), call.input(1));
  const at::Tensor picked = call.input(0).flatten(0, 1).index_select(0, rows);
  const at::Tensor weighted =
      picked.view({call.input(1).size(0), call.input(1).size(1), -1}) * call.input(2).unsqueeze(-1);
  return {weighted.sum(1)};
}

Tensors cross_entropy_peer(const PeerCall& call) {
  const auto& a = call.attrs<CrossEntropyAttrs>();
  const at::Tensor logits = call.input(0).movedim(a.axis, 1);
  return {
      torch::cross_entropy_loss(logits, call.input(1), {}, at::Reduction::Mean, a.ignore_index)};
}
Tensors mean_squared_error_peer(const PeerCall& call) {
  return {torch::mse_loss(call.input(0), call.input(1))};
}

constexpr AutogradPeer kSequencePeers[] = {
    {OpKind::Softmax, softmax_peer},
    {OpKind::Attention, attention_peer},
    {OpKind::Rotary, rotary_peer},
    {OpKind::Unary, unary_peer},
    {OpKind::Binary, binary_peer},
    {OpKind::Where, where_peer},
    {OpKind::Dropout, dropout_peer},
    {OpKind::Embedding, embedding_peer},
    {OpKind::Gather, gather_peer},
    {OpKind::GatherElements, gather_elements_peer},
    {OpKind::ScatterElements, scatter_elements_peer},
    {OpKind::TopK, top_k_peer},
    {OpKind::Reshape, reshape_peer},
    {OpKind::Transpose, transpose_peer},
    {OpKind::Slice, slice_peer},
    {OpKind::Concat, concat_peer},
    {OpKind::Split, split_peer},
    {OpKind::Pad, pad_peer},
    {OpKind::Expand, expand_peer},
    {OpKind::Reduce, reduce_peer},
    {OpKind::CumSum, cumsum_peer},
    {OpKind::Route, route_peer},
    {OpKind::Combine, combine_peer},
    {OpKind::Dispatch, dispatch_peer},
    {OpKind::Collect, collect_peer},
    {OpKind::CrossEntropy, cross_entropy_peer},
    {OpKind::MeanSquaredError, mean_squared_error_peer},
};

class SequenceAutogradTest : public testing::TestWithParam<AutogradPeer> {};

TEST_P(SequenceAutogradTest, AgreesInFp32) { expect_agrees_with_autograd(GetParam(), DType::F32); }
TEST_P(SequenceAutogradTest, AgreesInBf16) { expect_agrees_with_autograd(GetParam(), DType::BF16); }
TEST_P(SequenceAutogradTest, AgreesInFp16) { expect_agrees_with_autograd(GetParam(), DType::F16); }

INSTANTIATE_TEST_SUITE_P(Kinds, SequenceAutogradTest, testing::ValuesIn(kSequencePeers),
                         [](const auto& test) {
                           return std::string(op_info(test.param.kind).name);
                         });

}  // namespace
}  // namespace windlass

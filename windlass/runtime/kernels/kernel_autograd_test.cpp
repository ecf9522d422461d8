// Contractions, windows, normalisation and recurrent layers against autograd.

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "windlass/runtime/kernels/autograd_peer.h"

namespace windlass {
namespace {

at::Tensor maybe_transposed(const at::Tensor& x, bool transpose) {
  return transpose ? x.transpose(-1, -2) : x;
}

Tensors matmul_peer(const PeerCall& call) {
  const auto& attrs = call.attrs<MatMulAttrs>();
  return {torch::matmul(maybe_transposed(call.input(0), attrs.transpose_a),
                        maybe_transposed(call.input(1), attrs.transpose_b))};
}

Tensors linear_peer(const PeerCall& call) {
  const bool input_major = call.attrs<LinearAttrs>().input_major;
  const at::Tensor y = torch::matmul(call.input(0), maybe_transposed(call.input(1), !input_major));
  return {call.has(2) ? y + call.input(2) : y};
}

Tensors grouped_linear_peer(const PeerCall& call) {
  const at::Tensor x = call.input(0).dim() == 2 ? call.input(0).unsqueeze(1) : call.input(0);
  // [t, c, n, k] times [t, c, k, 1]
  const at::Tensor w = call.input(1).index_select(0, call.input(2).flatten());
  const at::Tensor rows = x.expand({x.size(0), call.input(2).size(1), x.size(2)});
  return {
      torch::matmul(w.view({rows.size(0), rows.size(1), w.size(1), w.size(2)}), rows.unsqueeze(-1))
          .squeeze(-1)};
}

Tensors slot_linear_peer(const PeerCall& call) {
  const at::Tensor &x = call.input(0), &used = call.input(2);
  const int64_t slots = x.size(1) / used.size(1);
  const at::Tensor here = torch::arange(slots).view({1, 1, slots}) < used.unsqueeze(-1);
  return {torch::matmul(x, call.input(1).transpose(1, 2)) *
          here.view({x.size(0), x.size(1), 1}).to(x.scalar_type())};
}

// Amounts in the order of torch::constant_pad_nd: the last axis first.
std::vector<int64_t> pad_amounts(const Ints& begin, const Ints& end) {
  std::vector<int64_t> amounts;
  for (size_t i = begin.size(); i-- > 0;) amounts.insert(amounts.end(), {begin[i], end[i]});
  return amounts;
}

Tensors conv_peer(const PeerCall& call) {
  const auto& a = call.attrs<ConvAttrs>();
  const Ints none(a.stride.size(), 0);
  const c10::optional<at::Tensor> bias =
      call.has(2) ? c10::optional<at::Tensor>(call.input(2)) : c10::nullopt;
  if (!a.transposed) {
    const at::Tensor x = torch::constant_pad_nd(call.input(0), pad_amounts(a.pad_begin, a.pad_end));
    return {torch::convolution(x, call.input(1), bias, a.stride, none, a.dilation, false, none,
                               a.groups)};
  }
  at::Tensor y = torch::convolution(call.input(0), call.input(1), bias, a.stride, none, a.dilation,
                                    true, a.output_padding, a.groups);
  for (size_t i = 0; i < a.stride.size(); ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    y = y.narrow(axis, a.pad_begin[i], y.size(axis) - a.pad_begin[i] - a.pad_end[i]);
  }
  return {y};
}

// [b, c, out..., window] of x, with `fill` where a window leaves x.
at::Tensor pool_windows(const PoolAttrs& a, at::Tensor x, const Shape& y, double fill) {
  const size_t rank = a.kernel.size();
  for (size_t i = 0; i < rank; ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    const int64_t extent = a.dilation[i] * (a.kernel[i] - 1) + 1;
    const int64_t after = (y[i + 2] - 1) * a.stride[i] + extent - x.size(axis) - a.pad_begin[i];
    x = x.transpose(axis, -1);
    x = torch::constant_pad_nd(x, {a.pad_begin[i], std::max<int64_t>(after, 0)}, fill);
    x = x.transpose(axis, -1);
    std::vector<int64_t> at;
    for (int64_t o = 0; o < y[i + 2]; ++o)
      for (int64_t k = 0; k < a.kernel[i]; ++k) at.push_back(o * a.stride[i] + k * a.dilation[i]);
    x = x.index_select(axis, torch::tensor(at));
  }
  // [b, c, out0 * k0, out1 * k1, ...] to [b, c, out0, out1, ..., k0 * k1 * ...].
  std::vector<int64_t> split = {y[0], y[1]}, order = {0, 1}, joined = y;
  for (size_t i = 0; i < rank; ++i) {
    split.insert(split.end(), {y[i + 2], a.kernel[i]});
    order.push_back(static_cast<int64_t>(2 * i) + 2);
  }
  for (size_t i = 0; i < rank; ++i) order.push_back(static_cast<int64_t>(2 * i) + 3);
  joined.push_back(-1);
  return x.reshape(split).permute(order).reshape(joined);
}

Tensors pool_peer(const PeerCall& call) {
  const auto& a = call.attrs<PoolAttrs>();
  const at::Tensor& x = call.input(0);
  Signature signature{OpKind::Pool, &call.attributes, {}, {}, {}};
  signature.inputs.push_back({DType::F32, Shape(x.sizes().begin(), x.sizes().end())});
  const Shape y = op_info(OpKind::Pool).infer(signature)[0].shape;
  if (a.fn == PoolFn::Max) return {std::get<0>(pool_windows(a, x, y, -1e30).max(-1))};
  at::Tensor ones = torch::ones(x.sizes());
  PoolAttrs unpadded = a;
  if (a.count_include_pad) {
    ones = torch::constant_pad_nd(ones, pad_amounts(a.pad_begin, a.pad_end), 1);
    unpadded.pad_begin.assign(a.kernel.size(), 0);
  }
  return {pool_windows(a, x, y, 0).sum(-1) / pool_windows(unpadded, ones, y, 0).sum(-1)};
}

// Weights [out, in] of a resampled axis where torch has no function for it.
at::Tensor resize_weights(const ResizeAttrs& a, int64_t in, int64_t out) {
  at::Tensor weights = torch::zeros({out, in});
  for (int64_t i = 0; i < out; ++i) {
    const auto part = static_cast<double>(i);
    const double u = a.coordinates == ResizeCoordinates::Asymmetric
                         ? part * static_cast<double>(in) / static_cast<double>(out)
                     : out == 1 ? 0
                                : part * static_cast<double>(in - 1) / static_cast<double>(out - 1);
    if (a.mode == ResizeMode::Nearest) {
      weights[i][static_cast<int64_t>(std::floor(u + 0.5))] += 1;
    } else {
      const double at = std::min(u, static_cast<double>(in - 1));
      const auto low = static_cast<int64_t>(at);
      weights[i][low] += 1 - (at - static_cast<double>(low));
      weights[i][std::min(low + 1, in - 1)] += at - static_cast<double>(low);
    }
  }
  return weights;
}

Tensors resize_peer(const PeerCall& call) {
  const auto& a = call.attrs<ResizeAttrs>();
  const at::Tensor& x = call.input(0);
  const bool flat = a.size.size() == 1;
  const bool nearest = a.mode == ResizeMode::Nearest;
  const bool aligned = a.coordinates == ResizeCoordinates::AlignCorners;
  const bool asymmetric = a.coordinates == ResizeCoordinates::Asymmetric;
  if (nearest && asymmetric)
    return {flat ? torch::upsample_nearest1d(x, a.size) : torch::upsample_nearest2d(x, a.size)};
  if (nearest && !aligned)
    return {flat ? at::_upsample_nearest_exact1d(x, a.size)
                 : at::_upsample_nearest_exact2d(x, a.size)};
  if (!nearest && !asymmetric)
    return {flat ? torch::upsample_linear1d(x, a.size, aligned)
                 : torch::upsample_bilinear2d(x, a.size, aligned)};
  at::Tensor y = torch::matmul(x, resize_weights(a, x.size(-1), a.size.back()).t());
  if (!flat) y = torch::matmul(resize_weights(a, x.size(-2), a.size[0]), y);
  return {y};
}

Tensors batch_norm_peer(const PeerCall& call) {
  const auto& a = call.attrs<BatchNormAttrs>();
  return {torch::batch_norm(call.input(0), call.input(1), call.input(2), call.input(3),
                            call.input(4), a.training, a.momentum, a.epsilon, false)};
}

at::Tensor optional_input(const PeerCall& call, size_t i) {
  return call.has(i) ? call.input(i) : at::Tensor();
}

Tensors layer_norm_peer(const PeerCall& call) {
  const auto& a = call.attrs<LayerNormAttrs>();
  return {torch::layer_norm(call.input(0), call.input(0).sizes().slice(static_cast<size_t>(a.axis)),
                            optional_input(call, 1), optional_input(call, 2), a.epsilon)};
}

Tensors rms_norm_peer(const PeerCall& call) {
  const auto& a = call.attrs<LayerNormAttrs>();
  const at::Tensor& x = call.input(0);
  std::vector<int64_t> axes;
  for (int64_t i = a.axis; i < x.dim(); ++i) axes.push_back(i);
  at::Tensor y = x * torch::rsqrt(x.square().mean(axes, true) + a.epsilon);
  return {call.has(1) ? y * (call.input(1) + a.scale_offset) : y};
}

Tensors group_norm_peer(const PeerCall& call) {
  const auto& a = call.attrs<GroupNormAttrs>();
  // torch fails to differentiate a bias without a scale.
  const at::Tensor scale = call.has(1) ? call.input(1) : torch::ones({call.input(0).size(1)});
  return {torch::group_norm(call.input(0), a.groups, scale, optional_input(call, 2), a.epsilon)};
}

Tensors local_response_norm_peer(const PeerCall& call) {
  const auto& a = call.attrs<LrnAttrs>();
  const at::Tensor& x = call.input(0);
  const int64_t before = (a.size - 1) / 2;
  // Channels to the last axis, where pad and unfold work.
  at::Tensor squares =
      torch::constant_pad_nd(x.square().transpose(1, -1), {before, a.size - 1 - before});
  const at::Tensor sums = squares.unfold(-1, a.size, 1).sum(-1).transpose(1, -1);
  return {x * torch::pow(a.bias + a.alpha / static_cast<double>(a.size) * sums, -a.beta)};
}

// One step of a cell: h, or h and c, from the pre-activations W x + b and the state before.
struct Cell {
  const RecurrentAttrs& attrs;
  at::Tensor recurrent_weight, recurrent_bias;

  at::Tensor gate(const at::Tensor& rows, int64_t index) const {
    return rows.narrow(-1, index * attrs.hidden, attrs.hidden);
  }
  Tensors lstm(const at::Tensor& wx, const Tensors& state) const {
    const at::Tensor rows = wx + torch::matmul(state[0], recurrent_weight.t()) + recurrent_bias;
    const bool onnx = attrs.gates == GateOrder::Onnx;
    const at::Tensor i = gate(rows, 0).sigmoid(), f = gate(rows, onnx ? 2 : 1).sigmoid(),
                     g = gate(rows, onnx ? 3 : 2).tanh(), o = gate(rows, onnx ? 1 : 3).sigmoid();
    const at::Tensor c = f * state[1] + i * g;
    return {o * c.tanh(), c};
  }
  Tensors gru(const at::Tensor& wx, const Tensors& state) const {
    const at::Tensor& h = state[0];
    const at::Tensor rh = torch::matmul(h, recurrent_weight.t()) + recurrent_bias;
    const bool onnx = attrs.gates == GateOrder::Onnx;
    const int64_t z_at = onnx ? 0 : 1, r_at = onnx ? 1 : 0;
    const at::Tensor z = (gate(wx, z_at) + gate(rh, z_at)).sigmoid();
    const at::Tensor r = (gate(wx, r_at) + gate(rh, r_at)).sigmoid();
    const at::Tensor reset =
        attrs.linear_before_reset
            ? r * gate(rh, 2)
            : torch::matmul(r * h, recurrent_weight.narrow(0, 2 * attrs.hidden, attrs.hidden).t()) +
                  gate(recurrent_bias, 2);
    const at::Tensor n = (gate(wx, 2) + reset).tanh();
    return {(1 - z) * n + z * h};
  }
};

Tensors recurrent_peer(const PeerCall& call, size_t states) {
  const auto& attrs = call.attrs<RecurrentAttrs>();
  const at::Tensor& x = call.input(0);
  const int64_t steps = x.size(0), directions = call.input(1).size(0);
  const int64_t rows = call.input(1).size(1);
  Tensors sequences;
  std::vector<Tensors> finals(states);
  for (int64_t d = 0; d < directions; ++d) {
    const at::Tensor bias = call.has(3) ? call.input(3)[d] : torch::zeros({2 * rows});
    const Cell cell{attrs, call.input(2)[d], bias.narrow(0, rows, rows)};
    Tensors state;
    for (size_t i = 0; i < states; ++i)
      state.push_back(call.has(4 + i) ? call.input(4 + i)[d]
                                      : torch::zeros({x.size(1), attrs.hidden}));
    Tensors history(static_cast<size_t>(steps));
    for (int64_t n = 0; n < steps; ++n) {
      const int64_t t = d == 1 || attrs.reverse ? steps - 1 - n : n;
      const at::Tensor wx = torch::matmul(x[t], call.input(1)[d].t()) + bias.narrow(0, 0, rows);
      state = states == 2 ? cell.lstm(wx, state) : cell.gru(wx, state);
      history[static_cast<size_t>(t)] = state[0];
    }
    sequences.push_back(torch::stack(history));
    for (size_t i = 0; i < states; ++i) finals[i].push_back(state[i]);
  }
  Tensors outputs = {torch::stack(sequences, 1)};
  for (const Tensors& final_states : finals) outputs.push_back(torch::stack(final_states));
  return outputs;
}

Tensors lstm_peer(const PeerCall& call) { return recurrent_peer(call, 2); }
Tensors gru_peer(const PeerCall& call) { return recurrent_peer(call, 1); }

constexpr AutogradPeer kDensePeers[] = {
    {OpKind::MatMul, matmul_peer},
    {OpKind::Linear, linear_peer},
    {OpKind::GroupedLinear, grouped_linear_peer},
    {OpKind::SlotLinear, slot_linear_peer},
    {OpKind::Conv, conv_peer},
    {OpKind::Pool, pool_peer},
    {OpKind::Resize, resize_peer},
    {OpKind::BatchNorm, batch_norm_peer},
    {OpKind::LayerNorm, layer_norm_peer},
    {OpKind::RmsNorm, rms_norm_peer},
    {OpKind::GroupNorm, group_norm_peer},
    {OpKind::LocalResponseNorm, local_response_norm_peer},
    {OpKind::Lstm, lstm_peer},
    {OpKind::Gru, gru_peer},
};

class DenseAutogradTest : public testing::TestWithParam<AutogradPeer> {};

TEST_P(DenseAutogradTest, AgreesInFp32) { expect_agrees_with_autograd(GetParam(), DType::F32); }
TEST_P(DenseAutogradTest, AgreesInBf16) { expect_agrees_with_autograd(GetParam(), DType::BF16); }

INSTANTIATE_TEST_SUITE_P(Kinds, DenseAutogradTest, testing::ValuesIn(kDensePeers),
                         [](const auto& test) {
                           return std::string(op_info(test.param.kind).name);
                         });

}  // namespace
}  // namespace windlass

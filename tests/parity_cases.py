"""Which models go through the parity test, with their inputs; see onnx_parity_test.py."""

import dataclasses
import math
import typing

import torch
from torch import nn
from torch.nn import functional as F

import parity_models as zoo
from parity_models import Each, Lambda, Part, Recurrent


@dataclasses.dataclass
class Case:
    name: str
    make: typing.Callable[[], nn.Module]
    inputs: tuple
    opsets: tuple = (13,)
    mode: str = "eval"
    # Batch normalisation that the exporter folds away is restored to train on the statistics of the
    # batch, which is other mathematics: such files are compared as exported only.
    restorable: bool = True
    # Symbolic dimensions: for each input {axis: name}; and the inputs of the run, if not those of
    # the export.
    axes: tuple = ()
    run: tuple = ()
    # Kinds of ops and how many of them there must be after fusion.
    ops: dict = dataclasses.field(default_factory=dict)


RANDOM = torch.Generator().manual_seed(0)


def noise(*shape):
    return torch.randn(shape, generator=RANDOM)


def tokens(*shape, limit=40):
    return torch.randint(limit, shape, generator=RANDOM)


def causal(s, t, value=float("-inf")):
    return torch.full((s, t), value).triu(1 + t - s)


ALL = (9, 11, 13, 17)
IMAGE = noise(2, 4, 9, 9)
TOKENS = noise(2, 5, 16)
HEADS = (noise(2, 4, 6, 8), noise(2, 4, 6, 8), noise(2, 4, 6, 8))
# Fewer queries than keys: the last query sees all of them.
LATE = (noise(2, 4, 3, 8), noise(2, 4, 6, 8), noise(2, 4, 6, 8))
FLAT = (noise(8, 6, 8), noise(8, 6, 8), noise(8, 6, 8))


def network_cases():
    batch, sequence = {0: "batch"}, {0: "batch", 1: "sequence"}
    return [
        Case("mlp", lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)),
             (noise(3, 8),), ALL, axes=(batch,), run=(noise(5, 8),)),
        Case("linear_on_sequences",
             lambda: nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)), (TOKENS,), ALL),
        Case("cnn", zoo.small_cnn, (noise(4, 3, 12, 12),), ALL, mode="train"),
        Case("cnn_folded", zoo.small_cnn, (noise(4, 3, 12, 12),), ALL, restorable=False),
        Case("batch_norms",
             lambda: Each(nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False, eps=0.1)),
             (IMAGE,), (9, 13, 15, 17), mode="train"),
        Case("convolutions", zoo.convolutions, (IMAGE,), (9, 13)),
        Case("convolution_1d", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
             (noise(2, 4, 11),)),
        Case("convolution_3d", lambda: nn.Conv3d(2, 3, 3, padding=1), (noise(1, 2, 4, 5, 6),)),
        Case("transposed_convolutions", zoo.transposed_convolutions, (noise(2, 4, 5, 6),), (9, 13)),
        Case("transposed_convolution_1d", lambda: nn.ConvTranspose1d(4, 3, 4, 2, 1),
             (noise(2, 4, 5),)),
        Case("pools", zoo.pools, (IMAGE,), ALL),
        Case("pools_1d", lambda: Each(nn.MaxPool1d(3, 2), nn.AvgPool1d(2)), (noise(2, 4, 9),)),
        Case("pools_3d", lambda: Each(nn.MaxPool3d(2), nn.AvgPool3d(2)), (noise(1, 2, 4, 6, 5),)),
        Case("image_norms", zoo.image_norms, (noise(2, 8, 6, 6),), (9, 13)),
        Case("local_response_norm", lambda: nn.LocalResponseNorm(3), (noise(2, 8, 6, 6),)),
        Case("token_norms", zoo.token_norms, (TOKENS,), ALL, ops={"LayerNorm": 3, "RmsNorm": 3}),
        Case("shared_weights", zoo.SharedWeights, (noise(3, 8),)),
        Case("pixel_shuffle", lambda: nn.Sequential(nn.Conv2d(4, 8, 1), nn.PixelShuffle(2)),
             (IMAGE,), (9, 13)),
        Case("pixel_unshuffle", lambda: nn.PixelUnshuffle(2), (noise(2, 3, 4, 6),)),
        Case("convnext", zoo.tiny_convnext, (noise(1, 3, 16, 16),), ALL, ops={"LayerNorm": 5}),
        Case("vit", zoo.tiny_vit, (noise(2, 3, 16, 16),), ALL,
             ops={"Attention": 2, "LayerNorm": 5}),
        Case("swin", zoo.tiny_swin, (noise(2, 3, 16, 16),), (11, 13, 17), ops={"Attention": 4}),
        Case("swin_training", zoo.tiny_swin, (noise(2, 3, 16, 16),), mode="train"),
        Case("gpt", zoo.Gpt, (tokens(2, 7),), ALL[1:], axes=(sequence,), run=(tokens(3, 5),),
             ops={"Attention": 2, "LayerNorm": 5, "Linear": 9}),
        Case("gpt_tanh", lambda: zoo.Gpt("tanh"), (tokens(2, 7),),
             ops={"Attention": 2, "Unary": 2}),
        Case("gpt_new", lambda: zoo.Gpt("new", tied=False), (tokens(2, 7),), ALL[1:],
             ops={"Attention": 2, "Unary": 2}),
        Case("llama", zoo.Llama, (tokens(2, 7),), (14, 17), axes=(sequence,), run=(tokens(1, 9),),
             ops={"Attention": 2, "RmsNorm": 5, "Expand": 0}),
        Case("llama_multi_query", lambda: zoo.Llama(groups=1), (tokens(2, 7),), (14,),
             ops={"Attention": 2, "Expand": 0}),
        Case("llama_fixed", zoo.Llama, (tokens(2, 7),), (14,), ops={"Attention": 2, "Expand": 0}),
        Case("t5_bias", zoo.RelativeBias, (noise(2, 20, 8),), axes=({1: "s"},),
             run=(noise(2, 11, 8),), ops={"Attention": 1}),
        Case("conv1d_of_gpt2", zoo.OldLinear, (TOKENS,), ALL, ops={"Linear": 1}),
        Case("squeeze_excite", zoo.squeeze_excite, (IMAGE,), (13, 14), ops={"Conv": 3}),
        Case("double", lambda: nn.Linear(8, 3).double(), (noise(2, 8).double(),)),
        Case("scalars", zoo.Scalars, (noise(2, 8),)),
        Case("cross_entropy", lambda: zoo.WithLoss(nn.CrossEntropyLoss()),
             (noise(6, 8), tokens(6, limit=5))),
        Case("negative_log_likelihood",
             lambda: zoo.WithLoss(lambda x, y: F.nll_loss(F.log_softmax(x, 1), y)),
             (noise(6, 8), tokens(6, limit=5))),
    ]


def recurrent_cases():
    x, state = noise(7, 3, 6), noise(1, 3, 5)
    both = noise(2, 3, 5)
    return [
        Case("lstm", lambda: Recurrent("LSTM"), (x,), ALL),
        Case("lstm_deep", lambda: Recurrent("LSTM", num_layers=2, bidirectional=True), (x,),
             (9, 13)),
        Case("lstm_batch_first", lambda: Recurrent("LSTM", batch_first=True), (x,)),
        Case("lstm_without_bias", lambda: Recurrent("LSTM", bias=False), (x,)),
        Case("lstm_state", lambda: Recurrent("LSTM", given=True), (x, state, state + 1)),
        Case("lstm_states", lambda: Recurrent("LSTM", given=True, bidirectional=True),
             (x, both, both - 1)),
        Case("gru", lambda: Recurrent("GRU"), (x,), ALL),
        Case("gru_deep", lambda: Recurrent("GRU", num_layers=2, bidirectional=True), (x,), (9, 13)),
        Case("gru_state", lambda: Recurrent("GRU", given=True, batch_first=True),
             (x.transpose(0, 1).contiguous(), state)),
        Case("tagger", zoo.Tagger, (tokens(3, 7, limit=20),)),
    ]


def attention_cases():
    def attend(scores):
        return lambda q, k, v: F.softmax(scores(q, k.transpose(-2, -1)), dim=-1) @ v

    def function(name, scores, inputs=HEADS, fuses=True, opsets=(13,)):
        return Case("attention_" + name, lambda: Lambda(attend(scores)), inputs, opsets,
                    ops={"Attention": 1} if fuses else {"Attention": 0, "Softmax": 1})

    shown, some = torch.ones(6, 6).tril() > 0, noise(6, 6) > 0.5
    future, late, early = causal(6, 6), causal(3, 6), torch.full((3, 6), -1e9).triu(1)
    low, weak = causal(6, 6, -1e9), causal(6, 6, -2.0)
    by_head, by_batch, flat = noise(4, 6, 6), noise(2, 1, 6, 6), noise(8, 6, 6)
    return [
        function("plain", lambda q, k: q @ k),
        function("scaled", lambda q, k: q @ k / math.sqrt(8), opsets=ALL),
        function("scaled_query", lambda q, k: (q * 0.3) @ k),
        function("scaled_key", lambda q, k: q @ (k * 0.3)),
        function("scaled_twice", lambda q, k: (q / 2) @ (k / 2) * 1.5),
        function("causal", lambda q, k: q @ k * 0.3 + future),
        function("causal_finite", lambda q, k: q @ k * 0.3 + low),
        function("causal_late", lambda q, k: q @ k + late, LATE),
        function("causal_early", lambda q, k: q @ k + early, LATE),
        function("weak_mask", lambda q, k: q @ k + weak),
        function("mask_inside_scale", lambda q, k: (q @ k + weak) * 0.5, fuses=False),
        function("where", lambda q, k: torch.where(shown, q @ k * 0.3, torch.tensor(-1e9))),
        function("masked_fill", lambda q, k: (q @ k * 0.3).masked_fill(some, float("-1e9"))),
        function("two_masks", lambda q, k: (q @ k + by_head).masked_fill(some, -1e9) + low),
        function("bias_and_causal", lambda q, k: q @ k + by_head + future),
        function("bias_by_batch", lambda q, k: q @ k + by_batch),
        function("flat", lambda q, k: torch.bmm(q, k) * 0.3 + future, FLAT),
        function("flat_bias", lambda q, k: torch.bmm(q, k) * 0.3 + flat, FLAT),
        function("other_product", lambda q, k: q @ k + k.transpose(-2, -1) @ q.transpose(-2, -1),
                 fuses=False),
        Case("attention_read_twice",
             lambda: Lambda(lambda q, k, v: (lambda p: (p @ v, p.sum(-2)))(
                 F.softmax(q @ k.transpose(-2, -1), dim=-1))), HEADS, ops={"Attention": 0}),
        Case("attention_other_axis",
             lambda: Lambda(lambda q, k, v: F.softmax(q @ k.transpose(-2, -1), dim=-2) @ v), HEADS,
             ops={"Attention": 0}),
        Case("multihead", zoo.SelfAttention, (TOKENS,), ALL, ops={"Attention": 1, "Linear": 2}),
        Case("multihead_mask", zoo.SelfAttention, (TOKENS, noise(5, 5)), ops={"Attention": 1}),
        Case("multihead_weights", lambda: zoo.SelfAttention(True), (TOKENS, causal(5, 5)),
             ops={"Attention": 0}),
        Case("multihead_cross", zoo.CrossAttention, (TOKENS, noise(2, 7, 12), noise(2, 7, 10)),
             ops={"Attention": 1, "Linear": 4}),
        Case("bert", zoo.BertLayer, (TOKENS, tokens(2, 5, limit=2) | 1 - tokens(1, 5, limit=2)),
             (11, 13, 17), axes=({0: "batch", 1: "sequence"}, {0: "batch", 1: "sequence"}),
             ops={"Attention": 1, "Linear": 6, "LayerNorm": 2}),
        Case("encoder", lambda: Part(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32), 2)),
             (TOKENS,), ALL, ops={"Attention": 2, "Linear": 8, "LayerNorm": 4}),
        Case("encoder_norm_first", lambda: Part(nn.TransformerEncoder(nn.TransformerEncoderLayer(
            16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True), 2)), (TOKENS,), mode="train",
            ops={"Attention": 2, "Unary": 2}),
        Case("decoder", lambda: Part(nn.TransformerDecoder(nn.TransformerDecoderLayer(
            16, 4, 32, batch_first=True), 1)), (TOKENS, noise(2, 8, 16)),
            ops={"Attention": 2, "LayerNorm": 3}),
    ]


def function_cases():
    x, positive = noise(2, 3, 4, 6), noise(2, 3, 4, 6).abs() + 0.1
    ids = tokens(2, 3, limit=5)
    picked = noise(2, 3, 4, 6).argsort(3)[..., :2]

    def case(name, function, inputs=(x,), opsets=(13,)):
        return Case(name, lambda: Lambda(function), inputs, opsets)

    def assign(x, y):
        a, b, c = x * 1, x * 1, x * 1
        a[:, 1] = 0.5
        b[..., 2:4] = y
        c[:, :, ::2, 1:] = c[:, :, 1::2, 1:] * 2
        return a, b, c

    def resize(x, mode, align):
        return tuple(F.interpolate(x, mode=mode, align_corners=align, **target)
                     for target in ({"scale_factor": 2}, {"size": (7, 5)}, {"size": (3, 9)}))

    return [
        Case("activations", lambda: Each(
            nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh"), zoo.NewGelu(), nn.Hardswish(),
            nn.Hardsigmoid(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.ELU(0.7), nn.PReLU(), nn.PReLU(3),
            nn.Softplus(), nn.Mish(), nn.Tanh(), nn.Softmax(-1), nn.Softmax(1), nn.LogSoftmax(2),
            nn.Hardtanh(-0.3, 0.4), nn.SELU(), nn.CELU(0.6), nn.Softsign(), nn.LogSigmoid(),
            nn.GLU()), (3 * x,), (13, 14)),
        Case("old_activations", lambda: Each(
            nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.ReLU6(), nn.LeakyReLU(0.1), nn.PReLU(3),
            nn.Softmax(1), nn.LogSoftmax(1), nn.Hardtanh(-0.3, 0.4), nn.SELU()), (3 * x,), (9, 11)),
        # The last two are near misses of GELU and hard swish.
        case("hand_written_activations", lambda x: (
            x * torch.sigmoid(x), x * F.relu6(x + 3) / 6, x * torch.tanh(F.softplus(x)),
            x * 0.5 * (1 + torch.erf(x / math.sqrt(2))), x * torch.sigmoid(1.702 * x),
            0.5 * (x * (1 + torch.erf(x * 0.7071067811865475))),
            x * (1 + torch.erf(x / 1.5)) * 0.5, x * (x + 3).clamp(0, 5) / 6)),
        case("arithmetic", lambda x: (
            x + 2, 2 - x, 3 * x, x / 4, 1 / x, 5 / x, -x, x.abs(), x.exp(), x.sin() * x.cos(),
            x.sign(), x.floor() + x.ceil(), torch.round(x * 3), torch.erf(x), x.pow(2), x.pow(3),
            x**2 * x, (x * 2 + 1) * 3 - x)),
        case("roots", lambda x: (
            x.sqrt(), x.rsqrt(), 1 / x.sqrt(), x.log(), x.pow(0.5), x.pow(-0.5), x.pow(-1),
            x.pow(1.7), 2**x, x.reciprocal()), (positive,)),
        case("broadcasting", lambda x, y, z: (
            x + y, x * z, x - y * z, torch.max(x, y), torch.min(x, z), y / z,
            x.maximum(torch.tensor(0.2))), (x, noise(3, 1, 6), positive[:, :1])),
        case("comparisons", lambda x, y: (
            torch.where(x > y, x, y), (x >= 0).float(), torch.where((x < 0.5) & (y > 0), x, -y),
            torch.where(~(x == y) | (x <= 0), x, y), x.masked_fill(x < 0, 0.5), x.clamp(-0.5, 0.7),
            x.clamp(min=0), x.clamp(max=0.2)), (x, noise(3, 4, 6))),
        case("reductions", lambda x: (
            x.mean(), x.mean((2, 3)), x.sum(1, keepdim=True), x.sum((0, -1)), x.max(dim=1)[0],
            x.amax((1, 2)), x.min(dim=-1, keepdim=True)[0], x.prod(2), x.logsumexp(1),
            x.norm(dim=1), x.norm(p=1, dim=(2, 3)), x.var(1), x.std((2, 3)),
            x.var(-1, unbiased=False), x.argmax(1), x.argmin(-1, keepdim=True))),
        case("cumulative", lambda x: (x.cumsum(1), x.cumsum(-1)), opsets=(11, 13)),
        case("slices", lambda x: (
            x[:, 1:], x[:, :-1, ::2], x[..., -3:], x[:, :, 1:3, 2:5], x.flip(2), x.flip(1, 3),
            x[:, 2], x[:, -1, None], x[0, :, 1::3], x.narrow(3, 1, 4), x[:, [2, 0, 2]],
            x.index_select(3, torch.tensor([5, 0])))),
        case("old_slices", lambda x: (
            x[:, 1:], x[..., -3:], x[:, :, 1:3, 2:5], x[:, 2], x.narrow(3, 1, 4)), opsets=(9, 11)),
        case("places", lambda x: (
            x[:, [0, 2], [1, 3]], x[[0, 1], :, [3, 2]], torch.gather(x, 3, picked),
            x.scatter(3, picked, 2 * x[..., :2])), opsets=(11, 13)),
        case("diagonals", lambda x: (x[0, 0, :, :4].diagonal(), x.diagonal(1, 2, 3))),
        case("assignments", assign, (x, noise(2, 3, 4, 2)), (11, 13)),
        Case("assignment_to_weight", zoo.ClearedBias, (noise(3, 8),), (11, 13)),
        case("rolls", lambda x: (
            torch.roll(x, 1, 2), torch.roll(x, (1, -2), (2, 3)), torch.roll(x, -5, 3)),
            opsets=(11, 13)),
        case("shapes", lambda x: (
            x.flatten(1), x.reshape(2, -1, 6), x.permute(0, 3, 1, 2), x.transpose(1, -1),
            x.unsqueeze(2), x[:, :1].squeeze(1),
            x.view(2, 3, 2, 2, 6).transpose(1, 2).reshape(2, -1, 2, 6)), opsets=ALL),
        case("joins", lambda x, y: (
            torch.cat([x, y, x], 1), torch.stack([x, y], -1), *x.chunk(2, 3), *x.split([1, 2], 1),
            *y.unbind(1), x.expand(2, 3, 4, 6) + y, y[:, :1].expand(-1, 3, -1, -1),
            x.repeat(1, 2, 1, 3), x.repeat_interleave(2, 1)), (x, noise(2, 3, 4, 6))),
        case("pads", lambda x: (
            F.pad(x, (1, 2)), F.pad(x, (1, 0, 2, 1), value=0.5),
            F.pad(x, (2, 1, 1, 2), mode="reflect"), F.pad(x, (1, 1, 0, 2), mode="replicate"),
            F.pad(x, (-1, -2, 0, 0))), opsets=(11, 13)),
        case("triangles", lambda x: (x.tril(), x.triu(1), x.tril(-1)), opsets=(14,)),
        case("products", lambda x, y: (
            x @ y, y @ x, torch.matmul(x, y[0, 0]), torch.matmul(x, y[0, 0, :, 0]),
            torch.matmul(x[0, 0, 0], y), F.linear(x, y[0, 0].T),
            torch.addmm(x[0, 0, :, :4], x[0, 1], y[0, 0], beta=0.5, alpha=2.0)),
            (x, noise(2, 3, 6, 4)), ALL),
        case("einsums", lambda x, y: (
            torch.einsum("bchw,bdhw->bcd", x, y), torch.einsum("bcij,bckj->bcik", x, y),
            torch.einsum("bcij->bji", x), torch.einsum("bcij->", x),
            torch.einsum("bcij,ckij->bk", x, y.transpose(0, 1)),
            torch.einsum("bi,bj->bij", x[:, 0, 0], y[:, 0, 0]),
            torch.einsum("bchw,c->bhw", x, y[0, :, 0, 0]),
            torch.einsum("b c h w , b c h w -> b c h w", x, y)), (x, noise(2, 3, 4, 6))),
        case("lookups", lambda x, ids: (
            x[0, 0][ids[0]], F.one_hot(ids, 5).float() @ x[0, 0, :, :5].T, x[ids[0] % 2]),
            (noise(2, 3, 6, 6), ids)),
        Case("embeddings", lambda: nn.Embedding(5, 7, padding_idx=1), (ids,), ALL),
        case("nearest", lambda x: (
            *resize(x, "nearest", None), F.interpolate(x, scale_factor=(1, 3))), opsets=(11, 13)),
        case("old_nearest", lambda x: F.interpolate(x, scale_factor=2), opsets=(9,)),
        case("bilinear", lambda x: (
            *resize(x, "bilinear", True), *resize(x, "bilinear", False)), opsets=(11, 13, 17)),
        case("integers", lambda ids, x: (
            (ids * 3 + 1) % 4, ids // 2, (ids - 3) % 4, ids.float() * x, ids.max(),
            (ids > 1).sum(1)), (tokens(2, 3, limit=9), noise(2, 3))),
    ]


def all_cases():
    return network_cases() + recurrent_cases() + attention_cases() + function_cases()

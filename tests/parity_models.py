"""Small PyTorch models that use most of what exporters write; see onnx_parity_test.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torchvision import models


class Lambda(nn.Module):
    """A module without parameters that returns a tuple of results."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Part(nn.Module):
    """A module that has arguments with defaults, of which PyTorch 2's exporter would make tensors."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *inputs):
        return self.part(*inputs)


class Each(nn.Module):
    """Applies every module to the same input."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x):
        return tuple(part(x) for part in self.parts)


# --- convolutional


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.again = nn.BatchNorm2d(channels, eps=1e-3)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        return F.relu(x + self.again(self.second(y)))


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8),
        nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class Gate(nn.Module):
    def __init__(self, channels, gate):
        super().__init__()
        self.narrow, self.widen = nn.Conv2d(channels, 2, 1), nn.Conv2d(2, channels, 1)
        self.gate = gate

    def forward(self, x):
        y = self.widen(F.relu(self.narrow(F.adaptive_avg_pool2d(x, 1))))
        return x * self.gate(y)


def squeeze_excite():
    return nn.Sequential(nn.Conv2d(4, 6, 3), nn.Hardswish(), Gate(6, nn.Hardsigmoid()))


def convolutions():
    return Each(
        nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 6, 3, groups=2),
        nn.Conv2d(4, 5, 3, dilation=2, padding=2), nn.Conv2d(4, 5, (3, 2), (2, 1), (0, 1)),
        nn.Conv2d(4, 3, 1, bias=False))


def transposed_convolutions():
    return Each(
        nn.ConvTranspose2d(4, 3, 2, stride=2), nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1),
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        nn.ConvTranspose2d(4, 3, 3, dilation=2, bias=False))


def pools():
    return Each(
        nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(2, 3),
        nn.MaxPool2d((2, 3), (2, 1), (1, 0)), nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AvgPool2d(2, 2, ceil_mode=True),
        nn.Sequential(nn.ZeroPad2d((1, 2, 0, 1)), nn.MaxPool2d(3, 2)),
        nn.Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.AvgPool2d(3, 2)),
        nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((3, 3)), nn.AdaptiveMaxPool2d(1),
        nn.Sequential(nn.ReflectionPad2d(2), nn.AvgPool2d(2)),
        nn.Sequential(nn.ReplicationPad2d(1), nn.MaxPool2d(2)))


# --- normalisation


class RmsNorm(nn.Module):
    """`form` chooses among the ways in which people write it."""

    def __init__(self, size, form="rsqrt"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.form = form

    def forward(self, x):
        squared = x * x if self.form == "square" else x.pow(2)
        mean = squared.mean(-1, keepdim=True)
        if self.form == "divide":
            return x / torch.sqrt(mean + 1e-5) * self.weight
        return self.weight * (x * torch.rsqrt(mean + 1e-6))


def image_norms():
    return Each(
        nn.GroupNorm(2, 8), nn.GroupNorm(8, 8, affine=False), nn.InstanceNorm2d(8, affine=True),
        nn.InstanceNorm2d(8), nn.LayerNorm([8, 6, 6]), nn.LayerNorm(6, elementwise_affine=False))


def token_norms():
    return Each(
        nn.LayerNorm(16), nn.LayerNorm(16, eps=1e-12), nn.LayerNorm([5, 16]),
        nn.Sequential(RmsNorm(16), RmsNorm(16, "divide"), RmsNorm(16, "square")),
        Lambda(lambda x: F.normalize(x, dim=-1)))


# --- transformers


class NewGelu(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


def gelu(kind):
    return {"erf": nn.GELU(), "tanh": nn.GELU(approximate="tanh"), "new": NewGelu()}[kind]


class GptBlock(nn.Module):
    def __init__(self, width, heads, context, activation):
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.between = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.activation = gelu(activation)
        self.register_buffer("mask", torch.tril(torch.ones(context, context))[None, None])

    def forward(self, x):
        b, s, width = x.shape
        parts = self.qkv(self.before(x)).split(width, dim=2)
        q, k, v = (p.view(b, s, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :s, :s] == 0, float("-inf"))
        y = (F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, s, width)
        x = x + self.merge(y)
        return x + self.narrow(self.activation(self.widen(self.between(x))))


class Gpt(nn.Module):
    def __init__(self, activation="erf", tied=True, vocabulary=40, context=32, width=16):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GptBlock(width, 2, context, activation) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        places = torch.arange(0, ids.shape[1], dtype=torch.long).unsqueeze(0)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions(places))))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.depth = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.depth, bias=False)
        self.v = nn.Linear(width, groups * self.depth, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 24, bias=False)
        self.up = nn.Linear(width, 24, bias=False)
        self.down = nn.Linear(24, width, bias=False)
        self.before, self.between = RmsNorm(width), RmsNorm(width)
        powers = torch.arange(0, self.depth, 2).float() / self.depth
        self.register_buffer("inv_freq", 1.0 / 10000**powers)

    def split(self, x, heads):
        return x.view(x.shape[0], x.shape[1], heads, self.depth).transpose(1, 2)

    def repeat(self, x):
        b, g, s, d = x.shape
        n = self.heads // g
        return x[:, :, None].expand(b, g, n, s, d).reshape(b, g * n, s, d) if n > 1 else x

    def forward(self, x, mask, places):
        y = self.before(x)
        q, k = self.split(self.q(y), self.heads), self.split(self.k(y), self.groups)
        v = self.split(self.v(y), self.groups)
        angles = (self.inv_freq[None, :, None] @ places[:, None, :].float()).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        scores = q @ self.repeat(k).transpose(2, 3) / math.sqrt(self.depth) + mask
        y = F.softmax(scores, dim=-1, dtype=torch.float32) @ self.repeat(v)
        x = x + self.o(y.transpose(1, 2).reshape(x.shape))
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, groups=2, vocabulary=40, width=32):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, 4, groups) for _ in range(2))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        b, s = ids.shape
        x = self.tokens(ids)
        mask = torch.full((s, s), torch.finfo(x.dtype).min).triu(1)[None, None].expand(b, 1, s, s)
        for layer in self.layers:
            x = layer(x, mask, torch.arange(s)[None])
        return self.head(self.norm(x))


class SelfAttention(nn.Module):
    """`mask`: an additive [s, s], or a boolean one for padding."""

    def __init__(self, need_weights=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.need_weights = need_weights

    def forward(self, x, mask=None, padding=None):
        result = self.attention(x, x, x, attn_mask=mask, key_padding_mask=padding,
                                need_weights=self.need_weights)
        return result if self.need_weights else result[0]


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, kdim=12, vdim=10, batch_first=True)

    def forward(self, x, keys, values):
        return self.attention(x, keys, values, need_weights=False)[0]


class BertLayer(nn.Module):
    """With a mask of ones and zeros for padding."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out, self.first = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.widen, self.narrow = nn.Linear(width, 32), nn.Linear(32, width)
        self.second = nn.LayerNorm(width, eps=1e-12)

    def split(self, x):
        return x.view(x.size()[:-1] + (self.heads, -1)).permute(0, 2, 1, 3)

    def forward(self, x, shown):
        mask = (1.0 - shown[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        y = torch.matmul(F.softmax(scores + mask, dim=-1), v).permute(0, 2, 1, 3).contiguous()
        x = self.first(self.out(y.view(y.size()[:-2] + (x.shape[-1],))) + x)
        return self.second(self.narrow(F.gelu(self.widen(x))) + x)


class RelativeBias(nn.Module):
    """T5's buckets: integer arithmetic on positions, a table looked up, added to the scores."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 2)

    def forward(self, x):
        s = x.shape[1]
        offset = torch.arange(s)[None, :] - torch.arange(s)[:, None]
        distance = torch.abs(offset)
        far = 8 + (torch.log(distance.float() / 8) / math.log(16) * 8).to(torch.long)
        far = torch.min(far, torch.full_like(far, 15))
        bucket = torch.where(distance < 8, distance, far) + (offset > 0).to(torch.long) * 16
        bias = self.table(bucket).permute(2, 0, 1).unsqueeze(0)
        y = x.unsqueeze(1).expand(-1, 2, -1, -1)
        return F.softmax(y @ y.transpose(-1, -2) + bias, dim=-1) @ y


def tiny_swin():
    """Windows of 4 x 4 over 8 x 8 places, every second block shifted."""
    return models.SwinTransformer(patch_size=[2, 2], embed_dim=8, depths=[2, 2], num_heads=[2, 4],
                                  window_size=[4, 4], num_classes=5, stochastic_depth_prob=0.0)


def tiny_vit():
    return models.VisionTransformer(image_size=16, patch_size=4, num_layers=2, num_heads=2,
                                    hidden_dim=16, mlp_dim=32, num_classes=5)


def tiny_convnext():
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(8, 16, 1), block(16, None, 1)], stochastic_depth_prob=0.0,
                           num_classes=5)


# --- recurrent


class Recurrent(nn.Module):
    """Returns states too; `given` states are inputs."""

    def __init__(self, kind, given=False, **options):
        super().__init__()
        self.layer = getattr(nn, kind)(6, 5, **options)
        self.given = given

    def forward(self, x, *state):
        if not self.given:
            y, last = self.layer(x)
        else:
            y, last = self.layer(x, state if len(state) > 1 else state[0])
        return (y, *last) if isinstance(last, tuple) else (y, last)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6, padding_idx=0)
        self.layer = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(10, 7)

    def forward(self, ids):
        return self.tags(self.layer(self.words(ids))[0])


# --- losses


class WithLoss(nn.Module):
    def __init__(self, loss):
        super().__init__()
        self.layer = nn.Linear(8, 5)
        self.loss = loss

    def forward(self, x, target):
        return self.loss(self.layer(x), target)


# --- parameters


class SharedWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.layer(F.relu(self.layer(x)) * self.scale) @ self.layer.weight


class OldLinear(nn.Module):
    """The linear layer of GPT-2 as published: weights [in, out], one product for all rows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 6))
        self.bias = nn.Parameter(torch.randn(6))

    def forward(self, x):
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(x.size()[:-1] + (6,))


class ClearedBias(nn.Module):
    """Swin v2 clears a part of a bias on every pass; all of it is stored and counted."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 6)

    def forward(self, x):
        bias = self.layer.bias.clone()
        bias[2:4] = 0.0
        return F.linear(x, self.layer.weight, bias)


class Scalars(nn.Module):
    """Trained numbers, among others the one slope of PReLU."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.5))
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.PReLU())
        self.logit_scale = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x):
        y = self.inner(x.view(-1, 1, 1, 8)).view(-1, 8)
        return (x + self.gain * y) * self.logit_scale.exp()

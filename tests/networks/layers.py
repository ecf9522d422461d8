"""Layers with weights: convolutions, norms, products, and pooling, which goes with them."""

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import Unsuitable, Weighted, divisors, layer

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def each(r, count, choices):
    return [r.choice(choices) for _ in range(count)]


def draw_convolution(r, shapes):
    shape = shapes[0]
    axes = len(shape) - 2
    if axes not in (1, 2, 3):
        return None
    kind = r.choice(["plain", "plain", "grouped", "depthwise"])
    return {"kind": kind, "out": r.randint(1, 4) if r.random() < 0.9 else 16, "kernel": each(r, axes, [1, 2, 3, 3, 5]),
            "stride": each(r, axes, [1, 1, 1, 2, 3]), "dilation": each(r, axes, [1, 1, 1, 2]),
            "padding": each(r, axes, [0, 1, 1, 2]), "bias": r.random() < 0.7,
            "mode": r.choice(["zeros"] * 5 + ["reflect", "replicate"])}  # PyTorch exports "circular" wrongly


def channels(p, shape):
    """Groups and channels that come out."""
    into = shape[1]
    if p["kind"] == "depthwise":
        return into, into * min(2, p["out"])
    groups = divisors(into)[len(divisors(into)) // 2] if p["kind"] == "grouped" else 1
    return groups, groups * p["out"]


@layer("convolution", draw_convolution, weight=6)
def convolution(p, shapes):
    groups, out = channels(p, shapes[0])
    return CONVOLUTIONS[len(shapes[0]) - 2](
        shapes[0][1], out, p["kernel"], p["stride"], p["padding"], p["dilation"], groups, p["bias"],
        p["mode"])


def draw_transposed(r, shapes):
    p = draw_convolution(r, shapes)
    if p is not None:
        p["extra"] = [r.choice([0, s - 1]) for s in p["stride"]]
    return p


@layer("transposed convolution", draw_transposed, weight=2)
def transposed(p, shapes):
    groups, out = channels(p, shapes[0])
    return TRANSPOSED[len(shapes[0]) - 2](
        shapes[0][1], out, p["kernel"], p["stride"], p["padding"], p["extra"], groups, p["bias"],
        p["dilation"])


@layer("convolution with a weight from a product", lambda r, shapes:
       {"out": r.randint(1, 4)} if len(shapes[0]) == 4 else None, weight=0.3)
def product_convolution(p, shapes):
    into = shapes[0][1]
    return Weighted(lambda self, x: F.conv2d(x, (self.a * self.b).view(p["out"], into, 1, 1)),
                    a=(p["out"], into), b=(into,))


@layer("batch norm", lambda r, shapes: {"affine": r.random() < 0.85}
       if 2 <= len(shapes[0]) <= 5 and shapes[0][0] > 1 else None, weight=1.5)
def batch_norm(p, shapes):
    made = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    return made[len(shapes[0])](shapes[0][1], affine=p["affine"])


class ConvolutionAndNorm(nn.Module):
    """As it begins: an exporter that folds the norm changes nothing but the scale before it."""

    def __init__(self, p, channels):
        super().__init__()
        self.convolution = nn.Conv2d(channels, p["out"], 3, p["stride"], 1, bias=False)
        self.norm = nn.BatchNorm2d(p["out"])

    def forward(self, x):
        return self.norm(self.convolution(x))


@layer("convolution and norm", lambda r, shapes: {"out": r.randint(1, 5), "stride": r.choice([1, 1, 2])}
       if len(shapes[0]) == 4 and shapes[0][0] > 1 else None, weight=2)
def convolution_and_norm(p, shapes):
    return ConvolutionAndNorm(p, shapes[0][1])


@layer("layer norm", lambda r, shapes: {
    "axes": r.randint(1, max(1, len(shapes[0]) - 2)), "affine": r.random() < 0.85}, weight=2)
def layer_norm(p, shapes):
    return nn.LayerNorm(shapes[0][-p["axes"]:], elementwise_affine=p["affine"])


@layer("group norm", lambda r, shapes: {"which": r.random(), "affine": r.random() < 0.85}
       if len(shapes[0]) >= 3 else None, weight=2)
def group_norm(p, shapes):
    choices = divisors(shapes[0][1])
    return nn.GroupNorm(choices[int(p["which"] * len(choices))], shapes[0][1], affine=p["affine"])


class Instances(nn.Module):
    """PyTorch has the kernel of batch norms for them, windlass that of group norms, which adds up the same in another
    order: where all values are the same, one has a gradient of 0 and the other one of rounding."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        rows = x.flatten(2)
        if not torch.jit.is_tracing() and bool(
                (rows.var(2, unbiased=False) <= 1e-6 * rows.pow(2).mean(2)).any()):
            raise Unsuitable("an instance norm of values that are the same")
        return self.part(x)


@layer("instance norm", lambda r, shapes: {"affine": r.random() < 0.7}
       if 3 <= len(shapes[0]) <= 5 else None, weight=1)
def instance_norm(p, shapes):
    made = {3: nn.InstanceNorm1d, 4: nn.InstanceNorm2d, 5: nn.InstanceNorm3d}
    return Instances(made[len(shapes[0])](shapes[0][1], affine=p["affine"]))


@layer("rms norm", lambda r, shapes: {"epsilon": 1e-5, "form": r.choice(["rsqrt", "sqrt", "power"])},
       weight=1)
def rms_norm(p, shapes):
    def norm(self, x):
        square = x.pow(2).mean(-1, keepdim=True) + p["epsilon"]
        if p["form"] == "rsqrt":
            return x * torch.rsqrt(square) * self.scale
        if p["form"] == "sqrt":
            return self.scale * (x / torch.sqrt(square))
        return self.scale * x * square.pow(-0.5)
    return Weighted(norm, scale=(shapes[0][-1],))


@layer("local response norm", lambda r, shapes: {"size": r.choice([2, 3, 5])}
       if len(shapes[0]) in (3, 4) else None, weight=0.5)
def local_response(p, shapes):
    return nn.LocalResponseNorm(p["size"], alpha=0.1)


@layer("written-out norm", lambda r, shapes: {"unbiased": r.random() < 0.4}
       if shapes[0][-1] > 1 else None, weight=0.7)
def written_norm(p, shapes):
    return lambda x: (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, keepdim=True, unbiased=p["unbiased"]) + 1e-3).sqrt()


@layer("linear", lambda r, shapes: {
    "out": r.randint(1, 9) if r.random() < 0.9 else r.choice([16, 33, 64]), "bias": r.random() < 0.8}, weight=4)
def linear(p, shapes):
    return nn.Linear(shapes[0][-1], p["out"], p["bias"])


@layer("product", lambda r, shapes: {
    "out": r.randint(1, 9), "form": r.choice(["plain", "view", "transposed", "twice", "einsum", "bias"])},
    weight=3)
def product(p, shapes):
    into, out = shapes[0][-1], p["out"]
    if p["form"] == "plain":
        return Weighted(lambda self, x: torch.matmul(x, self.w), w=(into, out))
    if p["form"] == "view":
        return Weighted(lambda self, x: torch.matmul(x, self.w.view(into, out)), w=(into * out,))
    if p["form"] == "transposed":
        return Weighted(lambda self, x: torch.matmul(x, self.w.t()), w=(out, into))
    if p["form"] == "twice":
        return Weighted(lambda self, x: torch.tanh(x @ self.w) @ self.w.t(), w=(into, out))
    if p["form"] == "bias":
        return Weighted(lambda self, x: x @ self.w + self.b.view(1, out), w=(into, out), b=(out,))
    letters = "abcdef"[:len(shapes[0]) - 1]
    return Weighted(lambda self, x: torch.einsum(f"{letters}x,xy->{letters}y", x, self.w),
                    w=(into, out))


@layer("weight over channels", lambda r, shapes: {
    "form": r.choice(["view", "unsqueeze", "index", "expand", "both", "reshape", "sum", "shift"])},
    weight=3)
def channel_weight(p, shapes):
    count, tail = shapes[0][1], len(shapes[0]) - 2
    tall = (count,) + (1,) * tail

    def whole(self, x):
        form = p["form"]
        if form == "view":
            return x * self.w.view(*tall)
        if form == "reshape":
            return x * self.w.reshape(1, *tall)
        if form == "shift":
            return x + self.w.view(*tall)
        if form == "index":
            w = self.w[None]
            for _ in range(tail):
                w = w[..., None]
            return x * w
        if form == "expand":
            return x * self.w.view(1, *tall).expand(x.shape[0], *x.shape[1:])
        if form == "sum":
            return x * self.w.sum() + self.w.view(*tall)
        w = self.w
        for _ in range(tail):
            w = w.unsqueeze(-1)
        return x * w if form == "unsqueeze" else x * w + w.reshape(1, *tall) * self.w.mean()
    return Weighted(whole, w=(count,))


@layer("table of places", lambda r, shapes: {"form": r.choice(["plain", "sliced", "flat", "batched"])}
       if len(shapes[0]) == 3 else None, weight=1.5)
def places(p, shapes):
    _, length, width = shapes[0]
    if p["form"] == "plain":
        return Weighted(lambda self, x: x + self.w, w=(length, width))
    if p["form"] == "sliced":
        return Weighted(lambda self, x: x + self.w[:length], w=(length + 3, width))
    if p["form"] == "flat":
        return Weighted(lambda self, x: x + self.w.view(1, length, width), w=(length * width,))
    return Weighted(lambda self, x: torch.cat([self.w.expand(x.shape[0], -1, -1), x], 1), w=(1, 1, width))


def draw_pool(r, shapes):
    axes = len(shapes[0]) - 2
    if axes not in (1, 2, 3):
        return None
    kernel = each(r, axes, [1, 2, 3])
    return {"kind": r.choice(["max", "average"]), "kernel": kernel, "stride": each(r, axes, [1, 2, 2, 3]),
            "padding": [r.randint(0, k // 2) for k in kernel], "ceil": r.random() < 0.3,
            "count": r.random() < 0.5}


@layer("pool", draw_pool, weight=2)
def pool(p, shapes):
    axes = len(shapes[0]) - 2
    if p["kind"] == "max":
        made = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}[axes]
        return made(p["kernel"], p["stride"], p["padding"], ceil_mode=p["ceil"])
    made = {1: nn.AvgPool1d, 2: nn.AvgPool2d, 3: nn.AvgPool3d}[axes]
    if p["ceil"] and p["count"] and any(
            windows(size, *p_of_axis, True) != windows(size, *p_of_axis, False)
            for size, *p_of_axis in zip(shapes[0][2:], p["kernel"], p["stride"], p["padding"])):
        raise Unsuitable("average pooling that PyTorch exports with a window too many")
    return made(p["kernel"], p["stride"], p["padding"], p["ceil"], p["count"])


def windows(size, kernel, stride, padding, inside):
    """How many windows there are where the last may reach over the border. PyTorch's begin before the padding at the
    end (`inside`); those of its exporter, which pads first and then pools what has no padding, anywhere."""
    count = -(-(size + 2 * padding - kernel) // stride) + 1
    end = size + (padding if inside else 2 * padding)
    return count - 1 if (count - 1) * stride >= end else count


@layer("adaptive pool", lambda r, shapes: {"which": r.random(), "max": r.random() < 0.3}
       if len(shapes[0]) in (3, 4) else None, weight=1)
def adaptive_pool(p, shapes):
    sizes = [divisors(s)[int(p["which"] * len(divisors(s)))] for s in shapes[0][2:]]
    made = {(1, False): nn.AdaptiveAvgPool1d, (2, False): nn.AdaptiveAvgPool2d,
            (1, True): nn.AdaptiveMaxPool1d, (2, True): nn.AdaptiveMaxPool2d}
    return made[len(sizes), p["max"]](sizes if len(sizes) == 2 else sizes[0])


@layer("parametric relu", lambda r, shapes: {"each": r.random() < 0.7}, weight=1.5)
def parametric_relu(p, shapes):
    return nn.PReLU(shapes[0][1] if p["each"] else 1)


@layer("gated", lambda r, shapes: {"out": r.randint(1, 6), "form": r.choice(["glu", "swiglu"])},
       weight=1)
def gated(p, shapes):
    into, out = shapes[0][-1], p["out"]
    if p["form"] == "glu":
        return nn.Sequential(nn.Linear(into, 2 * out), nn.GLU(-1))
    return Weighted(lambda self, x: (F.silu(x @ self.a) * (x @ self.b)) @ self.c, a=(into, out),
                    b=(into, out), c=(out, into))

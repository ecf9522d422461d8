"""Layers that store what is not trained, and masks that are part of the data."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import TOLD, Weighted, axis_of, layer


def told(**values):
    """Buffers that windlass is told of by --freeze."""
    return {TOLD + name: value for name, value in values.items()}


@layer("buffer over channels", lambda r, shapes: {
    "form": r.choice(["scale", "shift", "both", "number", "divided", "weighed", "power"])}, weight=1.5)
def channel_buffer(p, shapes):
    tall = (shapes[0][1],) + (1,) * (len(shapes[0]) - 2)
    made = told(a=torch.rand(tall) + 0.5, b=torch.randn(tall) * 0.5, n=torch.tensor(0.7))

    def whole(self, x):
        a, b, n = self.told_a, self.told_b, self.told_n
        return {"scale": lambda: x * a, "shift": lambda: b - x, "both": lambda: x * a + b,
                "number": lambda: x * n, "divided": lambda: (x - b) / a, "power": lambda: (x.abs() + 0.3) ** a,
                "weighed": lambda: x * (a * self.w) + self.w * n}[p["form"]]()
    return Weighted(whole, made, **({"w": tall} if p["form"] == "weighed" else {}))


@layer("buffer of a product", lambda r, shapes: {"out": r.randint(1, 6), "form": r.choice(
    ["plain", "linear", "after", "pruned", "added", "frozen"])}, weight=1.5)
def product_buffer(p, shapes):
    into, out = shapes[0][-1], p["out"]
    matrix = torch.randn(into, out) * 0.5
    if p["form"] == "plain":
        return Weighted(lambda self, x: x @ self.told_m, told(m=matrix))
    if p["form"] == "linear":
        return Weighted(lambda self, x: F.linear(x, self.told_m, self.b), told(m=matrix.t().contiguous()), b=(out,))
    if p["form"] == "after":
        return Weighted(lambda self, x: torch.tanh(x @ self.w) @ self.told_m, told(m=matrix), w=(into, into))
    if p["form"] == "pruned":
        mask = (torch.arange(into * out).reshape(into, out) % 3 != 1).float()
        name = "mask" if mask.min() < 1 and min(mask.shape) > 1 else TOLD + "mask"
        return Weighted(lambda self, x: x @ (self.w * getattr(self, name)), {name: mask}, w=(into, out))
    if p["form"] == "added":
        return Weighted(lambda self, x: x @ (self.w @ self.v + self.told_m), told(m=matrix), w=(into, 2), v=(2, out))
    made = Weighted(lambda self, x: x @ self.told_w + x @ self.w, told_w=(into, out), w=(into, out))
    made.told_w.requires_grad_(False)
    return made


@layer("table of waves", lambda r, shapes: {"form": r.choice(["plain", "sliced", "batched", "times", "layer"])}
       if len(shapes[0]) == 3 and shapes[0][1] >= 6 and shapes[0][2] >= 6 else None, weight=2)
def waves(p, shapes):
    _, length, width = shapes[0]
    rows = length + (3 if p["form"] == "sliced" else 0)
    angles = torch.outer(torch.arange(rows).float(), 100.0 ** (-torch.arange((width + 1) // 2).float() / width))
    table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width].contiguous()
    if p["form"] == "batched":
        return Weighted(lambda self, x: x + self.pe, {"pe": table[None]})
    if p["form"] == "times":
        return Weighted(lambda self, x: x * self.pe, {"pe": table})
    if p["form"] == "layer":
        return Weighted(lambda self, x: x + F.linear(self.pe, self.w), {"pe": table}, w=(width, width))
    return Weighted(lambda self, x: x + self.pe[:x.shape[1]], {"pe": table})


@layer("stored mask", lambda r, shapes: {"form": r.choice(
    ["infinities", "large", "truth", "ones", "compared", "where", "integers"]), "softmax": r.random() < 0.6}
    if shapes[0][-1] > 1 and shapes[0][-2] > 1 and len(shapes[0]) > 2 else None, weight=1.5)
def stored_mask(p, shapes):
    shown = torch.ones(shapes[0][-2:]).tril()
    form = p["form"]
    if form in ("infinities", "large"):
        least = float("-inf") if form == "infinities" else -1e9
        made = Weighted(lambda self, x: x + self.hidden, {"hidden": torch.full_like(shown, least).triu(1)})
    elif form == "truth":
        made = Weighted(lambda self, x: x.masked_fill(self.hidden, -1e9), {"hidden": shown == 0})
    elif form == "ones":
        made = Weighted(lambda self, x: x * self.shown + -1e4 * (1 - self.shown), {"shown": shown})
    elif form == "compared":
        made = Weighted(lambda self, x: x.masked_fill(self.shown == 0, float("-inf")), {"shown": shown})
    elif form == "integers":
        made = Weighted(lambda self, x: torch.where(self.shown > 0, x, torch.full_like(x, -1e4)),
                        {"shown": shown.long()})
    else:
        made = Weighted(lambda self, x: torch.where(self.shown.bool(), x, x.new_tensor(-1e4)), {"shown": shown})
    if p["softmax"] or form != "ones":
        inner = made.function
        made.function = lambda self, x: F.softmax(inner(self, x), -1) @ self.mixed
        made.register_parameter("mixed", nn.Parameter(torch.randn(shapes[0][-1], 3) * 0.5))
        return made
    made.function = lambda self, x: x * self.shown + self.bias
    made.register_parameter("bias", nn.Parameter(torch.randn(shapes[0][-1]) * 0.5))
    return made


@layer("fixed filter", lambda r, shapes: {"stride": r.choice([1, 2])} if len(shapes[0]) == 4 else None, weight=0.7)
def fixed_filter(p, shapes):
    count = shapes[0][1]
    row = torch.tensor([1.0, 2.0, 1.0]) / 4
    kernel = (row[:, None] * row)[None, None].repeat(count, 1, 1, 1)
    # One that is the same for all channels tells itself.
    name = "kernel" if count > 1 else TOLD + "kernel"
    return Weighted(lambda self, x: F.conv2d(x, getattr(self, name), stride=p["stride"], padding=1, groups=count),
                    {name: kernel})


@layer("frozen batch norm", lambda r, shapes: {"form": r.choice(["written", "function", "named"])}
       if len(shapes[0]) >= 3 else None)
def frozen_norm(p, shapes):
    count, tall = shapes[0][1], (1, shapes[0][1]) + (1,) * (len(shapes[0]) - 2)
    made = told(w=torch.rand(count) + 0.5, b=torch.randn(count), m=torch.randn(count) * 0.1, v=torch.rand(count) + 0.5)

    if p["form"] == "named":  # as torchvision has it
        def named(self, x):
            scale = self.weight.view(tall) * (self.running_var.view(tall) + 1e-5).rsqrt()
            return x * scale + (self.bias.view(tall) - self.running_mean.view(tall) * scale)
        return Weighted(named, dict(zip(("weight", "bias", "running_mean", "running_var"), made.values())))

    def norm(self, x):
        scale = self.told_w * (self.told_v + 1e-5).rsqrt()
        return x * scale.reshape(tall) + (self.told_b - self.told_m * scale).reshape(tall)
    if p["form"] == "written":
        return Weighted(norm, made)
    return Weighted(lambda self, x: self.told_w.view(tall) * ((x - self.told_m.view(tall)) / torch.sqrt(
        self.told_v.view(tall) + 1e-5)) + self.told_b.view(tall), made)


@layer("stored grid", lambda r, shapes: {"form": r.choice(["row by row", "normalised", "times"])}
       if len(shapes[0]) >= 3 and min(shapes[0][-2:]) >= 3 else None, weight=0.7)
def stored_grid(p, shapes):
    high, wide = shapes[0][-2:]
    grid = torch.arange(high)[:, None] * 0.5 + torch.arange(wide)[None] * (-0.25 if p["form"] == "times" else 0.5)
    if p["form"] == "normalised":
        grid = grid / grid.max() * 2 - 1
    if p["form"] == "times":
        return Weighted(lambda self, x: x * (self.grid * self.w), {"grid": grid}, w=(wide,))
    return Weighted(lambda self, x: x + self.w * self.grid, {"grid": grid}, w=(wide,))


@layer("stored places", lambda r, shapes: {"axis": axis_of(r, shapes[0]), "form": r.choice(
    ["select", "index", "gather", "table", "table row"])})
def stored_places(p, shapes):
    axis, size = p["axis"], shapes[0][p["axis"]]
    places = (torch.arange(size) * 7 + 3) % size
    index = (slice(None),) * axis
    if p["form"] == "select":
        return Weighted(lambda self, x: x.index_select(axis, self.places), {"places": places})
    if p["form"] == "index":
        return Weighted(lambda self, x: x[index + (self.places,)], {"places": places})
    if p["form"] == "gather":
        whole = places.view([-1 if i == axis else 1 for i in range(len(shapes[0]))]).expand(shapes[0]).contiguous()
        return Weighted(lambda self, x: x.gather(axis, self.places) if x.shape == self.places.shape else x,
                        {"places": whole})
    # Relative positions: a trained table looked up by stored places.
    n = shapes[0][-1]
    steps = torch.arange(n)
    if p["form"] == "table":
        return Weighted(lambda self, x: x @ self.w[self.places.view(-1)].view(n, n),
                        {"places": steps[:, None] - steps + n - 1}, w=(2 * n - 1,))
    return Weighted(lambda self, x: x + F.embedding(self.places, self.w), {"places": steps % 4}, w=(4, 1)) \
        if len(shapes[0]) > 2 and shapes[0][-2] == n else Weighted(
            lambda self, x: x + self.w[self.places], {"places": steps % 4}, w=(4,))


def draw_mask(r, shapes):
    mask, x = shapes
    if len(x) < len(mask) or tuple(x[:len(mask)]) != tuple(mask):
        return None
    return {"form": r.choice(["fill", "where", "keep", "not", "and", "or", "xor", "mean", "softmax", "float"])}


@layer("mask of the data", draw_mask, weight=6, operands=2, truth=True)
def data_mask(p, shapes):
    tall = tuple(shapes[0]) + (1,) * (len(shapes[1]) - len(shapes[0]))

    def apply(m, x):
        m = m.view(tall)
        form = p["form"]
        if form == "fill":
            return x.masked_fill(m, 0.25)
        if form == "where":
            return torch.where(m, x, torch.tanh(x) * 0.5)
        if form == "keep":
            return x * m.to(x.dtype)
        if form == "not":
            return x * (~m).to(x.dtype) + 0.1 * x
        if form == "float":
            return x + (1.0 - m.to(x.dtype)) * -0.5
        if form == "softmax":
            axis = len(shapes[0]) - 1
            return F.softmax(x.masked_fill(~m, -1e9), dim=axis) if axis > 0 else x.masked_fill(~m, 0.0)
        if form == "mean":
            kept = m.to(x.dtype)
            return x - (x * kept).sum(-1, keepdim=True) / (kept.sum(-1, keepdim=True) + 1)
        positive = x > 0
        both = {"and": m & positive, "or": m | positive, "xor": torch.logical_xor(m, positive)}[form]
        return torch.where(both, x, 0.2 * x)
    return apply


class Padded(nn.Module):
    """Attention that leaves padding out, by a mask of the data."""

    def __init__(self, p, width):
        super().__init__()
        self.p = p
        self.part = nn.MultiheadAttention(width, 1, batch_first=True) if p["form"] == "module" else nn.Linear(
            width, 3 * width)

    def forward(self, m, x):
        m = torch.cat([torch.zeros_like(m[:, :1]), m[:, 1:]], 1)  # the first place is never left out
        if self.p["form"] == "module":
            return self.part(x, x, x, key_padding_mask=m, need_weights=False)[0]
        q, k, v = self.part(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(x.shape[-1])
        if self.p["form"] == "fill":
            scores = scores.masked_fill(m[:, None], float("-inf"))
        else:
            scores = scores + m[:, None].to(x.dtype) * -1e9
        return F.softmax(scores, -1) @ v


@layer("padded attention", lambda r, shapes: {"form": r.choice(["module", "fill", "add"])}
       if len(shapes[1]) == 3 and tuple(shapes[0]) == tuple(shapes[1][:2]) else None, weight=4, operands=2, truth=True)
def padded(p, shapes):
    return Padded(p, shapes[1][-1])


@layer("truth as numbers", lambda r, shapes: {"out": r.randint(2, 4)} if len(shapes[0]) >= 2 else None, truth=True)
def truth_numbers(p, shapes):
    return Weighted(lambda self, m: m.to(self.w.dtype) @ self.w, w=(shapes[0][-1], p["out"]))

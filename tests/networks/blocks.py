"""Blocks of several layers as people write them, and weights that are computed from weights."""

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import Unsuitable, Weighted, axis_of, layer


class SqueezeExcite(nn.Module):
    def __init__(self, channels, inner):
        super().__init__()
        self.down, self.up = nn.Linear(channels, inner), nn.Linear(inner, channels)

    def forward(self, x):
        scale = torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))
        return x * scale.view(x.shape[0], -1, 1, 1)


@layer("squeeze and excite", lambda r, shapes: {"inner": r.randint(1, 4)} if len(shapes[0]) == 4 else None)
def squeeze_excite(p, shapes):
    return SqueezeExcite(shapes[0][1], p["inner"])


@layer("weight norm", lambda r, shapes: {"out": r.randint(1, 6), "form": r.choice(["module", "written"])})
def weight_norm(p, shapes):
    into, out = shapes[0][-1], p["out"]
    if p["form"] == "module":
        return nn.utils.weight_norm(nn.Linear(into, out))
    return Weighted(lambda self, x: F.linear(x, self.g.view(-1, 1) * self.v / self.v.norm(dim=1, keepdim=True)),
                    g=(out,), v=(out, into))


@layer("standardised convolution", lambda r, shapes: {"out": r.randint(1, 4)}
       if len(shapes[0]) == 4 and shapes[0][1] > 1 else None, weight=0.7)
def standardised(p, shapes):
    def convolve(self, x):
        w = self.w - self.w.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, w / (w.pow(2).mean((1, 2, 3), keepdim=True) + 1e-3).sqrt(), self.b, padding=1)
    return Weighted(convolve, w=(p["out"], shapes[0][1], 3, 3), b=(p["out"],))


@layer("computed weight", lambda r, shapes: {"out": r.randint(1, 5), "form": r.choice(
    ["softmax", "low rank", "sum", "joined", "masked", "scaled", "picked", "squared"])}, weight=2)
def computed_weight(p, shapes):
    into, out = shapes[0][-1], p["out"]
    form = p["form"]
    if form == "softmax":
        return Weighted(lambda self, x: x @ F.softmax(self.w, dim=0), w=(into, out))
    if form == "low rank":
        return Weighted(lambda self, x: x @ (self.a @ self.b + self.w), a=(into, 2), b=(2, out), w=(into, out))
    if form == "sum":
        return Weighted(lambda self, x: x @ (self.a + self.b), a=(into, out), b=(into, out))
    if form == "joined":
        return Weighted(lambda self, x: x @ torch.cat([self.a, self.b], 1), a=(into, out), b=(into, 1))
    if form == "masked":
        return Weighted(lambda self, x: x @ self.w.tril(), w=(into, out))
    if form == "scaled":
        return Weighted(lambda self, x: x @ (self.w * 0.5) + (self.b + 1), w=(into, out), b=(out,))
    if form == "picked":
        return Weighted(lambda self, x: x @ self.w[:, [out - 1, 0]], w=(into, out))
    return Weighted(lambda self, x: x @ (self.w * self.w), w=(into, out))


@layer("layer scale", lambda r, shapes: {"form": r.choice(["plain", "gate", "mix"])})
def layer_scale(p, shapes):
    width = shapes[0][-1]
    if p["form"] == "plain":
        return Weighted(lambda self, x: x + self.scale * torch.tanh(x), scale=(width,))
    if p["form"] == "gate":
        return Weighted(lambda self, x: torch.sigmoid(self.gate) * x, gate=(1,))
    return Weighted(lambda self, x: self.a * x + (1 - self.a) * torch.relu(x), a=(1,) * len(shapes[0]))


class Experts(nn.Module):
    """All experts, weighed by a gate."""

    def __init__(self, width, experts):
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x):
        weights = F.softmax(self.gate(x), dim=-1)
        outputs = torch.stack([torch.relu(expert(x)) for expert in self.experts], -1)
        return (outputs * weights.unsqueeze(-2)).sum(-1)


@layer("soft experts", lambda r, shapes: {"experts": r.randint(2, 3)} if len(shapes[0]) <= 3 else None)
def soft_experts(p, shapes):
    return Experts(shapes[0][-1], p["experts"])


class Residual(nn.Module):
    def __init__(self, p, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, p["inner"], 1), nn.GroupNorm(1, p["inner"]), nn.SiLU(),
            nn.Conv2d(p["inner"], channels, 3, padding=1))
        self.skip = nn.Conv2d(channels, channels, 1) if p["project"] else nn.Identity()

    def forward(self, x):
        return self.body(x) + self.skip(x)


@layer("residual block", lambda r, shapes: {"inner": r.randint(1, 4), "project": r.random() < 0.5}
       if len(shapes[0]) == 4 else None, weight=1.5)
def residual(p, shapes):
    return Residual(p, shapes[0][1])


@layer("feed-forward block", lambda r, shapes: {"inner": r.randint(2, 8), "first": r.random() < 0.5}, weight=1.5)
def feed_forward(p, shapes):
    width = shapes[0][-1]
    body = nn.Sequential(nn.Linear(width, p["inner"]), nn.GELU(), nn.Linear(p["inner"], width))
    norm = nn.LayerNorm(width)
    module = nn.ModuleDict({"body": body, "norm": norm})
    module.forward = (lambda x: x + body(norm(x))) if p["first"] else (lambda x: norm(x + body(x)))
    return module


@layer("bilinear", lambda r, shapes: {"out": r.randint(1, 3)} if shapes[0] == shapes[1] and len(shapes[0]) == 2
       else None, weight=0.7, operands=2)
def bilinear(p, shapes):
    into = shapes[0][-1]
    return Weighted(lambda self, a, b: torch.einsum("bi,oij,bj->bo", a, self.w, b) * 0.3 if p["out"] % 2 else
                    torch.stack([((a @ self.w[i]) * b).sum(-1) for i in range(p["out"])], -1),
                    w=(p["out"], into, into))


@layer("assignment", lambda r, shapes: {"axis": axis_of(r, shapes[0]), "form": r.choice(
    ["constant", "piece", "scatter"])}, weight=1)
def assignment(p, shapes):
    axis, size = p["axis"], shapes[0][p["axis"]]
    index = (slice(None),) * axis

    def assign(x):
        y = x * 1
        if p["form"] == "constant":
            y[index + (size // 2,)] = 0.5
        elif p["form"] == "piece":
            y[index + (slice(0, size // 2),)] = torch.tanh(x[index + (slice(size - size // 2, size),)])
        else:
            where = torch.zeros_like(x[index + (slice(0, 1),)], dtype=torch.long) + size // 2
            y = y.scatter(axis, where, x[index + (slice(0, 1),)] * 2)
        return y
    return assign


@layer("chosen by size", lambda r, shapes: {"form": r.choice(["argmax", "topmost", "one-hot"])}, weight=0.5)
def chosen(p, shapes):
    if p["form"] == "argmax":
        return lambda x: x.gather(-1, x.abs().argmax(-1, keepdim=True)) * x
    if p["form"] == "topmost":
        return lambda x: x * (x >= x.amax(-1, keepdim=True)).to(x.dtype) + 0.1 * x
    return lambda x: x * F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype) + 0.1 * x


@layer("gathered", lambda r, shapes: {"axis": r.randrange(1, len(shapes[1]))}
       if len(shapes[1]) >= 2 and len(shapes[0]) == 2 and shapes[0][0] == shapes[1][0] else None, weight=0.3,
       operands=2, integer=True)
def gathered(p, shapes):
    # Integers of the data choose places of an activation.
    axis, size = p["axis"], shapes[1][p["axis"]]

    def gather(ids, x):
        places = (ids % size).view([ids.shape[0], *(ids.shape[1] if i == axis else 1 for i in range(1, x.dim()))])
        return x.gather(axis, places.expand([ids.shape[1] if i == axis else s for i, s in enumerate(x.shape)]))
    return gather


class TopExperts(nn.Module):
    """Experts of which the gate chooses the best few."""

    def __init__(self, p, width):
        super().__init__()
        self.p = p
        self.gate = nn.Linear(width, p["experts"], bias=p["bias"])
        if p["form"] in ("table", "gathered"):
            self.table = nn.Parameter(torch.randn(p["experts"], width, width) * 0.5)
        else:
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, p["inner"]), nn.GELU(), nn.Linear(p["inner"],
                width))
                                         for _ in range(p["experts"]))

    def forward(self, x):
        p, scores = self.p, self.gate(x)
        if p["first"]:
            scores = F.softmax(scores, -1)
        best, places = scores.topk(p["best"], dim=-1)
        if not torch.jit.is_tracing() and bool(((scores >= best[..., -1:]).sum(-1) > p["best"]).any()):
            raise Unsuitable("experts that tie: which of them topk takes is PyTorch's secret")
        weights = best / best.sum(-1, keepdim=True) if p["first"] else F.softmax(best, -1)
        if p["form"] == "table":
            y = torch.einsum("...i,eij->...ej", x, self.table)
            chosen = y.gather(-2, places.unsqueeze(-1).expand(*places.shape, x.shape[-1]))
            return (chosen * weights.unsqueeze(-1)).sum(-2)
        if p["form"] == "gathered":
            return (torch.matmul(x[..., None, None, :], self.table[places]).squeeze(-2) * weights.unsqueeze(-1)).sum(-2)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        if p["form"] == "scatter":
            whole = torch.zeros_like(scores).scatter(-1, places, weights)
            return (outputs * whole.unsqueeze(-1)).sum(-2)
        if p["form"] == "one-hot":
            whole = (F.one_hot(places, p["experts"]).to(x.dtype) * weights.unsqueeze(-1)).sum(-2)
            return torch.einsum("...e,...ej->...j", whole, outputs)
        if p["form"] == "loop":
            y = torch.zeros_like(x)
            for i in range(p["experts"]):
                y = y + outputs[..., i, :] * (weights * (places == i).to(x.dtype)).sum(-1, keepdim=True)
            return y
        hidden = scores.masked_fill(scores < best[..., -1:], float("-inf") if not p["first"] else 0.0)
        return (outputs * (hidden if p["first"] else F.softmax(hidden, -1)).unsqueeze(-1)).sum(-2)


@layer("best experts", lambda r, shapes: {
    "experts": r.randint(2, 4), "best": r.randint(1, 2), "inner": r.randint(1, 4), "bias": r.random() < 0.5,
    "first": r.random() < 0.5, "form": r.choice(["table", "gathered", "scatter", "one-hot", "loop", "masked"])}
    if len(shapes[0]) <= 3 else None, weight=3)
def best_experts(p, shapes):
    return TopExperts(p, shapes[0][-1])

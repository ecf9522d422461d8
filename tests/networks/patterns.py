"""Patterns out of whole networks (tests/whole_networks.py) that are combined with everything else here: places and
lengths that are counted from the data, sums of what meets, weights that are made of places, the same layers in rounds."""

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import Weighted, layer


def is_sequence(shape, longest=16):
    return len(shape) == 3 and 2 <= shape[1] <= longest


@layer("counted places", lambda r, shapes: {"width": r.randint(1, 5), "form": r.choice(["shown", "all", "pairs"])}
       if len(shapes[0]) == 2 and 2 <= shapes[0][1] <= 10 else None, weight=1.5, integer=True)
def counted_places(p, shapes):
    """Indices of a table that are computed from integers of the data."""
    length, width = shapes[0][1], p["width"]
    if p["form"] == "pairs":
        return Weighted(lambda self, ids: self.w.view(-1)[(ids[:, :-1] % 4) * 4 + ids[:, 1:] % 4], w=(4, 4))

    def look(self, ids):
        shown = ids.ne(1).to(torch.int64) if p["form"] == "shown" else torch.ones_like(ids, dtype=torch.int64)
        places = torch.cumsum(shown, 1) * shown
        return F.embedding(places, self.w) * (1 + 0.1 * shown.unsqueeze(-1).to(self.w.dtype))
    return Weighted(look, w=(length + 1, width))


def of_one_batch(shapes):
    ids, x = shapes
    return len(ids) == 2 and is_sequence(x) and ids[0] == x[0]


@layer("messages", lambda r, shapes: {"form": r.choice(["sum", "mean", "softmax", "copy"])} if of_one_batch(shapes)
       else None, weight=1.5, operands=2, integer=True)
def messages(p, shapes):
    """Rows are fetched from places of the data, changed, and added up where they meet."""
    count, width = shapes[1][1:]

    def send(self, ids, x):
        ids = ids.to(torch.int64)
        source, target = ids % count, (ids * 5 + 1) % count
        rows = x.gather(1, source.unsqueeze(-1).expand(-1, -1, width))
        where = target.unsqueeze(-1).expand_as(rows)
        if p["form"] == "copy":
            weights = F.softmax(rows.mean(-1), -1).unsqueeze(-1)
            return torch.sigmoid(x).scatter_add(1, where, weights * self.w)
        rows = torch.tanh(rows * self.w)
        if p["form"] == "softmax":
            scores = torch.exp(rows.sum(-1, keepdim=True))
            met = torch.zeros_like(x[..., :1]).scatter_add(1, target.unsqueeze(-1), scores)
            rows = rows * scores / (met.gather(1, target.unsqueeze(-1)) + 1e-3)
        got = torch.zeros_like(x).scatter_add(1, where, rows)
        if p["form"] == "mean":
            ones = torch.ones_like(rows[..., :1])
            got = got / torch.zeros_like(x[..., :1]).scatter_add(1, target.unsqueeze(-1), ones).clamp(min=1)
        return got + 0.2 * x
    return Weighted(send, w=(width,))


@layer("lengths", lambda r, shapes: {"form": r.choice(["last", "mean", "largest", "softmax", "before"])}
       if of_one_batch(shapes) else None, weight=1.5, operands=2, integer=True)
def lengths(p, shapes):
    """Sequences that end where the data says."""
    count, width = shapes[1][1:]

    def cut(ids, x):
        size = ids[:, :1].to(torch.int64) % count + 1
        shown = (torch.arange(count)[None] < size).unsqueeze(-1)
        kept = shown.to(x.dtype)
        if p["form"] == "last":
            return x.gather(1, (size - 1).unsqueeze(-1).expand(-1, 1, width))
        if p["form"] == "mean":
            return (x * kept).sum(1) / kept.sum(1)
        if p["form"] == "largest":
            return torch.where(shown, x, torch.full_like(x, -1e9)).amax(1)
        if p["form"] == "softmax":
            return F.softmax(x.masked_fill(~shown, float("-inf")), 1) * x
        return x * kept + (1 - kept) * x[:, :1]
    return cut


@layer("light along rays", lambda r, shapes: {} if len(shapes[0]) >= 3 else None)
def light(p, shapes):
    def gather(self, x):
        dense = F.softplus(x * self.w - 1)
        before = torch.cat([torch.zeros_like(dense[..., :1]), dense[..., :-1].cumsum(-1)], -1)
        weights = torch.exp(-before) * (1 - torch.exp(-dense))
        return weights * torch.sigmoid(x) + (1 - weights.sum(-1, keepdim=True))
    return Weighted(gather, w=(shapes[0][-1],))


@layer("turned pairs", lambda r, shapes: {"form": r.choice(["stack", "strided", "unbind"])}
       if len(shapes[0]) >= 3 and shapes[0][-1] % 2 == 0 else None)
def turned_pairs(p, shapes):
    places, pairs = shapes[0][-2], shapes[0][-1] // 2
    turns = torch.outer(torch.arange(places).float(), 10.0 ** -torch.arange(pairs).float())

    def turn(x):
        cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        a, b = (x[..., ::2], x[..., 1::2]) if p["form"] == "strided" else x.reshape(*x.shape[:-1], pairs, 2).unbind(-1)
        a, b = a * cos - b * sin, a * sin + b * cos
        if p["form"] == "unbind":
            return torch.cat([a.unsqueeze(-1), b.unsqueeze(-1)], -1).reshape(x.shape)
        return torch.stack([a, b], -1).flatten(-2)
    return turn


@layer("basis of splines", lambda r, shapes: {"cells": r.randint(2, 4), "order": r.randint(1, 2), "out": r.randint(1, 3)}
       if len(shapes[0]) == 2 and shapes[0][1] <= 8 else None)
def splines(p, shapes):
    cells, order, into = p["cells"], p["order"], shapes[0][1]
    grid = (torch.arange(-order, cells + order + 1) * 2 / cells - 1).float().expand(into, -1).contiguous()

    def spline(self, x):
        g, y = self.told_grid, torch.tanh(x).unsqueeze(-1)
        basis = ((y >= g[:, :-1]) & (y < g[:, 1:])).to(x.dtype)
        for k in range(1, order + 1):
            basis = ((y - g[:, :-(k + 1)]) / (g[:, k:-1] - g[:, :-(k + 1)]) * basis[:, :, :-1]
                     + (g[:, k + 1:] - y) / (g[:, k + 1:] - g[:, 1:-k]) * basis[:, :, 1:])
        return F.linear(basis.flatten(1), self.w.flatten(1)) + F.silu(x) @ self.b
    return Weighted(spline, {"told_grid": grid}, w=(p["out"], into, cells + order), b=(into, p["out"]))


@layer("made filter", lambda r, shapes: {"inner": r.randint(1, 4)} if len(shapes[0]) == 3 and shapes[0][2] <= 12
       else None)
def made_filter(p, shapes):
    """A convolution of all that came before, whose filter a small network makes of places."""
    _, channels, length = shapes[0]
    steps = torch.linspace(0, 1, length)[:, None]
    told = torch.cat([steps, torch.sin(6 * steps), torch.cos(6 * steps)], 1)

    def convolve(self, x):
        t = told.to(x.dtype)
        made = torch.tanh(t @ self.a) @ self.b * torch.exp(-t[:, :1] * self.decay.abs())
        return F.conv1d(F.pad(x, (length - 1, 0)), made.t().flip(-1).unsqueeze(1), groups=channels)
    return Weighted(convolve, a=(3, p["inner"]), b=(p["inner"], channels), decay=(channels,))


@layer("decay by distance", lambda r, shapes: {"heads": r.randint(1, 2)} if is_sequence(shapes[0], 8) else None)
def decay(p, shapes):
    length, heads = shapes[0][1], p["heads"]
    apart = torch.arange(length)[:, None] - torch.arange(length)[None]

    def mix(self, x):
        far = apart.to(x.dtype)
        kept = torch.sigmoid(self.speed).view(-1, 1, 1) ** far.clamp(min=0) * (far >= 0).to(x.dtype)
        return (kept[None] @ x[:, None]).mean(1) * 0.5
    return Weighted(mix, speed=(heads,))


class Rounds(nn.Module):
    """Four evaluations of the same layer a round, with a step that is learned."""

    def __init__(self, p, width):
        super().__init__()
        self.p, self.layer, self.step = p, nn.Linear(width, width), nn.Parameter(torch.tensor(-0.7))

    def forward(self, x):
        h = F.softplus(self.step)
        for _ in range(self.p["rounds"]):
            a = torch.tanh(self.layer(x))
            b = torch.tanh(self.layer(x + h / 2 * a))
            c = torch.tanh(self.layer(x + h / 2 * b))
            x = x + h / 6 * (a + 2 * b + 2 * c + torch.tanh(self.layer(x + h * c)))
        return x


@layer("rounds", lambda r, shapes: {"rounds": r.randint(1, 2)} if shapes[0][-1] <= 16 else None)
def rounds(p, shapes):
    return Rounds(p, shapes[0][-1])


@layer("coupled halves", lambda r, shapes: {"inner": r.randint(2, 5)} if 2 <= shapes[0][-1] <= 12 else None)
def coupled(p, shapes):
    width = shapes[0][-1]
    mask = (torch.arange(width) % 2).float()

    def couple(self, x):
        s, t = (torch.tanh((x * self.told_mask) @ self.a) @ self.b).chunk(2, -1)
        s = torch.tanh(s) * (1 - self.told_mask)
        return x * self.told_mask + (1 - self.told_mask) * (x * torch.exp(s) + t) + 0.1 * s.sum(-1, keepdim=True)
    return Weighted(couple, {"told_mask": mask}, a=(width, p["inner"]), b=(p["inner"], 2 * width))


@layer("sharpened", lambda r, shapes: {"rows": r.randint(2, 4)} if len(shapes[0]) == 2 else None)
def sharpened(p, shapes):
    """Rows of a memory by their likeness, sharpened by an exponent, and written over."""
    width = shapes[0][1]

    def address(self, x):
        memory = self.memory.unsqueeze(0).expand(x.shape[0], -1, -1)
        w = F.softmax(2 * F.cosine_similarity(memory, torch.tanh(x).unsqueeze(1) + 0.1, dim=-1), 1)
        w = (w + 1e-3) ** (1 + F.softplus(x[:, :1] * self.sharp))
        w = (w / w.sum(1, keepdim=True)).roll(1, 1).unsqueeze(-1)
        memory = memory * (1 - w * torch.sigmoid(x).unsqueeze(1)) + w * x.unsqueeze(1)
        return (w * memory).sum(1)
    return Weighted(address, memory=(p["rows"], width), sharp=())

"""Layers of sequences [batch, length, width]: attention in several spellings, recurrence, tables."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import Weighted, divisors, layer


def is_sequence(shape):
    return len(shape) == 3 and 1 <= shape[1] <= 16


def heads_of(p, width):
    choices = divisors(width)
    return choices[int(p["heads"] * len(choices))]


def masked(scores, kind):
    """Scores after a mask, which is made where it is needed, as people write it."""
    rows, columns = scores.shape[-2:]
    shown = torch.ones(rows, columns).tril()
    if kind == "fill":
        return scores.masked_fill(shown == 0, float("-inf"))
    if kind == "large":
        return scores.masked_fill(shown == 0, -1e9)
    if kind == "add":
        return scores + (1 - shown.to(scores.dtype)) * -10000.0
    if kind == "where":
        return torch.where(shown > 0, scores, scores.new_full((), -1e4))
    return scores


def draw_attention(r, shapes):
    if not is_sequence(shapes[0]):
        return None
    return {"heads": r.random(), "form": r.choice(["matmul", "bmm", "einsum", "split", "one"]),
            "mask": r.choice(["none", "none", "fill", "large", "add", "where"]),
            "scale": r.choice(["after", "query", "both", "none"]), "bias": r.random() < 0.6,
            "softmax": r.choice(["plain", "written"])}


class Attention(nn.Module):
    def __init__(self, p, width):
        super().__init__()
        self.p, self.heads = p, heads_of(p, width)
        if p["form"] == "split":
            self.all = nn.Linear(width, 3 * width, bias=p["bias"])
        else:
            self.query, self.key, self.value = (
                nn.Linear(width, width, bias=p["bias"]) for _ in range(3))
        self.out = nn.Linear(width, width, bias=p["bias"])

    def softmax(self, scores):
        if self.p["softmax"] == "plain":
            return F.softmax(scores, dim=-1)
        weights = (scores - scores.max(dim=-1, keepdim=True)[0]).exp()
        return weights / weights.sum(-1, keepdim=True)

    def forward(self, x):
        batch, length, width = x.shape
        size = width // self.heads
        if self.p["form"] == "split":
            q, k, v = self.all(x).chunk(3, dim=-1)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        scale = 1 / math.sqrt(size)
        if self.p["scale"] == "query":
            q = q * scale
        elif self.p["scale"] == "both":
            q, k = q * math.sqrt(scale), k * math.sqrt(scale)
        after = scale if self.p["scale"] == "after" else 1.0
        form = self.p["form"]
        if form == "one":
            weights = self.softmax(masked(q @ k.transpose(1, 2) * after, self.p["mask"]))
            return self.out(weights @ v)
        if form == "einsum":
            q, k, v = (t.reshape(batch, length, self.heads, size) for t in (q, k, v))
            scores = masked(torch.einsum("bqhd,bkhd->bhqk", q, k) * after, self.p["mask"])
            y = torch.einsum("bhqk,bkhd->bqhd", self.softmax(scores), v)
            return self.out(y.reshape(batch, length, width))
        q, k, v = (t.view(batch, length, self.heads, size).transpose(1, 2) for t in (q, k, v))
        if form == "bmm":
            q, k, v = (t.reshape(batch * self.heads, length, size) for t in (q, k, v))
            scores = masked(torch.bmm(q, k.transpose(1, 2)) / (1 / after), self.p["mask"])
            y = torch.bmm(self.softmax(scores), v).view(batch, self.heads, length, size)
        else:
            y = self.softmax(masked(q @ k.transpose(-2, -1) * after, self.p["mask"])) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


@layer("attention", draw_attention, weight=6)
def attention(p, shapes):
    return Attention(p, shapes[0][-1])


class Multihead(nn.Module):
    def __init__(self, p, width):
        super().__init__()
        self.p = p
        self.part = nn.MultiheadAttention(width, heads_of(p, width), bias=p["bias"],
                                          batch_first=p["batch_first"])

    def forward(self, x, y):
        if not self.p["batch_first"]:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        mask = None
        if self.p["mask"] and x.shape == y.shape:
            length = x.shape[1 if self.p["batch_first"] else 0]
            mask = torch.ones(length, length).triu(1) > 0
        z = self.part(x, y, y, attn_mask=mask, need_weights=self.p["weights"])[0]
        return z if self.p["batch_first"] else z.transpose(0, 1)


def draw_multihead(r, shapes):
    x, y = shapes
    if not is_sequence(x) or len(y) != 3 or x[0] != y[0] or x[2] != y[2]:
        return None
    return {"heads": r.random(), "bias": r.random() < 0.7, "batch_first": r.random() < 0.6,
            "mask": r.random() < 0.4, "weights": r.random() < 0.2}


@layer("multihead attention", draw_multihead, weight=2, operands=2)
def multihead(p, shapes):
    return Multihead(p, shapes[0][-1])


@layer("encoder layer", lambda r, shapes: {
    "heads": r.random(), "first": r.random() < 0.5, "activation": r.choice(["relu", "gelu"])}
    if is_sequence(shapes[0]) else None, weight=0.7)
def encoder_layer(p, shapes):
    width = shapes[0][-1]
    return nn.TransformerEncoderLayer(width, heads_of(p, width), 2 * width, 0.0, p["activation"],
                                      batch_first=True, norm_first=p["first"])


class Recurrent(nn.Module):
    def __init__(self, p, width):
        super().__init__()
        self.p = p
        made = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[p["kind"]]
        more = {"nonlinearity": p["activation"]} if p["kind"] == "rnn" else {}
        self.part = made(width, p["size"], p["layers"], p["bias"], p["batch_first"],
                         bidirectional=p["both"], **more)
        if p["state"] == "weights":
            count = p["layers"] * (2 if p["both"] else 1)
            self.begin = nn.Parameter(torch.randn(count, 1, p["size"]) * 0.5)

    def forward(self, x):
        if not self.p["batch_first"]:
            x = x.transpose(0, 1)
        count = self.p["layers"] * (2 if self.p["both"] else 1)
        batch = x.shape[0 if self.p["batch_first"] else 1]
        state = None
        if self.p["state"] == "weights":
            state = self.begin.expand(count, batch, self.p["size"]).contiguous()
        elif self.p["state"] == "ones":
            state = x.new_ones(count, batch, self.p["size"])
        if state is not None and self.p["kind"] == "lstm":
            state = (state, state * 0.5)
        y, last = self.part(x, state)
        if not self.p["batch_first"]:
            y = y.transpose(0, 1)
        if self.p["kind"] == "lstm":
            last, cell = last
            if self.p["result"] == "cell":
                return cell.transpose(0, 1)
        return last.transpose(0, 1) if self.p["result"] != "all" else y


@layer("recurrent", lambda r, shapes: {
    "kind": r.choice(["lstm", "gru", "rnn"]), "size": r.randint(1, 6), "layers": r.choice([1, 1, 2, 3]),
    "activation": r.choice(["tanh", "relu"]),
    "bias": r.random() < 0.8, "batch_first": r.random() < 0.6, "both": r.random() < 0.4,
    "state": r.choice(["none", "none", "ones", "weights"]),
    "result": r.choice(["all", "all", "last", "cell"])} if is_sequence(shapes[0]) else None, weight=3)
def recurrent(p, shapes):
    return Recurrent(p, shapes[0][-1])


@layer("embedding", lambda r, shapes: {"width": r.randint(1, 8)}, weight=4, integer=True)
def embedding(p, shapes):
    return nn.Embedding(12, p["width"])


@layer("tied embedding", lambda r, shapes: {"width": r.randint(2, 8)}, weight=1, integer=True)
def tied_embedding(p, shapes):
    # Used as a table and as the matrix of a product.
    return Weighted(lambda self, ids: torch.tanh(F.embedding(ids, self.w)) @ self.w.t(),
                    w=(12, p["width"]))


@layer("one-hot", lambda r, shapes: {"out": r.randint(2, 6)}, weight=0.7, integer=True)
def one_hot(p, shapes):
    return Weighted(lambda self, ids: F.one_hot(ids, 12).to(self.w.dtype) @ self.w, w=(12, p["out"]))


@layer("lookup", lambda r, shapes: {} if len(shapes[1]) >= 2 else None, weight=1, operands=2,
       integer=True)
def lookup(p, shapes):
    # Rows of the second operand's last axis, chosen by integers.
    count = shapes[1][-1]
    return lambda ids, x: x * (1 + (ids.reshape(ids.shape[0], -1)[:, :1] % count).to(x.dtype).reshape(
        -1, *[1] * (x.dim() - 1)))


class Cells(nn.Module):
    """A recurrent cell, step by step."""

    def __init__(self, p, width):
        super().__init__()
        made = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}[p["kind"]]
        self.p, self.cell = p, made(width, p["size"], p["bias"])

    def forward(self, x):
        state, rows = None, []
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
            rows.append(state[0] if self.p["kind"] == "lstm" else state)
        return torch.stack(rows, 1)


@layer("recurrent cells", lambda r, shapes: {"kind": r.choice(["lstm", "gru", "rnn"]), "size": r.randint(1, 4),
    "bias": r.random()
                                             < 0.8} if len(shapes[0]) == 3 and shapes[0][1] <= 6 else None, weight=1.5)
def cells(p, shapes):
    return Cells(p, shapes[0][-1])

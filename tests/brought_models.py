"""Networks as people bring them; see brought_networks_test.py."""

import dataclasses
import math
import typing

import torch
from torch import nn
from torch.nn import functional as F

BATCH, STEPS = 4, 5
SAMPLES = BATCH * STEPS


@dataclasses.dataclass
class Case:
    make: typing.Callable[[], nn.Module]
    inputs: typing.Callable[[], dict]
    label: tuple  # name and values; None if the network has a loss of its own
    loss: typing.Callable = F.cross_entropy
    flags: tuple = ()  # of `windlass train`
    buffers: tuple = ()  # that must not be trained
    folding: bool = True  # constants, by the exporter
    cuts: bool = False  # micro-batches must not be refused


def integers(limit, *shape):
    return torch.randint(limit, (SAMPLES, *shape))


def noise(*shape):
    return torch.randn(SAMPLES, *shape)


class Bert(nn.Module):
    """Words, segments and positions, with a mask of padding."""

    def __init__(self, words=50, width=16, heads=2, length=8, classes=50):
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(words, width)
        self.segments = nn.Embedding(3, width)
        self.positions = nn.Embedding(length, width)
        self.register_buffer("position_ids", torch.arange(length)[None])
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, ids, segments, mask):
        batch, length = ids.shape
        x = self.words(ids) + self.segments(segments) + self.positions(self.position_ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        split = lambda t: t.view(batch, length, self.heads, -1).transpose(1, 2)
        scores = split(q) @ split(k).transpose(2, 3) / math.sqrt(x.shape[-1] / self.heads)
        hidden = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e9
        y = torch.softmax(scores + hidden, dim=-1) @ split(v)
        return self.head(x + self.out(y.transpose(1, 2).reshape(batch, length, -1)))


class Rotary(nn.Module):
    """A causal transformer layer whose cosines, sines and mask are buffers."""

    def __init__(self, words=50, width=16, heads=2, length=8):
        super().__init__()
        self.heads, each = heads, width // heads
        self.words = nn.Embedding(words, width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, words, bias=False)
        angles = torch.outer(torch.arange(length).float(),
                             10000.0 ** (-torch.arange(0, each, 2).float() / each))
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("table_c", angles.cos())
        self.register_buffer("table_s", angles.sin())
        self.register_buffer("hidden", torch.full((length, length), float("-inf")).triu(1))

    def turn(self, x):
        a, b = x.chunk(2, dim=-1)
        return x * self.table_c + torch.cat([-b, a], dim=-1) * self.table_s

    def forward(self, ids):
        batch, length = ids.shape
        x = self.words(ids)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(x).chunk(3, dim=-1))
        scores = self.turn(q) @ self.turn(k).transpose(2, 3) / math.sqrt(q.shape[-1])
        y = torch.softmax(scores + self.hidden, dim=-1) @ v
        return self.head(x + self.out(y.transpose(1, 2).reshape(batch, length, -1)))


class Sinusoidal(nn.Module):
    """Positions as sums of sines, and a learned table of the same use."""

    def __init__(self, words=50, width=16, length=8):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.learned = nn.Parameter(torch.randn(1, length, width) * 0.02)
        place = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        table = torch.zeros(length, width)
        table[:, 0::2], table[:, 1::2] = place.sin(), place.cos()
        self.register_buffer("pe", table[None])
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        return self.head(torch.tanh(self.words(ids) + self.pe + self.learned))


class Seq2Seq(nn.Module):
    """GRU encoder and decoder, with a vocabulary each."""

    def __init__(self, source=40, target=30, width=12):
        super().__init__()
        self.source = nn.Embedding(source, width)
        self.target = nn.Embedding(target, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, target)

    def forward(self, source_ids, target_ids):
        _, state = self.encoder(self.source(source_ids))
        y, _ = self.decoder(self.target(target_ids), state)
        return self.head(y)


class Mixture(nn.Module):
    """Top-2 mixture of experts in plain PyTorch, in one of the ways people write it."""

    def __init__(self, way, width=8, experts=4, k=2, classes=6):
        super().__init__()
        self.way, self.k = way, k
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(experts))
        self.head = nn.Linear(width, classes)

    def weights(self, scores):
        best, index = torch.topk(scores, self.k, dim=-1)
        if self.way == "scatter":
            return torch.zeros_like(scores).scatter(-1, index, torch.softmax(best, dim=-1))
        if self.way == "scatter_inf":
            masked = torch.full_like(scores, float("-inf")).scatter(-1, index, best)
            return torch.softmax(masked, dim=-1)
        if self.way == "one_hot":
            hot = F.one_hot(index, scores.shape[-1]).to(scores.dtype)
            return (hot * torch.softmax(best, dim=-1)[..., None]).sum(dim=-2)
        if self.way == "threshold":
            least = best[..., -1:]
            all_of = torch.softmax(scores, dim=-1)
            kept = torch.where(scores >= least, all_of, torch.zeros_like(all_of))
            return kept / kept.sum(dim=-1, keepdim=True)
        if self.way == "gather":
            chosen = torch.softmax(scores, dim=-1).gather(-1, index)
            chosen = chosen / chosen.sum(dim=-1, keepdim=True)
            return torch.zeros_like(scores).scatter(-1, index, chosen)
        if self.way == "scatter_add":
            return torch.zeros_like(scores).scatter_add(-1, index, torch.softmax(best, dim=-1))
        weights = torch.softmax(best, dim=-1)
        return torch.stack([((index == e) * weights).sum(dim=-1)
                            for e in range(scores.shape[-1])], dim=-1)

    def forward(self, x):
        w = self.weights(self.gate(x))
        y = sum(w[..., e:e + 1] * expert(x) for e, expert in enumerate(self.experts))
        return self.head(x + y)


class WithLoss(nn.Module):
    """A network that computes its loss itself, with class weights or as a sum."""

    def __init__(self, **options):
        super().__init__()
        self.body, self.options = scorer(4), options
        self.register_buffer("class_weights", torch.tensor([1.0, 2.0, 0.5, 3.0]))

    def forward(self, x, t):
        weight = self.class_weights if self.options.get("weighted") else None
        return F.cross_entropy(self.body(x), t, weight=weight,
                               reduction=self.options.get("reduction", "mean"))


class Elman(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.rnn = nn.RNN(5, 6, batch_first=True, **options)
        self.head = nn.Linear(12 if options.get("bidirectional") else 6, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def tagger():
    return nn.Sequential(nn.Conv1d(5, 12, 3, padding=1), nn.ReLU(), nn.Conv1d(12, 7, 1))


def scorer(outputs):
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, outputs))


def by_token(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def with_ignored(labels):
    return torch.where(torch.rand(labels.shape) < 0.3, torch.tensor(-100), labels)


def padded(labels):
    """The first half of each batch is padding alone, of the other samples the end is."""
    second = torch.arange(len(labels)) % BATCH >= BATCH // 2
    sizes = torch.randint(1, labels.shape[1], (len(labels), 1)) * second[:, None]
    return torch.where(torch.arange(labels.shape[1]) < sizes, labels, torch.tensor(-100))


def cases():
    torch.manual_seed(3)
    words = {"ids": integers(50, 8)}
    tokens = ("labels", integers(50, 8))
    found = {
        "bert": Case(Bert, lambda: {**words, "segments": integers(3, 8),
                                    "mask": (torch.rand(SAMPLES, 8) < 0.8).long()},
                     ("labels", with_ignored(integers(50, 8))), by_token, cuts=True),
        "padded": Case(Sinusoidal, lambda: words, ("labels", padded(integers(50, 8))), by_token,
                       buffers=("pe",), cuts=True),
        "rotary": Case(Rotary, lambda: words, tokens, by_token,
                       buffers=("table_c", "table_s", "hidden")),
        "rotary_unfolded": Case(Rotary, lambda: words, tokens, by_token,
                                buffers=("table_c", "table_s", "hidden"), folding=False),
        "sinusoidal": Case(Sinusoidal, lambda: words, tokens, by_token, buffers=("pe",)),
        "seq2seq": Case(Seq2Seq, lambda: {"source_ids": integers(40, 6),
                                          "target_ids": integers(30, 5)},
                        ("labels", integers(30, 5)), by_token),
        "tagger": Case(tagger, lambda: {"x": noise(5, 9)}, ("labels", integers(7, 9))),
        "tagger_last": Case(lambda: nn.Sequential(nn.Linear(5, 7)), lambda: {"x": noise(9, 5)},
                            ("labels", integers(7, 9)), by_token),
        "ignore": Case(lambda: scorer(4), lambda: {"x": noise(6)}, ("labels", integers(4)),
                       lambda y, t: F.cross_entropy(y, t, ignore_index=2),
                       ("--loss", "cross-entropy:ignore=2"), cuts=True),
        "bce": Case(lambda: scorer(3), lambda: {"x": noise(6)}, ("target", torch.rand(SAMPLES, 3)),
                    F.binary_cross_entropy_with_logits, ("--loss", "bce")),
        "bce_sigmoid": Case(lambda: nn.Sequential(scorer(3), nn.Sigmoid()),
                            lambda: {"x": noise(6)}, ("target", torch.rand(SAMPLES, 3)),
                            F.binary_cross_entropy, ("--loss", "bce")),
        "l1": Case(lambda: scorer(3), lambda: {"x": noise(6)}, ("target", noise(3)), F.l1_loss,
                   ("--loss", "l1")),
        "huber": Case(lambda: scorer(3), lambda: {"x": noise(6)}, ("target", noise(3)),
                      lambda y, t: F.huber_loss(y, t, delta=0.5), ("--loss", "huber:delta=0.5")),
    }
    for name, options in (("weighted", {"weighted": True}), ("sum", {"reduction": "sum"})):
        found[f"loss_{name}"] = Case(lambda o=options: WithLoss(**o),
                                     lambda: {"x": noise(6), "t": integers(4)}, None,
                                     lambda loss, _: loss, buffers=("class_weights",),
                                     cuts=name == "weighted")
    for name, options in (("tanh", {}), ("relu_both", {"nonlinearity": "relu",
                                                       "bidirectional": True})):
        found[f"elman_{name}"] = Case(lambda o=options: Elman(**o), lambda: {"x": noise(7, 5)},
                                      ("labels", integers(4, 7)), by_token)
    for way in ("scatter", "scatter_inf", "one_hot", "threshold", "gather", "compare",
                "scatter_add"):
        found[f"mixture_{way}"] = Case(lambda way=way: Mixture(way), lambda: {"x": noise(5, 8)},
                                       ("labels", integers(6, 5)), by_token)
    return found

"""Networks of sequences, tables and graphs as people bring them, each as small as it gets; see
whole_networks_test.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from whole_networks import bent, bits, classes, network, noise, squares, uniform


def by_token(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class Conformer(nn.Module):
    """Half steps, attention with distances, and a module of convolutions."""

    def __init__(self, width=8, length=6):
        super().__init__()
        self.steps = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(),
                                                nn.Linear(2 * width, width)) for _ in range(2))
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(2, 2 * length - 1) * 0.1)
        self.before, self.wide = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.deep, self.middle = nn.Conv1d(width, width, 3, padding=1, groups=width), nn.BatchNorm1d(width)
        self.narrow, self.end, self.head = nn.Conv1d(width, width, 1), nn.LayerNorm(width), nn.Linear(width, 7)
        steps = torch.arange(length)
        self.register_buffer("apart", steps[None] - steps[:, None] + length - 1)

    def forward(self, x):
        batch, length, width = x.shape
        x = x + 0.5 * self.steps[0](x)
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // 2) + self.bias[:, self.apart]
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        y = F.glu(self.wide(self.before(x).transpose(1, 2)), dim=1)
        x = x + self.narrow(F.silu(self.middle(self.deep(y)))).transpose(1, 2)
        return self.head(self.end(x + 0.5 * self.steps[1](x)))


network("conformer", Conformer, x=noise(6, 8), labels=classes(7, 6), outside="cross-entropy:axis=-1")


class WaveNet(nn.Module):
    """Dilated convolutions of the past, gates, and skips that are added up."""

    def __init__(self, width=6, kinds=10):
        super().__init__()
        self.kinds = kinds
        self.begin, self.told = nn.Conv1d(kinds, width, 1), nn.Linear(3, 2 * width)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2 ** i) for i in range(3))
        self.skips, self.stays = (nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3)) for _ in range(2))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, kinds, 1))

    def forward(self, wave, speaker):
        x = self.begin(F.one_hot(wave[:, :-1], self.kinds).transpose(1, 2).to(self.begin.weight.dtype))
        total = 0
        for i, (gate, skip, stay) in enumerate(zip(self.gates, self.skips, self.stays)):
            y = gate(F.pad(x, (2 ** i, 0))) + self.told(speaker).unsqueeze(-1)
            a, b = y.chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            total, x = total + skip(y), (x + stay(y)) * math.sqrt(0.5)
        return F.cross_entropy(self.end(total), wave[:, 1:])


network("wavenet", WaveNet, wave=classes(10, 9), speaker=noise(3))


class Chomped(nn.Module):
    """A temporal convolutional network: weight norm, and what reaches too far cut off."""

    def __init__(self, into=3, width=5):
        super().__init__()
        self.parts, self.short = nn.ModuleList(), nn.ModuleList()
        for i, channels in enumerate((into, width)):
            self.parts.append(nn.utils.weight_norm(nn.Conv1d(channels, width, 3, padding=2 * 2 ** i, dilation=2 ** i)))
            self.short.append(nn.Conv1d(channels, width, 1) if channels != width else nn.Identity())
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        for i, (part, short) in enumerate(zip(self.parts, self.short)):
            x = F.relu(F.relu(part(x)[:, :, :-2 * 2 ** i].contiguous()) + short(x))
        return self.head(x[:, :, -1])


network("temporal_convolutions", Chomped, x=noise(3, 8), labels=classes(2), outside="cross-entropy")


class Interleaved(nn.Module):
    """Llama by hand: grouped queries, rotation of neighbouring pairs, RMS norms, a gated layer, tied tables."""

    def __init__(self, words=30, width=16, heads=4, groups=2, length=7):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.words = nn.Embedding(words, width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, n, bias=False) for n in (
            width, groups * self.size, groups * self.size, width))
        self.gate, self.up, self.down = (nn.Linear(*n, bias=False) for n in (
            (width, 20), (width, 20), (20, width)))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(3))
        turns = torch.outer(torch.arange(length).float(), 10000 ** (-torch.arange(0, self.size, 2) / self.size))
        self.register_buffer("freqs_cos", turns.cos(), persistent=False)
        self.register_buffer("freqs_sin", turns.sin(), persistent=False)

    def norm(self, x, i):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.scales[i]

    def turn(self, x):
        a, b = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
        cos, sin = self.freqs_cos[None, :, None].to(x.dtype), self.freqs_sin[None, :, None].to(x.dtype)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(3)

    def forward(self, ids, labels):
        batch, length = ids.shape
        x = self.words(ids)
        y = self.norm(x, 0)
        q, k, v = (t.view(batch, length, -1, self.size) for t in (self.q(y), self.k(y), self.v(y)))
        q, k = self.turn(q), self.turn(k)
        k, v = (t[:, :, :, None].expand(-1, -1, -1, self.heads // self.groups, -1).reshape(
            batch, length, self.heads, self.size) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mask = torch.triu(torch.full((length, length), float("-inf"), dtype=x.dtype), diagonal=1)
        y = F.softmax((q @ k.transpose(2, 3)) / math.sqrt(self.size) + mask, -1) @ v
        x = x + self.o(y.transpose(1, 2).contiguous().view(batch, length, -1))
        y = self.norm(x, 1)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return by_token(F.linear(self.norm(x, 2), self.words.weight), labels)


network("interleaved_rotary", Interleaved, ids=classes(30, 7), labels=classes(30, 7))


class Roberta(nn.Module):
    """Places are counted among what is no padding; the mean of the words, and slopes for heads."""

    def __init__(self, words=20, width=8, length=6):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=1), nn.Embedding(length + 2, width, padding_idx=1)
        self.qkv, self.head = nn.Linear(width, 3 * width), nn.Linear(width, 3)

    def forward(self, ids, labels):
        shown = ids.ne(1).int()
        places = (torch.cumsum(shown, dim=1).type_as(shown) * shown).long() + 1
        x = self.words(ids) + self.places(places)
        q, k, v = (t.view(*ids.shape, 2, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        far = torch.arange(ids.shape[1])[None] - torch.arange(ids.shape[1])[:, None]
        slopes = torch.tensor([0.5, 0.25], dtype=x.dtype).view(1, 2, 1, 1)
        scores = q @ k.transpose(2, 3) / 2 - slopes * far.abs().to(x.dtype)
        scores = scores.masked_fill(shown[:, None, None] == 0, torch.finfo(torch.float32).min)
        x = x + (torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2)
        kept = shown.unsqueeze(-1).to(x.dtype)
        return F.cross_entropy(self.head((x * kept).sum(1) / kept.sum(1).clamp(min=1e-9)), labels)


network("counted_places", Roberta, ids=classes(20, 6), labels=classes(3))


class Lengths(nn.Module):
    """Sequences of different lengths: the last state that counts, and a loss of what is before the end."""

    def __init__(self):
        super().__init__()
        self.words, self.part = nn.Embedding(15, 6), nn.GRU(6, 5, batch_first=True, bidirectional=True)
        self.each, self.whole = nn.Linear(10, 15), nn.Linear(10, 2)

    def forward(self, ids, lengths, labels):
        y, _ = self.part(self.words(ids))
        shown = torch.arange(ids.shape[1])[None] < lengths[:, None]
        loss = F.cross_entropy(self.each(y[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
        kept = shown[:, 1:].to(loss.dtype)
        last = y.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, y.shape[2])).squeeze(1)
        return (loss * kept).sum() / kept.sum() + F.cross_entropy(self.whole(last), labels)


network("lengths", Lengths, ids=classes(15, 6), lengths=classes(7, least=2), labels=classes(2))


class Decoder(nn.Module):
    """Cells with additive attention, fed with the truth."""

    def __init__(self, width=6, words=12):
        super().__init__()
        self.words, self.encode = nn.Embedding(words, width), nn.LSTM(width, width, batch_first=True)
        self.cell = nn.LSTMCell(2 * width, width)
        self.a, self.b, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.out = nn.Linear(2 * width, words)

    def forward(self, source, target):
        memory, (state, cell) = self.encode(self.words(source))
        state, cell, keys, found = state[0], cell[0], self.a(memory), []
        for t in range(target.shape[1] - 1):
            scores = self.v(torch.tanh(keys + self.b(state).unsqueeze(1))).squeeze(2)
            context = torch.bmm(F.softmax(scores, 1).unsqueeze(1), memory).squeeze(1)
            state, cell = self.cell(torch.cat([self.words(target[:, t]), context], 1), (state, cell))
            found.append(self.out(torch.cat([state, context], 1)))
        return by_token(torch.stack(found, 1), target[:, 1:])


network("attentive_decoder", Decoder, source=classes(12, 5), target=classes(12, 4))


class Pointer(nn.Module):
    """Attention as an output, and a mixture of copying and writing."""

    def __init__(self, width=6, words=10):
        super().__init__()
        self.words, self.encode = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.write, self.choose, self.look = nn.Linear(width, words), nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, source, labels):
        y, state = self.encode(self.words(source))
        state = state.squeeze(0)
        copied = F.softmax((self.look(y) * state.unsqueeze(1)).sum(-1), -1)
        written = F.softmax(self.write(state), -1)
        p = torch.sigmoid(self.choose(state))
        whole = (p * written).scatter_add(1, source, (1 - p) * copied)
        return -torch.log(whole.gather(1, labels.unsqueeze(1)) + 1e-6).mean()


network("pointer", Pointer, source=classes(10, 6), labels=classes(10))


class Field(nn.Module):
    """A linear-chain conditional random field: the sum over all paths, step by step, less the path that is meant."""

    def __init__(self, tags=4):
        super().__init__()
        self.scores, self.moves = nn.Linear(5, tags), nn.Parameter(torch.randn(tags, tags) * 0.3)
        self.begin, self.end = nn.Parameter(torch.randn(tags) * 0.3), nn.Parameter(torch.randn(tags) * 0.3)

    def forward(self, x, tags):
        scores = self.scores(x)
        alpha = self.begin + scores[:, 0]
        meant = self.begin[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, x.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.moves.unsqueeze(0) + scores[:, t].unsqueeze(1), dim=1)
            meant = meant + scores[:, t].gather(1, tags[:, t:t + 1]).squeeze(1)
        pairs = tags[:, :-1] * self.moves.shape[1] + tags[:, 1:]
        meant = meant + self.moves.view(-1)[pairs].sum(1) + self.end[tags[:, -1]]
        return (torch.logsumexp(alpha + self.end, 1) - meant).mean()


network("random_field", Field, x=noise(5, 5), tags=classes(4, 5))


class GraphNet(nn.Module):
    """Messages along stored edges, with attention, added up where they meet."""

    def __init__(self, nodes=6, width=5):
        super().__init__()
        edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 3, 5], [1, 2, 3, 4, 5, 0, 2, 4, 0, 1, 3, 5]])
        self.register_buffer("source", edges[0])
        self.register_buffer("target", edges[1])
        degree = torch.zeros(nodes).index_add(0, edges[1], torch.ones(12))
        self.register_buffer("norm", (degree[edges[0]] * degree[edges[1]]).rsqrt())
        self.nodes, self.first, self.second = nodes, nn.Linear(4, width), nn.Linear(2 * width + 1, width)
        self.attend, self.head = nn.Parameter(torch.randn(2 * width) * 0.5), nn.Linear(width, 3)

    def meet(self, rows):
        where = self.target.view(1, -1, 1).expand_as(rows)
        return torch.zeros(rows.shape[0], self.nodes, rows.shape[2], dtype=rows.dtype).scatter_add(1, where, rows)

    def forward(self, x, weights, labels):
        x = F.relu(self.meet(self.first(x).index_select(1, self.source) * self.norm[:, None]))
        pairs = torch.cat([x[:, self.source], x[:, self.target]], -1)
        e = torch.exp(F.leaky_relu(pairs @ self.attend, 0.2).unsqueeze(-1))
        e = e / (self.meet(e)[:, self.target] + 1e-6)
        x = F.elu(self.meet(self.second(torch.cat([pairs, weights.unsqueeze(-1)], -1)) * e) + x)
        return F.cross_entropy(self.head(x.mean(1)), labels)


network("graph", GraphNet, x=noise(6, 4), weights=uniform(12), labels=classes(3), told=("norm",))


class OwnGraph(nn.Module):
    """Edges are part of the data: each sample has its own."""

    def __init__(self, width=5):
        super().__init__()
        self.embed, self.send, self.keep = nn.Embedding(8, width), nn.Linear(2 * width, width), nn.GRUCell(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, atoms, source, target, labels):
        x = self.embed(atoms)
        for _ in range(2):
            at = lambda where: x.gather(1, where.unsqueeze(-1).expand(-1, -1, x.shape[2]))  # noqa: B023, E731
            rows = torch.tanh(self.send(torch.cat([at(source), at(target)], -1)))
            got = torch.zeros_like(x).scatter_add(1, target.unsqueeze(-1).expand_as(rows), rows)
            x = self.keep(got.view(-1, x.shape[2]), x.view(-1, x.shape[2])).view(x.shape)
        return F.cross_entropy(self.head(x.sum(1)), labels)


network("graph_of_the_data", OwnGraph, atoms=classes(8, 5), source=classes(5, 7), target=classes(5, 7),
        labels=classes(2))


class Pooled(nn.Module):
    """Graphs of different sizes in one batch of nodes, added up by the number of their graph."""

    def __init__(self, width=5):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(3, width), nn.ReLU()), nn.Linear(width, 2)

    def forward(self, x, graph, target):
        y = self.body(x)
        sums = torch.zeros(5, y.shape[1], dtype=y.dtype).index_add(0, graph, y)
        return squares(self.head(torch.tanh(sums))[graph], target)


network("pooled_graphs", Pooled, x=noise(3), graph=classes(5), target=noise(2))


class Recommender(nn.Module):
    """Tables of several kinds, their products in pairs, a wide part, and bits for several tasks."""

    def __init__(self, width=4):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, width) for n in (10, 7, 5))
        self.wide = nn.ModuleList(nn.Embedding(n, 1) for n in (10, 7, 5))
        self.dense = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, width))
        self.top, self.cross = nn.Linear(6 + width, 2), nn.ParameterList(
            nn.Parameter(torch.randn(4 * width, 1) * 0.3) for _ in range(2))
        self.last = nn.Linear(4 * width, 2, bias=False)
        i, j = torch.tril_indices(4, 4, -1)
        self.i, self.j = i.tolist(), j.tolist()

    def forward(self, ids, dense, clicks):
        rows = torch.stack([t(ids[:, i]) for i, t in enumerate(self.tables)] + [self.dense(dense)], 1)
        pairs = torch.bmm(rows, rows.transpose(1, 2))[:, self.i, self.j]
        second = 0.5 * (rows.sum(1).pow(2) - rows.pow(2).sum(1)).sum(1, keepdim=True)
        first = sum(t(ids[:, i]) for i, t in enumerate(self.wide))
        x = flat = rows.flatten(1)
        for w in self.cross:
            x = flat * (x @ w) + x
        logits = self.top(torch.cat([pairs, rows[:, -1]], 1)) + self.last(x) + first + second
        return F.binary_cross_entropy_with_logits(logits, clicks, pos_weight=torch.tensor([1.0, 3.0], dtype=x.dtype))


network("recommender", Recommender, ids=classes(5, 3), dense=noise(3), clicks=bits(2))


class Perceiver(nn.Module):
    """Learned rows that look at the data, mix, and are asked; shared by rounds."""

    def __init__(self, width=6, rows=3):
        super().__init__()
        self.rows = nn.Parameter(torch.randn(rows, width) * 0.5)
        self.look, self.mix, self.ask = (nn.MultiheadAttention(width, 2, bias=b, batch_first=True, kdim=k, vdim=k)
                                         for b, k in ((True, 4), (False, None), (True, None)))
        self.norm, self.queries, self.head = nn.LayerNorm(width), nn.Parameter(torch.randn(1, 2, width)), nn.Linear(width, 3)

    def forward(self, x, labels):
        z = self.rows.unsqueeze(0).expand(x.shape[0], -1, -1)
        for _ in range(2):
            z = z + self.look(self.norm(z), x, x, need_weights=False)[0]
            z = z + self.mix(z, z, z)[0]
        y, weights = self.ask(self.queries.expand(x.shape[0], -1, -1), z, z)
        spread = -(weights * (weights + 1e-9).log()).sum(-1).mean()
        return F.cross_entropy(self.head(y).flatten(0, 1), labels.flatten()) + 0.1 * spread


network("perceiver", Perceiver, x=noise(7, 4), labels=classes(3, 2))


class Mixer(nn.Module):
    """Layers over places and over features in turn, gates over places, and slow random features."""

    def __init__(self, length=6, width=8):
        super().__init__()
        self.places = nn.Sequential(nn.Linear(length, 5), nn.GELU(), nn.Linear(5, length))
        self.features = nn.Sequential(nn.Linear(width, 9), nn.GELU(), nn.Linear(9, width))
        self.norms = nn.ModuleList(nn.LayerNorm(n) for n in (width, width, width // 2))
        self.gate, self.head = nn.Conv1d(length, length, 1), nn.Linear(width // 2, 3)
        self.register_buffer("projection", torch.randn(4, width // 2))

    def forward(self, x, labels):
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = x + self.features(self.norms[1](x))
        a, b = x.chunk(2, -1)
        x = a * self.gate(self.norms[2](b))
        kernel = lambda t: torch.exp(t @ self.projection.t() - t.pow(2).sum(-1, keepdim=True) / 2) + 1e-4  # noqa: E731
        q, k = kernel(0.5 * x), kernel(0.5 * torch.roll(x, 1, 1))
        y = torch.einsum("bnm,bmd,bn->bnd", q, torch.einsum("bnm,bnd->bmd", k, x),
                         1 / torch.einsum("bnm,bm->bn", q, k.sum(1)))
        return F.cross_entropy(self.head(y.mean(1)), labels)


network("mixer", Mixer, x=noise(6, 8), labels=classes(3), told=("projection",))


class Retention(nn.Module):
    """Decay by distance instead of a softmax, a norm of each head, and a gate."""

    def __init__(self, width=8, heads=2, length=6):
        super().__init__()
        self.heads, self.qkvg = heads, nn.Linear(width, 4 * width, bias=False)
        self.norm, self.out = nn.LayerNorm(width // heads), nn.Linear(width, width)
        self.speed = nn.Parameter(torch.linspace(-1, 1, heads))

    def forward(self, x, target):
        batch, length, width = x.shape
        q, k, v, g = self.qkvg(x).chunk(4, -1)
        split = lambda t: t.reshape(batch, length, self.heads, -1).transpose(1, 2)  # noqa: E731
        steps = torch.arange(length)
        apart = (steps[:, None] - steps[None]).to(x.dtype)
        decay = torch.sigmoid(self.speed).view(-1, 1, 1) ** apart.clamp(min=0) * (apart >= 0).to(x.dtype)
        y = (split(q) @ split(k).transpose(2, 3) * decay) @ split(v)
        y = self.norm(y).transpose(1, 2).reshape(x.shape)
        return bent(self.out(F.silu(g) * y), target, 0.5)


network("retention", Retention, x=noise(6, 8), target=noise(6, 8))


class Memory(nn.Module):
    """A memory that is addressed by likeness, sharpened, and written by erasing and adding."""

    def __init__(self, width=4, places=5):
        super().__init__()
        self.begin, self.cell = nn.Parameter(torch.randn(places, width) * 0.5), nn.GRUCell(2 + width, 6)
        self.key, self.edit, self.sharp, self.out = nn.Linear(6, width), nn.Linear(6, 2 * width), nn.Linear(6, 3), nn.Linear(
            6 + width, 2)

    def forward(self, x, target):
        batch = x.shape[0]
        memory = self.begin.unsqueeze(0).repeat(batch, 1, 1)
        state, read, found = x.new_zeros(batch, 6), x.new_zeros(batch, self.begin.shape[1]), []
        for t in range(x.shape[1]):
            state = self.cell(torch.cat([x[:, t], read], 1), state)
            strength, gamma, shift = self.sharp(state).split(1, 1)
            w = F.softmax(F.softplus(strength) * F.cosine_similarity(memory, self.key(state).unsqueeze(1), dim=-1), 1)
            s = torch.sigmoid(shift)
            w = s * w + (1 - s) * torch.roll(w, 1, 1)
            w = (w + 1e-4) ** (1 + F.softplus(gamma))
            w = w / w.sum(1, keepdim=True)
            read = torch.matmul(w.unsqueeze(1), memory).squeeze(1)
            erase, add = self.edit(state).chunk(2, 1)
            memory = memory * (1 - w.unsqueeze(2) * torch.sigmoid(erase).unsqueeze(1)) + w.unsqueeze(2) * add.unsqueeze(1)
            found.append(self.out(torch.cat([state, read], 1)))
        return squares(torch.stack(found, 1), target)


network("neural_memory", Memory, x=noise(4, 2), target=noise(4, 2))


class Ode(nn.Module):
    """Four evaluations of the same layers a step, and a step size that is learned."""

    def __init__(self, width=5):
        super().__init__()
        self.first, self.second, self.step = nn.Linear(width + 1, 8), nn.Linear(8, width), nn.Parameter(torch.tensor(-1.0))

    def slope(self, t, x):
        return self.second(torch.tanh(self.first(torch.cat([x, torch.ones_like(x[:, :1]) * t], 1))))

    def forward(self, x, target):
        h, t = F.softplus(self.step), 0.0
        for _ in range(2):
            a = self.slope(t, x)
            b = self.slope(t + h / 2, x + h / 2 * a)
            c = self.slope(t + h / 2, x + h / 2 * b)
            d = self.slope(t + h, x + h * c)
            x, t = x + h / 6 * (a + 2 * b + 2 * c + d), t + h
        return squares(x, target)


network("ode", Ode, x=noise(5), target=noise(5))


class Splines(nn.Module):
    """Functions on edges instead of numbers: B-splines on a stored grid."""

    def __init__(self, into=3, out=2, cells=4, order=2):
        super().__init__()
        self.order = order
        grid = (torch.arange(-order, cells + order + 1) * 2 / cells - 1).float()
        self.register_buffer("grid", grid.expand(into, -1).contiguous())
        self.base, self.splines = nn.Parameter(torch.randn(out, into) * 0.5), nn.Parameter(
            torch.randn(out, into, cells + order) * 0.3)

    def forward(self, x):
        x, grid = torch.tanh(x).unsqueeze(-1), self.grid
        basis = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            basis = ((x - grid[:, :-(k + 1)]) / (grid[:, k:-1] - grid[:, :-(k + 1)]) * basis[:, :, :-1]
                     + (grid[:, k + 1:] - x) / (grid[:, k + 1:] - grid[:, 1:-k]) * basis[:, :, 1:])
        return F.linear(F.silu(x.squeeze(-1)), self.base) + F.linear(basis.flatten(1), self.splines.flatten(1))


network("splines", Splines, x=noise(3), target=noise(2), outside="mse", told=("grid",))


class Ensemble(nn.Module):
    """Members side by side, made by another network from what they are told."""

    def __init__(self, into=4, out=2, members=3):
        super().__init__()
        self.ws = nn.ParameterList(nn.Parameter(torch.randn(into, 5) * 0.5) for _ in range(members))
        self.b = nn.Parameter(torch.zeros(members, 1, 5))
        self.make = nn.Linear(3, 5 * out + out)
        self.out = out

    def forward(self, x, about, target):
        y = torch.tanh(torch.einsum("bi,mio->mbo", x, torch.stack(list(self.ws))) + self.b)
        w, b = self.make(about).split([5 * self.out, self.out], 1)
        y = torch.matmul(y.mean(0).unsqueeze(1), w.view(-1, 5, self.out)).squeeze(1) + b
        mean, log_variance = y.mean(1), y.var(1).add(0.1).log()
        return F.gaussian_nll_loss(mean, target, log_variance.exp(), full=True) + 0.1 * (y.std(0) + 1e-3).mean()


network("ensemble", Ensemble, x=noise(4), about=noise(3), target=noise())


class ManyLosses(nn.Module):
    """One body, and losses that PyTorch has names for, weighed by what is learned."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 4)
        self.weights = nn.Parameter(torch.zeros(8))

    def forward(self, x, other, kinds, sign, many):
        y, z = self.body(x), self.body(other)
        likeness = F.cosine_similarity(y, z, dim=1)
        losses = [
            torch.where(sign > 0, 1 - likeness, F.relu(likeness - 0.1)).mean(),
            F.relu(-(sign * 2 - 1) * (y[:, 0] - z[:, 0]) + 0.2).mean(),
            F.nll_loss(F.log_softmax(y, 1), kinds, ignore_index=3),
            F.kl_div(F.log_softmax(y, 1), F.log_softmax(z, 1), reduction="batchmean", log_target=True),
            (torch.exp(torch.tanh(y)) - many * torch.tanh(y)).mean(), bent(y, z, 0.3) / 0.3,
            -(many * F.logsigmoid(y) + (1 - many) * F.logsigmoid(-y)).mean(1).mean(),
            torch.log(1 + torch.exp(-(many * 2 - 1) * z)).mean()]
        smooth = 0.9 * F.nll_loss(F.log_softmax(y, 1), kinds) - 0.1 * F.log_softmax(y, 1).mean(1).mean()
        return sum(torch.exp(-w) * loss + w for w, loss in zip(self.weights, losses)) + smooth


network("many_losses", ManyLosses, x=noise(5), other=noise(5), kinds=classes(4), sign=bits(), many=bits(4))


class DeepSets(nn.Module):
    """Sets of which some members are left out: means, largest members, and a softmax among them."""

    def __init__(self, width=5):
        super().__init__()
        self.each, self.head = nn.Sequential(nn.Linear(3, width), nn.Hardswish()), nn.Linear(3 * width, 2)
        self.score = nn.Linear(width, 1)

    def forward(self, x, shown, target):
        y = self.each(x)
        shown = torch.cat([torch.ones_like(shown[:, :1]), shown[:, 1:]], 1)
        m = shown.unsqueeze(-1)
        mean = (y * m).sum(1) / m.sum(1)
        best = torch.where(m > 0, y, torch.full_like(y, -1e9)).max(1)[0]
        weights = F.softmax(self.score(y).squeeze(-1).masked_fill(shown == 0, float("-inf")), 1)
        return squares(self.head(torch.cat([mean, best, torch.einsum("bn,bnd->bd", weights, y)], 1)), target)


network("deep_sets", DeepSets, x=noise(6, 3), shown=bits(6), target=noise(2))


class Highway(nn.Module):
    """Characters to words: convolutions of several widths, largest values, highway layers, a language model."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(20, 4)
        self.filters = nn.ModuleList(nn.Conv2d(1, 3, (w, 4)) for w in (1, 2, 3))
        self.carry, self.change = nn.Linear(9, 9), nn.Linear(9, 9)
        self.part, self.head = nn.LSTM(9, 6, 2), nn.Linear(6, 11)

    def forward(self, letters, labels):
        batch, words, length = letters.shape
        x = self.letters(letters.view(-1, length)).unsqueeze(1)
        x = torch.cat([torch.tanh(f(x)).squeeze(3).max(2)[0] for f in self.filters], 1)
        t = torch.sigmoid(self.carry(x))
        x = (t * F.relu(self.change(x)) + (1 - t) * x).view(batch, words, -1).transpose(0, 1)
        y, _ = self.part(x)
        return F.cross_entropy(self.head(y).permute(1, 2, 0), labels)


network("highway", Highway, letters=classes(20, 5, 4), labels=classes(11, 5))


class Transformer(nn.Module):
    """PyTorch's own, with masks of both sides."""

    def __init__(self, width=8):
        super().__init__()
        self.source, self.target = nn.Embedding(14, width), nn.Embedding(13, width)
        self.part = nn.Transformer(width, 2, 1, 1, 12, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 13)

    def forward(self, source, target):
        length = target.shape[1] - 1
        mask = torch.triu(torch.full((length, length), float("-inf")), diagonal=1).to(self.head.weight.dtype)
        y = self.part(self.source(source) * math.sqrt(8), self.target(target[:, :-1]), tgt_mask=mask)
        return by_token(self.head(y), target[:, 1:])


network("transformer", Transformer, source=classes(14, 5), target=classes(13, 6))


class Masked(nn.Module):
    """Marked places: those that are hidden are replaced by a learned row, and only they count."""

    def __init__(self, width=6):
        super().__init__()
        self.patch, self.hidden = nn.Linear(4, width), nn.Parameter(torch.randn(1, 1, width) * 0.2)
        self.places, self.begin = nn.Parameter(torch.randn(1, 8, width) * 0.1), nn.Parameter(torch.randn(1, 1, width))
        self.part = nn.TransformerEncoderLayer(width, 2, 10, 0.0, batch_first=True)
        self.head = nn.Linear(width, 4)

    def forward(self, x, hidden):
        y = self.patch(x)
        m = hidden.unsqueeze(-1)
        y = y * (1 - m) + self.hidden.expand(*y.shape[:2], -1) * m
        y = torch.cat([self.begin.expand(y.shape[0], -1, -1), y + self.places], 1)
        y = self.head(self.part(y))[:, 1:]
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True)
        wanted = (x - mean) / (variance + 1e-6) ** 0.5
        return (((y - wanted) ** 2).mean(-1) * hidden).sum() / (hidden.sum() + 1)


network("masked_patches", Masked, x=noise(8, 4), hidden=bits(8))


class Hyena(nn.Module):
    """A long convolution whose filter a small network makes of places, and a gate; the past is all it sees."""

    def __init__(self, width=4, length=8):
        super().__init__()
        self.length, self.into, self.out = length, nn.Linear(3, 3 * width), nn.Linear(width, 3)
        self.filter = nn.Sequential(nn.Linear(3, 6), nn.SiLU(), nn.Linear(6, width))
        self.short, self.decay = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width), nn.Parameter(torch.rand(width))

    def forward(self, x, target):
        t = torch.linspace(0, 1, self.length)[:, None].to(x.dtype)
        h = self.filter(torch.cat([t, torch.sin(6.28 * t), torch.cos(6.28 * t)], 1)) * torch.exp(-t * self.decay.abs())
        y = self.short(self.into(x).transpose(1, 2))[..., :self.length]
        q, k, v = y.chunk(3, 1)
        w = h.t().flip(-1).unsqueeze(1)
        v = F.conv1d(F.pad(k * v, (self.length - 1, 0)), w, groups=v.shape[1])
        return squares(self.out((q * v).transpose(1, 2)), target)


network("long_convolution", Hyena, x=noise(8, 3), target=noise(8, 3))

"""What architectures that people bring have of their own, each as small as it gets."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import Weighted, layer


class PaddedEmbedding(nn.Embedding):
    """With a row that PyTorch does not train, which only its zeros tell."""

    def settle(self):
        with torch.no_grad():
            self.weight[self.padding_idx] = 0


@layer("padded embedding", lambda r, shapes: {"width": r.randint(1, 6), "row": r.choice([0, 1, 3, 11])}, weight=1.5,
       integer=True)
def padded_embedding(p, shapes):
    return PaddedEmbedding(12, p["width"], padding_idx=p["row"])


class Spectral(nn.Module):
    """Spectral norm whose vectors stand still."""

    def __init__(self, made):
        super().__init__()
        self.part = nn.utils.spectral_norm(made)
        self.train()

    def train(self, mode=True):
        return super().train(False)

    def forward(self, x):
        return self.part(x)


@layer("spectral norm", lambda r, shapes: {"out": r.randint(2, 5), "form": r.choice(["linear", "convolution"])})
def spectral(p, shapes):
    if p["form"] == "convolution" and len(shapes[0]) == 4:
        return Spectral(nn.Conv2d(shapes[0][1], p["out"], 3, padding=1))
    return Spectral(nn.Linear(shapes[0][-1], p["out"]))


@layer("modulated convolution", lambda r, shapes: {"out": r.randint(1, 4), "form": r.choice(["weights", "scaled"])}
       if len(shapes[0]) == 4 and shapes[0][1] > 1 else None)
def modulated(p, shapes):
    """A weight for each sample: as groups of one convolution, or by scaling what goes in and comes out."""
    batch, into, high, wide = shapes[0]
    out = p["out"]

    def convolve(self, x):
        style = 1 + 0.5 * torch.tanh(x.mean((2, 3)) @ self.style)
        if p["form"] == "scaled":
            size = (self.w.pow(2).sum((2, 3))[None] * style.pow(2)[:, None]).sum(2)
            return F.conv2d(x * style[:, :, None, None], self.w, padding=1) * torch.rsqrt(size + 0.1)[:, :, None, None]
        w = self.w[None] * style.view(batch, 1, into, 1, 1)
        w = w * torch.rsqrt(w.pow(2).sum([2, 3, 4], keepdim=True) + 0.1)
        y = F.conv2d(x.reshape(1, batch * into, high, wide), w.view(batch * out, into, 3, 3), padding=1, groups=batch)
        return y.view(batch, out, high, wide)
    return Weighted(convolve, w=(out, into, 3, 3), style=(into, into))


def sequence(shape, longest=8):
    return len(shape) == 3 and 2 <= shape[1] <= longest


@layer("shifted attention", lambda r, shapes: {} if sequence(shapes[0]) else None)
def shifted_attention(p, shapes):
    """Scores of distances, brought into place by padding and reading the rows anew."""
    _, length, width = shapes[0]

    def attend(self, x):
        q, places = x @ self.q, 2 * length - 1
        near = (q + self.u) @ (x @ self.k).transpose(1, 2)
        far = (q + self.v) @ self.table.t()
        far = F.pad(far, (1, 0)).view(x.shape[0], places + 1, length)[:, 1:].reshape(x.shape[0], length, places)
        return F.softmax((near + far[..., :length]) / math.sqrt(width), -1) @ x
    return Weighted(attend, q=(width, width), k=(width, width), table=(2 * length - 1, width), u=(width,), v=(width,))


@layer("window attention", lambda r, shapes: {"shift": r.choice([0, 1])}
       if len(shapes[0]) == 4 and shapes[0][1] % 2 == 0 and shapes[0][2] % 2 == 0 else None)
def window_attention(p, shapes):
    """In windows of two by two places, moved or not, with a trained bias for each distance."""
    _, high, wide, width = shapes[0]
    at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
    apart = (at[:, :, None] - at[:, None] + 1)
    index = apart[0] * 3 + apart[1]

    def attend(self, x):
        shift = p["shift"]
        y = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        y = y.reshape(-1, high // 2, 2, wide // 2, 2, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, width)
        q, k, v = (y @ self.w).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / math.sqrt(width) + self.bias[self.index.view(-1)].view(4, 4)
        y = (F.softmax(scores, -1) @ v).reshape(-1, high // 2, wide // 2, 2, 2, width).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, high, wide, width)
        return x + (torch.roll(y, (shift, shift), (1, 2)) if shift else y)
    return Weighted(attend, {"index": index}, w=(width, 3 * width), bias=(9,))


@layer("unfolded windows", lambda r, shapes: {"out": r.randint(1, 4), "form": r.choice(["product", "weighed"])}
       if len(shapes[0]) == 4 else None)
def unfolded(p, shapes):
    _, channels, high, wide = shapes[0]

    def convolve(self, x):
        windows = F.unfold(x, 3, padding=1)
        if p["form"] == "product":
            return (self.w @ windows).view(-1, p["out"], high, wide)
        weights = F.softmax(torch.einsum("ok,bkn->bon", self.w[:1], windows), -1)
        return (windows.view(-1, channels, 9, high * wide) * weights[:, :, None]).sum(2).view(-1, channels, high, wide)
    return Weighted(convolve, w=(p["out"], channels * 9))


@layer("selective scan", lambda r, shapes: {} if sequence(shapes[0], 6) else None)
def selective_scan(p, shapes):
    _, length, width = shapes[0]

    def scan(self, x):
        step = F.softplus(x @ self.step)
        keep = torch.exp(-step[..., None] * torch.exp(self.rate))
        given = step[..., None] * (x @ self.write)[:, :, None]
        state, rows = torch.zeros(x.shape[0], width, 2, dtype=x.dtype), []
        for t in range(length):
            state = keep[:, t] * state + given[:, t] * x[:, t, :, None]
            rows.append((state * (x[:, t] @ self.read)[:, None]).sum(-1))
        return torch.stack(rows, 1) + x * self.skip
    return Weighted(scan, step=(width, width), rate=(width, 2), write=(width, 2), read=(width, 2), skip=(width,))


@layer("linear attention", lambda r, shapes: {"causal": r.random() < 0.6} if sequence(shapes[0]) else None)
def linear_attention(p, shapes):
    width = shapes[0][-1]

    def attend(self, x):
        q, k, v = (x @ self.w).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        if not p["causal"]:
            return q @ (k.transpose(1, 2) @ v) / (q @ k.sum(1)[..., None] + 0.1)
        memory = torch.cumsum(torch.einsum("bnd,bne->bnde", k, v), 1)
        size = torch.einsum("bnd,bnd->bn", q, k.cumsum(1)) + 0.1
        return torch.einsum("bnd,bnde->bne", q, memory) / size[..., None]
    return Weighted(attend, w=(width, 3 * width))


@layer("routed capsules", lambda r, shapes: {"out": r.randint(2, 3), "rounds": r.randint(1, 3)}
       if sequence(shapes[0], 6) else None)
def capsules(p, shapes):
    _, count, width = shapes[0]

    def route(self, x):
        votes = (self.w @ x[:, :, None, :, None]).squeeze(-1)
        scores = torch.zeros(x.shape[0], count, p["out"], 1, dtype=x.dtype)
        for _ in range(p["rounds"]):
            pose = (F.softmax(scores, 2) * votes).sum(1, keepdim=True)
            size = (pose ** 2).sum(-1, keepdim=True)
            pose = size / (1 + size) * pose / torch.sqrt(size + 1e-3)
            scores = scores + (votes * pose).sum(-1, keepdim=True)
        return pose.squeeze(1)
    return Weighted(route, w=(1, count, p["out"], 3, width))


@layer("grouped queries", lambda r, shapes: {"groups": r.choice([1, 2])} if sequence(shapes[0]) else None)
def grouped_queries(p, shapes):
    """Four heads of queries for one or two of keys and values, turned by their places."""
    _, length, width = shapes[0]
    groups, size = p["groups"], 4

    def turn(x, angles):
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    def attend(self, x):
        angles = torch.outer(torch.arange(length).to(x.dtype), self.inv_freq.to(x.dtype))
        angles = torch.cat([angles, angles], -1)
        split = lambda t, heads: t.view(x.shape[0], length, heads, size).transpose(1, 2)
        more = lambda t: t[:, :, None].expand(-1, -1, 4 // groups, -1, -1).reshape(-1, 4, length, size)
        q, k = turn(split(x @ self.q, 4), angles), turn(split(x @ self.k, groups), angles)
        hidden = torch.full((length, length), -1e9, dtype=x.dtype).triu(1)
        scores = F.softmax(q @ more(k).transpose(2, 3) / 2 + hidden, -1)
        y = scores @ more(split(x @ self.v, groups))
        return y.transpose(1, 2).reshape(x.shape[0], length, 4 * size) @ self.o
    return Weighted(attend, {"inv_freq": torch.tensor([1.0, 0.1])}, q=(width, 16), k=(width, groups * size),
                    v=(width, groups * size), o=(16, width))

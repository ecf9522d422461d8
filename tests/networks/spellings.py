"""The same mathematics as people also write it, and functions that are met seldom."""

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import Unsuitable, Weighted, axis_of, divisors, layer

SELDOM = {
    "tan": lambda x: torch.tan(0.5 * torch.tanh(x)), "asin": lambda x: torch.asin(0.8 * torch.tanh(x)),
    "acos": lambda x: torch.acos(0.8 * torch.tanh(x)), "atan": torch.atan,
    "sinh by hand": lambda x: (torch.exp(torch.tanh(x)) - torch.exp(-torch.tanh(x))) / 2,
    "log1p": lambda x: torch.log1p(x.abs()),
    "log2": lambda x: torch.log2(x.abs() + 0.3), "log10": lambda x: torch.log10(x.abs() + 0.3),
    "exp2": lambda x: 2 ** torch.tanh(x),
    "hardshrink": lambda x: F.hardshrink(x, 0.3), "softshrink": lambda x: F.softshrink(x, 0.2),
    "tanhshrink": F.tanhshrink, "threshold": lambda x: F.threshold(x, 0.0, 0.0),
    "clamp by tensors": lambda x: torch.min(torch.max(x, x.new_tensor(-0.4)), x.new_tensor(0.6)),
    "clip above": lambda x: torch.clamp(x, max=0.6), "steep sigmoid": lambda x: torch.sigmoid(x * 5),
    "softplus sharp": lambda x: F.softplus(x, beta=2.0),
    "gaussian": lambda x: torch.exp(-x.pow(2) / 2), "sign": lambda x: x * torch.sign(x) + 0.1 * x,
    "round": lambda x: x + 0.3 * torch.round(x), "floor": lambda x: x - torch.floor(x),
    "ceil": lambda x: torch.ceil(x) * x, "remainder": lambda x: torch.remainder(x, 0.7),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "not a number": lambda x: torch.where(torch.isnan(x), torch.zeros_like(x), x),
    "infinite": lambda x: x.masked_fill(torch.isinf(x), 0.0), "numbers": lambda x: torch.nan_to_num(x) * 0.5,
    "either": lambda x: torch.where(torch.logical_or(x > 0.5, x < -0.5), x, x * x),
    "neither": lambda x: torch.where(~(x >= 0.1), x, -x),
    "unequal": lambda x: x * (torch.round(x) != 0).to(x.dtype), "at most": lambda x: x * (x <= 0.4).to(x.dtype),
    "equal": lambda x: torch.where(torch.round(x) == 0, x, 0.5 * x),
    "silu by parts": lambda x: x / (1 + torch.exp(-x)), "softplus by hand": lambda x: torch.log(1 + torch.exp(x)),
    "logsigmoid by hand": lambda x: -torch.log(1 + torch.exp(-x)), "tanh by hand": lambda x: 2 * torch.sigmoid(
    2 * x) - 1,
    "quadratic": lambda x: x.pow(2) - x + 0.25, "inverse": lambda x: (x * x + 1).pow(-1),
    "inverse root": lambda x: (x * x + 1) ** -0.5, "cube root": lambda x: (x.abs() + 0.2) ** (1 / 3),
    "square root": lambda x: (x * x + 0.1) ** 0.5, "fourth": lambda x: torch.tanh(x) ** 4,
    "relu squared": lambda x: F.relu(x) ** 2, "rsub": lambda x: torch.rsub(x, 1.5), "addcmul": lambda x: torch.addcmul(
        x, x, torch.tanh(x), value=0.3),
    "double": lambda x: x.double().mul(0.5).float() if x.dtype == torch.float32 else x * 0.5,
    "in place": lambda x: (x * 1).add_(0.5).mul_(torch.sigmoid(x)).clamp_(-1, 1), "square of abs": lambda x: x.abs(
    ).square(),
}


@layer("seldom pointwise", lambda r, shapes: {"function": r.choice(list(SELDOM))}, weight=6)
def seldom(p, shapes):
    return SELDOM[p["function"]]


EINSUMS = {  # of a sequence x [b, i, j] and a weight w; the weight's letters
    "features": ("bij,jk->bik", "jk"), "turned": ("bij,kj->bki", "kj"), "any": ("...j,jk->...k", "jk"),
    "places": ("bij,ik->bkj", "ik"), "each": ("bij,ijk->bik", "ijk"), "outer": ("bij,k->bijk", "k"),
    "scaled": ("bij,j->bij", "j"), "weighed": ("bij,i->bj", "i"), "all": ("bij,ij->b", "ij"),
    "summed": ("bij,k->bk", "k"), "swapped": ("jk,bij->bik", "jk"), "heads": ("bij,jhk->bhik", "jhk"),
    "heads last": ("bij,hjk->bikh", "hjk"), "no arrow": ("bij,jk", "jk"),
}


@layer("einsum", lambda r, shapes: {"form": r.choice(list(EINSUMS))} if len(shapes[0]) == 3 else None, weight=4)
def einsum(p, shapes):
    equation, letters = EINSUMS[p["form"]]
    sizes = {"i": shapes[0][1], "j": shapes[0][2], "k": 3, "h": 2}
    swapped = p["form"] == "swapped"

    def product(self, x):
        y = torch.einsum(equation, *((self.w, x) if swapped else (x, self.w))) * 0.5
        return y[:, None] if y.dim() == 1 else y
    return Weighted(product, w=tuple(sizes[c] for c in letters))


@layer("einsum of one", lambda r, shapes: {"form": r.choice(["bij->bji", "bij->bi", "bij->bj", "bij,bij->bij",
                                                             "bij,bij->bi", "bij,bkj->bik", "bij,bik->bkj",
                                                             "bij,bkl->bijkl",
                                                             "bij,bij->b", "bij,bik->bijk"])}
       if len(shapes[0]) == 3 else None, weight=1.5)
def einsum_of_one(p, shapes):
    def product(x):
        operands = [x, torch.tanh(x)][:1 + p["form"].count(",")]
        y = torch.einsum(p["form"], *operands) * 0.4
        return y[:, None] if y.dim() == 1 else y
    return product


@layer("weights thrice", lambda r, shapes: {"out": r.randint(1, 5), "form": r.choice(
    ["chain", "turned", "sum", "scalar", "gram", "both sides", "shared bias", "half"])}, weight=3)
def thrice(p, shapes):
    into, out = shapes[0][-1], p["out"]
    form = p["form"]
    if form == "chain":
        return Weighted(lambda self, x: torch.tanh(torch.tanh(x @ self.w) @ self.w.t()) @ self.w, w=(into, out))
    if form == "turned":
        return Weighted(lambda self, x: F.linear(torch.relu(F.linear(x, self.w)), self.w.t()) + x @ self.w.t()[:, :1],
                        w=(out, into))
    if form == "sum":
        return Weighted(lambda self, x: (x @ self.w) * self.w.sum() + self.w.mean(0), w=(into, out))
    if form == "scalar":
        return Weighted(lambda self, x: self.a * torch.tanh(self.a * x) + self.a, a=())
    if form == "gram":
        return Weighted(lambda self, x: x @ (self.w @ self.w.t()) * 0.3, w=(into, out))
    if form == "both sides":
        return Weighted(lambda self, x: (x * self.w) * torch.sigmoid(x + self.w) - self.w, w=(into,))
    if form == "half":
        return Weighted(lambda self, x: x @ self.w[:, :out] + torch.tanh(x @ self.w[:, out:]) + x @ self.w[:, ::2],
                        w=(into, 2 * out))
    return Weighted(lambda self, x: torch.tanh(x @ self.w + self.b) + self.b * 0.5, w=(into, out), b=(out,))


@layer("scalar weight", lambda r, shapes: {"form": r.choice(
    ["temperature", "mix", "power", "base", "shift", "one", "clamped", "threshold", "exponential"])}, weight=2)
def scalar_weight(p, shapes):
    return Weighted({
        "temperature": lambda self, x: F.softmax(x / (self.a.abs() + 0.5), -1) + self.a,
        "mix": lambda self, x: torch.sigmoid(self.a) * x + (1 - torch.sigmoid(self.a)) * torch.tanh(x),
        "power": lambda self, x: (x.abs() + 0.3) ** self.a, "base": lambda self, x: (self.a.abs() + 0.4) ** torch.tanh(
        x),
        "shift": lambda self, x: x - self.a, "one": lambda self, x: x * self.a.view(1),
        "clamped": lambda self, x: x * self.a.clamp(-0.3, 0.3), "threshold": lambda self, x: torch.maximum(x, self.a),
        "exponential": lambda self, x: x * self.a.exp()}[p["form"]], a=())


@layer("weights as exponents", lambda r, shapes: {"form": r.choice(["channels", "last", "base", "generalised mean"])})
def exponents(p, shapes):
    tall, width = (shapes[0][1],) + (1,) * (len(shapes[0]) - 2), shapes[0][-1]
    if p["form"] == "channels":
        return Weighted(lambda self, x: torch.pow(x.abs() + 0.2, self.w), w=tall)
    if p["form"] == "last":
        return Weighted(lambda self, x: (torch.sigmoid(x) + 0.1) ** (1 + self.w.abs()), w=(width,))
    if p["form"] == "base":
        return Weighted(lambda self, x: (self.w.abs() + 0.3) ** torch.tanh(x), w=(width,))
    return Weighted(lambda self, x: (x.clamp(min=1e-2) ** (1.5 + self.w)).mean(-1,
        keepdim=True) ** (1 / (1.5 + self.w)),
                    w=(1,))


@layer("broadcast weight", lambda r, shapes: {"form": r.choice(
    ["expand as", "repeat", "stacked", "joined", "outer", "corner", "to", "interleave", "rows", "columns", "unbound",
     "rolled", "flipped", "strided"])}, weight=3)
def broadcast(p, shapes):
    shape, width = shapes[0], shapes[0][-1]
    one = (1,) * (len(shape) - 1)
    form = p["form"]
    whole = {
        "expand as": lambda self, x: x * self.w.expand_as(x), "to": lambda self, x: x + self.w.expand(x.shape),
        "repeat": lambda self, x: x * self.w.repeat(*shape[:-1], 1),
        "stacked": lambda self, x: x * torch.stack([self.w] * shape[-2], -2) if x.dim() > 2 else x * self.w,
        "joined": lambda self, x: torch.cat([x, self.w.view(*one, width).expand(*shape[:-1], width)], -1),
        "outer": lambda self, x: x * (self.w[:, None] * self.w[None]).sum(0),
        "corner": lambda self, x: x + self.w[:1] - self.w[-1:], "interleave": lambda self, x: x * self.w[
            :(width + 1) // 2].repeat_interleave(2)[:width],
        "rows": lambda self, x: x * self.w[0] + self.w[width // 2], "columns": lambda self, x: x.transpose(
            1, -1) * self.w.view(width, *one[1:]) if x.dim() > 2 else x * self.w.view(1, width),
        "unbound": lambda self, x: sum(w * x for w in self.w.unbind(0)[:3]), "rolled": lambda self, x: x * self.w.roll(
        1, 0),
        "flipped": lambda self, x: x * self.w.flip(0) + self.w, "strided": lambda self, x: x * self.w.repeat(2)[::2]
        + self.w[::2].sum()}
    return Weighted(whole[form], w=(width,))


@layer("odd norm", lambda r, shapes: {"form": r.choice(
    ["first", "several", "middle", "function", "all", "unbiased", "std", "var mean", "scale only", "shift only",
    "rms first",
     "l2", "min max"]), "epsilon": r.choice([1e-5, 1e-3, 1e-6])} if len(shapes[0]) >= 2 and min(
     shapes[0][1:]) > 1 else None,
       weight=3)
def odd_norm(p, shapes):
    shape, form, epsilon = shapes[0], p["form"], p["epsilon"]
    tall = (shape[1],) + (1,) * (len(shape) - 2)
    rest = tuple(range(1, len(shape)))
    if form == "first":  # as ConvNeXt has it
        def first(self, x):
            u = x.mean(1, keepdim=True)
            s = (x - u).pow(2).mean(1, keepdim=True)
            return self.w * ((x - u) / torch.sqrt(s + epsilon)) + self.b
        return Weighted(first, w=tall, b=tall)
    if form == "middle":
        made = nn.LayerNorm(shape[1], eps=epsilon)
        return Weighted(lambda self, x: self.norm(x.transpose(1, -1)).transpose(1, -1)).with_part("norm", made)
    whole = {
        "several": lambda self, x: (x - x.mean(rest, keepdim=True)) / (x.var(rest, keepdim=True,
        unbiased=False) + epsilon)
        .sqrt() * self.w, "function": lambda self, x: F.layer_norm(x, x.shape[1:], eps=epsilon) * self.w,
        "all": lambda self, x: F.layer_norm(x, x.shape[-2:], eps=epsilon) * self.w if x.dim() > 2 else x * self.w,
        "unbiased": lambda self, x: (x - x.mean(1, keepdim=True)) * (x.var(1, keepdim=True) + epsilon).rsqrt() * self.w,
        "std": lambda self, x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 0.1) * self.w[:1],
        "var mean": lambda self, x: (lambda v, m: (x - m) / torch.sqrt(v + epsilon) * self.w)(
            *torch.var_mean(x, 1, unbiased=False, keepdim=True)),
        "scale only": lambda self, x: F.layer_norm(x, x.shape[-1:], torch.ones(x.shape[-1],
        dtype=x.dtype) * self.w.view(-1)[0]),
        "shift only": lambda self, x: F.layer_norm(x, x.shape[-1:]) + self.w, "rms first": lambda self,
        x: x * torch.rsqrt(
            x.pow(2).mean(1, keepdim=True) + epsilon) * self.w,
        "l2": lambda self, x: x / (x.norm(dim=1, keepdim=True) + 0.1) * self.w, "min max": lambda self, x: (
            x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True) + 0.2) * self.w}
    return Weighted(whole[form], w=tall)


@layer("batch norm variant", lambda r, shapes: {"form": r.choice(["momentum", "cumulative", "untracked", "epsilon"])}
       if 2 <= len(shapes[0]) <= 4 and shapes[0][0] > 1 else None)
def norm_variant(p, shapes):
    made = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shapes[0])]
    return made(shapes[0][1], **{"momentum": {"momentum": 0.4}, "cumulative": {"momentum": 0.01},
                                 "untracked": {"track_running_stats": False}, "epsilon": {"eps": 0.05}}[p["form"]])


@layer("normed weight", lambda r, shapes: {"out": r.randint(1, 4), "axis": r.choice([0, 0, 1, None])}
       if len(shapes[0]) in (3, 4) else None)
def normed_weight(p, shapes):
    made = {3: nn.Conv1d, 4: nn.Conv2d}[len(shapes[0])](shapes[0][1], p["out"], 3, padding=1)
    return nn.utils.weight_norm(made, dim=p["axis"])


@layer("glu", lambda r, shapes: {"axis": axis_of(r, shapes[0], 0)}
       if any(s % 2 == 0 for s in shapes[0][1:]) else None, weight=1.5)
def glu(p, shapes):
    return lambda x: F.glu(x, p["axis"])


@layer("any resize", lambda r, shapes: {"mode": r.choice(["nearest", "smooth", "smooth", "corners", "cubic"]),
    "form": r.choice(
    ["twice", "half", "odd", "size", "area"])} if len(shapes[0]) in (3, 4, 5) else None, weight=2)
def any_resize(p, shapes):
    axes = len(shapes[0]) - 2
    target = {"twice": {"scale_factor": 2}, "half": {"scale_factor": 0.5}, "odd": {"scale_factor": 1.5},
              "size": {"size": [5, 3, 4][:axes]}, "area": {"size": [s * 3 for s in shapes[0][2:]]}}[p["form"]]
    if p["mode"] == "nearest":
        return lambda x: F.interpolate(x, mode="nearest", **target)
    mode = "bicubic" if p["mode"] == "cubic" and axes == 2 else {1: "linear", 2: "bilinear", 3: "trilinear"}[axes]
    return lambda x: F.interpolate(x, mode=mode, align_corners=p["mode"] == "corners", **target)


@layer("any pad", lambda r, shapes: {"mode": r.choice(["constant", "reflect", "replicate"]), "form": r.choice(["each",
    "cut"]),
                                     "amounts": [r.randint(-1, 2) for _ in range(6)], "value": r.choice([0.0, -0.5])}
       if len(shapes[0]) in (3, 4, 5) else None, weight=1.5)
def any_pad(p, shapes):
    amounts = p["amounts"][:2 * (len(shapes[0]) - 2)]
    if p["mode"] == "constant":
        return lambda x: F.pad(x, amounts, value=p["value"])
    return lambda x: F.pad(x, [max(0, a) for a in amounts] if p["form"] == "each" else amounts, mode=p["mode"])


@layer("added places", lambda r, shapes: {"axis": axis_of(r, shapes[0]), "form": r.choice(["elements", "sum", "index"]),
                                          "places": [r.randrange(8) for _ in range(4)], "opset": r.choice([11, 16])})
def added_places(p, shapes):
    # What meets in one place is added, which the exporter says from opset 16 on, and never of index_add.
    axis, size = p["axis"], shapes[0][p["axis"]]
    places = torch.tensor([place % size for place in p["places"]])

    def add(x):
        what = torch.tanh(x.index_select(axis, places))
        if p["form"] == "index":
            return x.index_add(axis, places, what)
        where = places.view([-1 if i == axis else 1 for i in range(x.dim())]).expand(what.shape)
        return (x if p["form"] == "elements" else torch.zeros_like(x)).scatter_add(axis, where, what)
    return add


@layer("chosen places", lambda r, shapes: {"axis": axis_of(r, shapes[0]), "form": r.choice(
    ["topk", "bottom", "sort", "sorted gather", "scatter", "scatter add", "index add", "put", "put many", "argmin",
     "mask by rank", "argsort", "index fill", "diagonal"]), "places": [r.randrange(8) for _ in range(4)]}, weight=4)
def chosen_places(p, shapes):
    axis, size = p["axis"], shapes[0][p["axis"]]
    index = (slice(None),) * axis
    count = max(1, size // 2)
    unlike = torch.tensor(sorted({place % size for place in p["places"]}))
    rest = index + (slice(0, 1),)

    def wide(x, where):
        return where.view([-1 if i == axis else 1 for i in range(x.dim())]).expand(
            [len(where) if i == axis else s for i, s in enumerate(x.shape)])

    def untied(x):
        """Which of two equal elements is the larger is anybody's choice."""
        return x + 0.01 * torch.arange(size, dtype=x.dtype).view([-1 if i == axis else 1 for i in range(x.dim())])

    def put(x, many):
        y = x * 1
        y[index + (unlike if many else size // 2,)] = torch.sigmoid(x[index + (unlike if many else 0,)])
        return y

    def fill(x):
        y = x * 1
        y[index + (slice(None, None, 2),)] = 0.5
        return y
    return {
        "topk": lambda x: x.topk(count, axis)[0], "bottom": lambda x: x.topk(count, axis, largest=False)[0],
        "sort": lambda x: x.sort(axis)[0], "sorted gather": lambda x: x.gather(axis, untied(x).topk(count,
        axis)[1]) * 2,
        "scatter": lambda x: torch.zeros_like(x).scatter(
            axis, untied(x).topk(count, axis)[1], untied(x).topk(count, axis)[0] * 2),
        "scatter add": lambda x: x.scatter_add(axis, wide(x, unlike), torch.tanh(x.index_select(axis, unlike))),
        "index add": lambda x: x.index_add(axis, unlike, torch.tanh(x.index_select(axis, unlike))),
        "put": lambda x: put(x, False), "put many": lambda x: put(x, True),
        "argmin": lambda x: x.gather(axis, untied(x).argmin(axis, keepdim=True)) + x,
        "mask by rank": lambda x: x * (x >= x.topk(count, axis)[0].narrow(axis, count - 1, 1)).to(x.dtype),
        "argsort": lambda x: x.gather(axis, untied(x).argsort(axis)), "index fill": fill,
        "diagonal": lambda x: x * torch.eye(x.shape[-2], x.shape[-1], dtype=x.dtype) + x[rest] * 0.2}[p["form"]]


@layer("seldom reduction", lambda r, shapes: {"axis": axis_of(r, shapes[0]), "form": r.choice(
    ["amin", "std", "var both", "two norm", "inf norm", "log mean exp", "prod", "sum abs", "all", "geometric",
    "median pool",
     "cumsum back", "sum of all", "mean of all", "max of all", "harmonic", "count", "range", "soft argmax"])}, weight=4)
def seldom_reduction(p, shapes):
    axis = p["axis"]
    k = {"dim": axis, "keepdim": True}
    return {
        "amin": lambda x: x.amin(axis, keepdim=True), "std": lambda x: x.std(**k, unbiased=False).add(0.1) * x,
        "var both": lambda x: x * x.var((axis, -1 if axis != x.dim() - 1 else 1), keepdim=True, unbiased=False),
        "two norm": lambda x: torch.linalg.norm(x, dim=axis, keepdim=True) + x,
        "inf norm": lambda x: x / (x.abs().amax(axis, keepdim=True) + 0.3),
        "log mean exp": lambda x: x.exp().mean(**k).log() - x, "prod": lambda x: (1 + 0.3 * torch.tanh(x)).prod(
            axis, keepdim=True) * x, "sum abs": lambda x: x / (1 + x.abs().sum(**k)),
        "all": lambda x: x * (x > -10).all(axis, keepdim=True).to(x.dtype), "geometric": lambda x: (
            x.abs() + 0.2).log().mean(**k).exp() + x, "median pool": lambda x: x.sort(axis)[0].narrow(
                axis, x.shape[axis] // 2, 1) + 0.2 * x,
        "cumsum back": lambda x: x.flip(axis).cumsum(axis).flip(axis) * 0.3, "sum of all": lambda x: x * x.sum() * 0.05,
        "mean of all": lambda x: x - x.mean(), "max of all": lambda x: x / (x.abs().max() + 0.3),
        "harmonic": lambda x: 1 / (1 / (x.abs() + 0.4)).mean(**k) + 0.1 * x, "count": lambda x: x * (x > 0).to(
            x.dtype).mean(**k), "range": lambda x: x.amax(axis, keepdim=True) - x.amin(axis, keepdim=True) + x,
        "soft argmax": lambda x: (F.softmax(x, axis) * torch.arange(x.shape[axis], dtype=x.dtype).view(
            [-1 if i == axis else 1 for i in range(x.dim())])).sum(**k) + x}[p["form"]]


@layer("seldom view", lambda r, shapes: {"axis": r.randrange(1, len(shapes[0])), "form": r.choice(
    ["windows", "unfold", "negative", "reverse step", "strided", "movedim", "cut", "split many", "three", "tensordot",
     "outer", "distances", "similarity", "swapaxes", "triangle", "diag", "grid", "einops", "as strided blocks",
     "patches",
     "addmm", "baddbmm"])}, weight=4)
def seldom_view(p, shapes):
    shape, axis = list(shapes[0]), p["axis"]
    size, rank, form = shape[axis], len(shape), p["form"]
    index = (slice(None),) * axis
    if form == "unfold" and rank == 4:
        return lambda x: F.unfold(x, (min(2, shape[2]), min(2, shape[3])), padding=1)
    if form == "patches" and rank == 4:
        a, b = divisors(shape[2])[-1], divisors(shape[3])[0]
        return lambda x: x.reshape(shape[0], shape[1], shape[2] // a, a, shape[3] // b, b).permute(0, 2, 4, 1, 3,
            5).reshape(
            shape[0], -1, shape[1] * a * b)
    if form == "einops" and rank == 3 and shape[2] % 2 == 0:
        return lambda x: x.view(shape[0], shape[1], 2, -1).permute(0, 2, 1, 3)
    if form == "grid" and rank >= 3:
        return lambda x: torch.cat([x, torch.linspace(-1, 1, shape[-1], dtype=x.dtype).expand(shape)], 1)
    if form == "addmm" and rank == 2:
        return Weighted(lambda self, x: torch.addmm(self.b, x, self.w, beta=0.5, alpha=2), w=(shape[1], 3), b=(3,))
    if form == "baddbmm" and rank == 3:
        return lambda x: torch.baddbmm(x, x @ x.transpose(1, 2), x, beta=0.5, alpha=0.1)
    if form in ("distances", "similarity") and rank == 3:
        if form == "distances":
            return lambda x: ((x[:, :, None] - x[:, None]) ** 2).sum(-1).add(0.1).sqrt()
        return lambda x: F.cosine_similarity(x[:, :, None], x[:, None], dim=-1)
    if form == "tensordot":
        return Weighted(lambda self, x: torch.tensordot(x, self.w, dims=([rank - 1], [1])), w=(3, shape[-1]))
    plain = {
        "windows": lambda x: x.unfold(axis, min(2, size), 1).sum(-1), "negative": lambda x: x[index + (slice(-2,
        None),)],
        "reverse step": lambda x: x.flip(axis)[index + (slice(None, None, 2),)],
        "strided": lambda x: x[index + (slice(size // 3, None, 2),)] * 1.5, "movedim": lambda x: x.movedim(1, -1),
        "cut": lambda x: x.view(*shape[:axis], -1, divisors(size)[-1], *shape[axis + 1:]),
        "split many": lambda x: torch.cat(x.split(2, axis)[::-1], axis), "three": lambda x: torch.cat([x, -x, x * x],
        1),
        "outer": lambda x: x.unsqueeze(-1) * x.unsqueeze(-2), "swapaxes": lambda x: x.swapaxes(axis, -1),
        "triangle": lambda x: x.triu(-1) - x.tril(1) * 0.5, "diag": lambda x: torch.diagonal(x, dim1=-2, dim2=-1)
        if rank > 2 else x, "as strided blocks": lambda x: torch.stack([x, x.roll(1, axis)], axis).flatten(axis,
            axis + 1)}
    if form not in plain:
        raise Unsuitable("a view of another shape")
    return plain[form]

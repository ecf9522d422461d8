"""Functions without weights: pointwise ones, reductions, views, pieces, joins."""

import torch
from torch import nn
from torch.nn import functional as F

from networks.catalogue import axis_of, divisors, layer

POINTWISE = {
    "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu, "gelu": F.gelu,
    "gelu tanh": nn.GELU(approximate="tanh"), "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "softplus": F.softplus, "elu": F.elu, "elu half": lambda x: F.elu(x, 0.5), "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.6), "leaky": lambda x: F.leaky_relu(x, 0.1), "relu6": F.relu6,
    "mish": F.mish, "softsign": F.softsign, "logsigmoid": F.logsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 0.9), "abs": torch.abs, "neg": torch.neg,
    "square": lambda x: x * x, "cube": lambda x: torch.tanh(x) ** 3, "sin": torch.sin,
    "cos": torch.cos, "erf": torch.erf, "exp": lambda x: torch.exp(torch.tanh(x)),
    "log": lambda x: torch.log(x * x + 0.5), "sqrt": lambda x: torch.sqrt(x.abs() + 0.2),
    "rsqrt": lambda x: torch.rsqrt(x * x + 0.3), "reciprocal": lambda x: torch.reciprocal(x.abs() + 0.5),
    "one over": lambda x: 2 / (1 + x.abs()), "affine": lambda x: 1.5 - 0.5 * x,
    "swish by hand": lambda x: x * torch.sigmoid(1.702 * x),
    "gelu by hand": lambda x: 0.5 * x * (1 + torch.erf(x / 2 ** 0.5)),
    "new gelu": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x ** 3))),
    "clamp": lambda x: x.clamp(-0.5, 0.8), "clamp low": lambda x: x.clamp(min=-0.3),
    "maximum": lambda x: torch.maximum(x, torch.tensor(0.1, dtype=x.dtype)),
    "where": lambda x: torch.where(x > 0, x, 0.3 * x), "where both": lambda x: torch.where(
        (x > -0.5) & (x < 0.7), x * 2, -x), "fill": lambda x: x.masked_fill(x > 0.6, 0.25),
    "step": lambda x: x * (x > 0).to(x.dtype), "power": lambda x: (x.abs() + 0.1) ** 1.5,
    "dropout": nn.Dropout(0.0), "same": nn.Identity(),
}


@layer("pointwise", lambda r, shapes: {"function": r.choice(list(POINTWISE))}, weight=8)
def pointwise(p, shapes):
    return POINTWISE[p["function"]]


@layer("dropout", lambda r, shapes: {"part": r.choice([0.1, 0.5, 0.8]), "form": r.choice(["module", "function"])},
    weight=0)
def dropout(p, shapes):
    if p["form"] == "function":
        return lambda x: F.dropout(x, p["part"], True) * 1.0
    return nn.Dropout(p["part"])


@layer("along an axis", lambda r, shapes: {
    "axis": axis_of(r, shapes[0]), "function": r.choice(["softmax", "log_softmax", "cumsum", "normalize",
                                                         "flip", "softmin"])}, weight=3)
def along(p, shapes):
    axis = p["axis"]
    return {"softmax": lambda x: F.softmax(x, axis), "log_softmax": lambda x: F.log_softmax(x, axis),
            "cumsum": lambda x: x.cumsum(axis) * 0.5, "normalize": lambda x: F.normalize(x, dim=axis),
            "flip": lambda x: x.flip(axis), "softmin": lambda x: F.softmin(x, axis)}[p["function"]]


REDUCTIONS = {
    "mean": lambda x, a, k: x.mean(a, keepdim=k), "sum": lambda x, a, k: x.sum(a, keepdim=k) * 0.3,
    "amax": lambda x, a, k: x.amax(a, keepdim=k), "max": lambda x, a, k: x.max(a[0], keepdim=k)[0],
    "min": lambda x, a, k: x.min(a[0], keepdim=k)[0], "var": lambda x, a, k: x.var(a, keepdim=k),
    "std": lambda x, a, k: x.var(a, unbiased=False, keepdim=k).add(0.1).sqrt(),
    "logsumexp": lambda x, a, k: x.logsumexp(a, keepdim=k), "norm": lambda x, a, k: x.norm(
        dim=a, keepdim=k), "l1": lambda x, a, k: x.norm(p=1, dim=a, keepdim=k) * 0.2,
    "prod": lambda x, a, k: torch.tanh(x).add(1.2).prod(a[0], keepdim=k),
    "squares": lambda x, a, k: (x * x).sum(a, keepdim=k) * 0.3,
}


def draw_reduction(r, shapes):
    rank = len(shapes[0])
    keep = r.random() < 0.5
    if rank < 3 and not keep:
        return None
    axes = {axis_of(r, shapes[0])}
    if r.random() < 0.3 and (rank > 3 or keep):
        axes.add(axis_of(r, shapes[0]))
    return {"function": r.choice(list(REDUCTIONS)), "axes": sorted(axes), "keep": keep}


@layer("reduction", draw_reduction, weight=4)
def reduction(p, shapes):
    axes = p["axes"][:1] if p["function"] in ("max", "min", "prod") else p["axes"]
    return lambda x: REDUCTIONS[p["function"]](x, axes, p["keep"])


@layer("centred", lambda r, shapes: {"function": r.choice(["mean", "amax", "sum", "std"]),
                                     "axes": [axis_of(r, shapes[0])]}, weight=1)
def centred(p, shapes):
    return lambda x: x - REDUCTIONS[p["function"]](x, p["axes"], True)


def draw_view(r, shapes):
    shape = shapes[0]
    form = r.choice(["flatten", "transpose", "permute", "unsqueeze", "squeeze", "split", "merge", "shuffle",
                     "whole batch"])
    if form in ("transpose", "permute") and len(shape) < 3 or len(shape) > 5:
        return None
    order = list(range(1, len(shape)))
    r.shuffle(order)
    return {"form": form, "axis": r.randrange(1, len(shape)), "other": r.randrange(1, len(shape)),
            "order": order, "which": r.random()}


@layer("view", draw_view, weight=6)
def view(p, shapes):
    shape, axis = list(shapes[0]), p["axis"]
    parts = divisors(shape[axis])
    size = parts[int(p["which"] * len(parts))]
    cut = shape[:axis] + [size, shape[axis] // size] + shape[axis + 1:]
    if p["form"] == "split":
        return lambda x: x.reshape(cut)
    if p["form"] == "merge":
        return lambda x: x.flatten(axis, min(axis + 1, x.dim() - 1))
    if p["form"] == "shuffle":
        return lambda x: x.reshape(cut).transpose(axis, axis + 1).reshape(shape)
    if p["form"] == "whole batch":
        return lambda x: torch.tanh(x.reshape(-1, shape[-1])).view(shape)
    return {"flatten": lambda x: x.flatten(1), "transpose": lambda x: x.transpose(axis, p["other"]),
            "permute": lambda x: x.permute(0, *p["order"]), "unsqueeze": lambda x: x.unsqueeze(axis),
            "squeeze": lambda x: x.squeeze(axis) if x.dim() > 2 else x}[p["form"]]


def draw_piece(r, shapes):
    axis = axis_of(r, shapes[0])
    size = shapes[0][axis]
    begin = r.randrange(size)
    return {"axis": axis, "begin": begin, "end": r.randint(begin + 1, size), "step": r.choice([1, 1, 2, 3]),
            "form": r.choice(["slice", "select", "index", "gather", "narrow", "last", "take"]),
            "places": [r.randrange(size) for _ in range(r.randint(1, 4))]}


@layer("piece", draw_piece, weight=4)
def piece(p, shapes):
    axis, size = p["axis"], shapes[0][p["axis"]]
    begin, end = min(p["begin"], size - 1), min(p["end"], size)
    places = [place % size for place in p["places"]]
    index = (slice(None),) * axis

    def gather(x):
        shape = list(x.shape)
        shape[axis] = len(places)
        where = torch.tensor(places).view([-1 if i == axis else 1 for i in range(x.dim())])
        return x.gather(axis, where.expand(shape))

    def select(x):
        return x.select(axis, begin) if x.dim() > 2 else x.narrow(axis, begin, 1)
    return {"slice": lambda x: x[index + (slice(begin, end, p["step"]),)], "select": select,
            "index": lambda x: x.index_select(axis, torch.tensor(places)), "gather": gather,
            "narrow": lambda x: x.narrow(axis, begin, max(1, end - begin)),
            "last": lambda x: x[index + (slice(-1, None),)],
            "take": lambda x: x[index + (places,)]}[p["form"]]


@layer("pieces", lambda r, shapes: {
    "axis": axis_of(r, shapes[0]), "form": r.choice(["swap", "product", "uneven", "unbind", "even and odd"])},
    weight=3)
def pieces(p, shapes):
    axis, size = p["axis"], shapes[0][p["axis"]]

    def swap(x):
        a, b = x.chunk(2, axis)
        return torch.cat([b, a * 0.5], axis)

    def product(x):
        a, b = x.split(size // 2, axis)[:2]
        return a * torch.sigmoid(b)

    def uneven(x):
        a, b = x.split([1, size - 1], axis)
        return torch.cat([b, a, b], axis)

    def odd(x):
        index = (slice(None),) * axis
        a = x[index + (slice(0, size // 2 * 2, 2),)]
        b = x[index + (slice(1, None, 2),)]
        return torch.cat([-b, a], axis)

    def unbind(x):
        return torch.stack(list(reversed(x.unbind(axis))), axis) * 0.5
    return {"swap": swap, "product": product, "uneven": uneven, "unbind": unbind,
            "even and odd": odd}[p["form"]]


@layer("moved", lambda r, shapes: {
    "axis": axis_of(r, shapes[0]), "by": r.randint(-3, 3), "form": r.choice(
        ["roll", "repeat", "interleave", "expand", "pad", "pad value", "crop", "triangle"]),
    "amounts": [r.randint(0, 2) for _ in range(4)]}, weight=3)
def moved(p, shapes):
    axis, rank = p["axis"], len(shapes[0])
    times = [2 if i == axis else 1 for i in range(rank)]
    by = p["by"] % shapes[0][axis]
    amounts = p["amounts"][:2 * min(2, rank - 1)]
    return {"roll": lambda x: x.roll(by, axis), "repeat": lambda x: x.repeat(times),
            "interleave": lambda x: x.repeat_interleave(2, axis),
            "expand": lambda x: x.unsqueeze(axis).expand(
                *[-1] * axis, 3, *[-1] * (rank - axis)).flatten(axis, axis + 1),
            "pad": lambda x: F.pad(x, amounts), "pad value": lambda x: F.pad(x, amounts, value=0.3),
            "crop": lambda x: F.pad(x, (-1, 1)), "triangle": lambda x: x.tril() + x.triu(1) * 0.5}[p["form"]]


@layer("pad mode", lambda r, shapes: {
    "mode": r.choice(["reflect", "replicate"]), "amounts": [r.randint(0, 2) for _ in range(4)]}
    if len(shapes[0]) in (3, 4) else None, weight=1)
def pad_mode(p, shapes):
    return lambda x: F.pad(x, p["amounts"][:2 * (x.dim() - 2)], mode=p["mode"])


@layer("resize", lambda r, shapes: {
    "mode": r.choice(["nearest", "bilinear", "corners"]), "form": r.choice(["scale", "size"])}
    if len(shapes[0]) == 4 else None, weight=1)
def resize(p, shapes):
    target = {"scale_factor": 2} if p["form"] == "scale" else {"size": (5, 4)}
    if p["mode"] == "nearest":
        return lambda x: F.interpolate(x, mode="nearest", **target)
    return lambda x: F.interpolate(x, mode="bilinear", align_corners=p["mode"] == "corners", **target)


@layer("pixel shuffle", lambda r, shapes: {"up": r.random() < 0.5} if len(shapes[0]) == 4 else None, weight=0.6)
def pixel_shuffle(p, shapes):
    return nn.PixelShuffle(2) if p["up"] else nn.PixelUnshuffle(2)


@layer("product with itself", lambda r, shapes: {"form": r.choice(["gram", "mixed", "outer"])}
       if len(shapes[0]) == 3 else None, weight=1)
def gram(p, shapes):
    if p["form"] == "gram":
        return lambda x: x @ x.transpose(1, 2) * 0.3
    if p["form"] == "mixed":
        return lambda x: torch.einsum("bij,bkj->bik", x, torch.tanh(x)) * 0.3
    return lambda x: torch.einsum("bi,bj->bij", x[:, 0], x[:, -1])


def draw_pair(r, shapes):
    a, b = shapes
    try:
        torch.broadcast_shapes(a, b)
    except RuntimeError:
        return None
    return {"function": r.choice(["add", "add", "sub", "mul", "div", "max", "min", "where", "lerp"])}


@layer("pair", draw_pair, weight=8, operands=2)
def pair(p, shapes):
    return {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "max": torch.maximum,
            "min": torch.minimum, "div": lambda a, b: a / (b.abs() + 0.5),
            "where": lambda a, b: torch.where(a > b, a * 0.5, b),
            "lerp": lambda a, b: 0.3 * a + 0.7 * b}[p["function"]]


@layer("join", lambda r, shapes: {"axis": r.randrange(1, len(shapes[0])), "stack": r.random() < 0.3}
       if len(shapes[0]) == len(shapes[1]) else None, weight=3, operands=2)
def join(p, shapes):
    if p["stack"]:
        return lambda a, b: torch.stack([a, b, a], p["axis"])
    return lambda a, b: torch.cat([a, b], p["axis"])


@layer("matrix product", lambda r, shapes: {"transposed": shapes[0][-1] == shapes[1][-1]}
       if len(shapes[0]) >= 3 and len(shapes[1]) >= 3 else None, weight=2, operands=2)
def matrix_product(p, shapes):
    if p["transposed"]:
        return lambda a, b: torch.matmul(a, b.transpose(-1, -2)) * 0.3
    return lambda a, b: torch.matmul(a, b) * 0.3

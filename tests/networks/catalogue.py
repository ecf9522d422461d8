"""The table of layers that networks are drawn from.

An entry has two functions. `draw(r, shapes)` draws parameters, plain JSON, for operands of these
shapes, or None if they do not suit. `build(p, shapes)` makes a function or a module of tensors from
parameters and shapes. Parameters say nothing that follows from shapes (channels that come in, ...), so that
a layer can be built again on other operands when the layers before it are left out.

Axis 0 is the batch; every other axis may have any size.
"""

import dataclasses
import typing

import torch
from torch import nn


@dataclasses.dataclass
class Entry:
    draw: typing.Callable
    build: typing.Callable
    weight: float
    operands: int
    first: str  # what the first operand is: "number", "integer" or "truth"


CATALOGUE = {}


class Unsuitable(Exception):
    """A description that makes no network worth training."""


def layer(name, draw=lambda r, shapes: {}, weight=1.0, operands=1, integer=False, truth=False):
    """Decorates `build`. `integer`, `truth`: of the first operand."""
    def add(build):
        CATALOGUE[name] = Entry(draw, build, weight, operands,
                                "integer" if integer else "truth" if truth else "number")
        return build
    return add


# How names of buffers and frozen parameters begin that nothing but a flag can tell from weights.
TOLD = "told_"


class Weighted(nn.Module):
    """A function of tensors, of weights of its own and of buffers."""

    def __init__(self, function, buffers=None, **shapes):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape) * 0.5))
        for name, value in (buffers or {}).items():
            self.register_buffer(name, value)

    def with_part(self, name, module):
        self.add_module(name, module)
        return self

    def forward(self, *operands):
        return self.function(self, *operands)


def axis_of(r, shape, mixing=0.03):
    """An axis, seldom that of the batch."""
    return 0 if r.random() < mixing else r.randrange(1, len(shape))


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]

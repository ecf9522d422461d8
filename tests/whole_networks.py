"""The list of whole networks that whole_networks_test.py trains, and what their data is drawn with."""

import dataclasses
import typing

import torch

BATCH, STEPS = 4, 3


@dataclasses.dataclass
class Whole:
    make: typing.Callable
    data: dict  # name: function that draws [steps * batch, ...]; in the order of the module's inputs
    outside: str = ""  # what --loss says; the last of the data is its label
    told: tuple = ()  # what windlass has to be told not to train
    opset: int = 16


NETWORKS = {}


def network(name, make, outside="", told=(), opset=16, **data):
    NETWORKS[name] = Whole(make, data, outside, told, opset)


def noise(*shape):
    return lambda: torch.randn(STEPS * BATCH, *shape)


def uniform(*shape):
    return lambda: 0.05 + 0.9 * torch.rand(STEPS * BATCH, *shape)


def bits(*shape):
    return lambda: torch.randint(2, (STEPS * BATCH, *shape)).float()


def classes(limit, *shape, least=0):
    return lambda: torch.randint(least, limit, (STEPS * BATCH, *shape))


def squares(x, y):
    """Mean squared error, which PyTorch 1 does not export under its own name; likewise the others."""
    return (x - y).pow(2).mean()


def distance(x, y):
    return (x - y).abs().mean()


def bent(x, y, delta=1.0):
    """Huber's loss."""
    d = (x - y).abs()
    return torch.where(d < delta, 0.5 * d * d, delta * (d - 0.5 * delta)).mean()

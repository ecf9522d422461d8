"""What PyTorch computes, and how far its own rounding carries it.

The truth is PyTorch in double precision. How near is near is seen from PyTorch in single precision, with
weights and data as they are and with their last bits changed: where a network magnifies rounding, or stands
at a kink, these differ from the truth as much as anybody may. Weights that make values tie on purpose begin as
they are: ties have a rule that all must follow. After a step that moves some of them, the others may have moved by
their last bits: Adam makes a step of a gradient that is 0 but for rounding.
"""

import copy
import dataclasses

import numpy
import torch

from networks.build import Unsuitable
from networks.ties import Ties

LAST_BIT = 2.0 ** -23  # of single precision


def make_optimizer(train, parameters):
    h = train["hyperparameters"]
    decay = h.get("weight_decay", 0)
    if train["optimizer"] in ("sgd", "momentum"):
        momentum = h["momentum"] if train["optimizer"] == "momentum" else 0
        return torch.optim.SGD(parameters, lr=h["lr"], momentum=momentum, weight_decay=decay)
    made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[train["optimizer"]]
    return made(parameters, lr=h["lr"], eps=h["epsilon"], weight_decay=decay)


@dataclasses.dataclass
class Run:
    losses: list
    tensors: dict  # "gradient.<step>.<name>" and "weight.<name>", in double precision
    finite: bool


def train(network, dtype=torch.float64, noise=0):
    """A run of a copy that has weights. `noise`: the number of a change in the last bits, 0: none. Throws
    Unsuitable if no weight has a gradient."""
    module = copy.deepcopy(network).to(dtype)
    generator = torch.Generator().manual_seed(noise)

    def shift(tensor):
        return LAST_BIT * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)

    def disturb(tensor):
        if noise and tensor.is_floating_point():
            tensor.mul_(1 + shift(tensor))
    module.data = {name: rows.double() if rows.is_floating_point() else rows
                   for name, rows in module.data.items()}
    tying = [part.w for part in module.modules() if isinstance(part, Ties)]
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.data.values()]:
            if not any(tensor is weight for weight in tying):
                disturb(tensor)
    train_as = module.description["train"]
    for name, weight in module.named_parameters():
        weight.requires_grad_(name not in network.frozen())
    optimizer = make_optimizer(train_as, [weight for weight in module.parameters() if weight.requires_grad])
    run = Run([], {}, True)
    for step in range(train_as["steps"]):
        loss = module.loss(step, dtype)
        if not loss.requires_grad:
            raise Unsuitable("no weight has a gradient")
        optimizer.zero_grad()
        loss.backward()
        run.losses.append(loss.item())
        for name, weight in module.named_parameters():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            run.tensors[f"gradient.{step + 1}.{name}"] = gradient.double().numpy().copy()
        optimizer.step()
        with torch.no_grad():
            for weight in tying if noise else []:
                if weight.grad is not None and weight.grad.any():
                    weight.add_(shift(weight))
    for name, value in module.state_dict().items():
        run.tensors[f"weight.{name}"] = value.detach().double().numpy().copy()
    run.finite = all(numpy.isfinite(t).all() for t in run.tensors.values()) and numpy.isfinite(run.losses).all()
    return run


class Reference:
    """The truth and its neighbours. Further neighbours are asked for when something seems to differ."""

    def __init__(self, network):
        self.network = network
        self.truth = train(network)
        self.neighbours = []
        self.more(2)

    def more(self, count):
        while len(self.neighbours) < count:
            self.neighbours.append(train(self.network, torch.float32, len(self.neighbours)))

    def usable(self):
        """Whether losses and gradients are numbers that mean something."""
        runs = [self.truth, *self.neighbours]
        if not all(run.finite and numpy.abs(run.losses).max() < 1e4 for run in runs):
            return False
        first = [t for name, t in self.truth.tensors.items() if name.startswith("gradient.1.")]
        if not max(numpy.abs(t).max(initial=0) for t in first) > 1e-5:
            return False
        return all(abs(a - b) < 1e-3 * (abs(a) + 1e-3) for run in self.neighbours
                   for a, b in zip(self.truth.losses, run.losses))

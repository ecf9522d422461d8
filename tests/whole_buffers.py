"""Networks that store what they do not train, of which an ONNX file says nothing; see whole_networks_test.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from whole_networks import bits, classes, network, noise, squares, uniform


class Schedule(nn.Module):
    """Diffusion: how much noise at which time is stored, and looked up."""

    def __init__(self, times=20):
        super().__init__()
        kept = torch.cumprod(1 - torch.linspace(1e-3, 0.2, times), 0)
        self.register_buffer("alphas_cumprod", kept)
        self.register_buffer("sqrt_alphas_cumprod", kept.sqrt())
        self.register_buffer("sqrt_one_minus_alphas_cumprod", (1 - kept).sqrt())
        self.time, self.body = nn.Embedding(times, 6), nn.Sequential(nn.Linear(6, 12), nn.SiLU(), nn.Linear(12, 6))

    def forward(self, x, t, draw):
        column = lambda table: table.gather(-1, t).reshape(-1, 1)  # noqa: E731
        noisy = column(self.sqrt_alphas_cumprod) * x + column(self.sqrt_one_minus_alphas_cumprod) * draw
        weights = (self.alphas_cumprod[t] / (1 - self.alphas_cumprod[t])).clamp(max=5)
        return (weights[:, None] * (self.body(noisy + self.time(t)) - draw) ** 2).mean()


network("stored_schedule", Schedule, x=noise(6), t=classes(20), draw=noise(6))


class Edges(nn.Module):
    """Coordinates that are joined to an image, edge filters and wavelets in the loss."""

    def __init__(self):
        super().__init__()
        places = torch.linspace(-1, 1, 6)
        self.register_buffer("coords", torch.stack(torch.meshgrid(places, places, indexing="ij"))[None])
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
        self.register_buffer("sobel", torch.stack([across, across.t()])[:, None])
        haar = torch.tensor([[[1.0, 1], [1, 1]], [[1, 1], [-1, -1]], [[1, -1], [1, -1]], [[1, -1], [-1, 1]]]) / 2
        self.register_buffer("haar", haar[:, None])
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, x, target):
        y = self.last(F.silu(self.first(torch.cat([x, self.coords.expand(x.shape[0], -1, -1, -1)], 1))))
        apart = (F.conv2d(y, self.sobel) - F.conv2d(target, self.sobel)).abs().mean()
        return squares(y, target) + apart + F.conv2d(y, self.haar, stride=2).pow(2).mean()


network("stored_filters", Edges, x=noise(1, 6, 6), target=noise(1, 6, 6))


class Laplacian(nn.Module):
    """A graph that is stored as a matrix, random Fourier features, and classes that weigh differently."""

    def __init__(self, places=6):
        super().__init__()
        ring = torch.eye(places).roll(1, 0) + torch.eye(places).roll(-1, 0)
        self.register_buffer("L", torch.eye(places) - 0.5 * ring)
        self.register_buffer("B", torch.randn(3, 4))
        self.one, self.two = nn.Linear(8, 5), nn.Linear(5, 2)
        self.criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 0.5]))

    def forward(self, x, labels):
        turns = 2 * math.pi * x @ self.B
        y = torch.tanh(self.one(torch.cat([turns.sin(), turns.cos()], -1)))
        y = self.L @ (self.L @ y) - y
        return self.criterion(self.two(y.mean(1)), labels)


network("stored_graph", Laplacian, x=uniform(6, 3), labels=bits(2))

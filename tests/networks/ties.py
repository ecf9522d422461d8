"""Values that tie and values at kinks, where PyTorch has a rule of its own for the gradient."""

import torch
from torch.nn import functional as F

from networks.catalogue import Weighted, layer


class Ties(Weighted):
    """Sums of quarters, of which many are the same: what becomes of gradients where values tie or stand at a kink."""

    def __init__(self, p, shapes):
        width = shapes[0][-1]
        super().__init__(None, w=(width,), s=(width,))
        self.p = p

    def settle(self):
        """After all weights were made unlike."""
        with torch.no_grad():
            self.w.copy_(0.25 * torch.randperm(self.w.numel()) - 1.0)

    def forward(self, x):
        v = torch.round(x * 4) / 4 + self.w
        form = self.p["form"]
        y = {"amax": lambda: v.amax(-1, keepdim=True), "amin": lambda: v.amin(-1, keepdim=True),
             "maximum": lambda: torch.maximum(v, v.flip(-1)), "minimum": lambda: torch.minimum(v, v.flip(-1)),
             "weight at a bound": lambda: v * self.w.clamp(-1.0, 0.25), "weight from a bound": lambda: v * self.w.view(
                 1, -1).clamp(min=-0.5), "relu": lambda: F.relu(v),
             "abs": lambda: v.abs(), "leaky": lambda: F.leaky_relu(v, 0.3), "hardtanh": lambda: F.hardtanh(v),
             "relu6": lambda: F.relu6(v * 4), "pool": lambda: F.max_pool1d(v.flatten(0, -2).unsqueeze(1), 2, 1).squeeze(
                 1).reshape(*v.shape[:-1], -1), "prod": lambda: (v * 0.5).prod(-1, keepdim=True),
             "hardsigmoid": lambda: F.hardsigmoid(v * 4), "elu": lambda: F.elu(v),
             "shrink": lambda: F.softshrink(v, 0.25), "hard shrink": lambda: F.hardshrink(v, 0.25), "norm": lambda: (
                 v * (v > 0.5).to(v.dtype)).norm(dim=-1, keepdim=True), "normalize": lambda: F.normalize(
                     v * (v > 1).to(v.dtype), dim=-1), "std": lambda: (v * (v > 1).to(v.dtype)).std(
                         -1, keepdim=True), "likeness": lambda: F.cosine_similarity(v * (v > 1).to(v.dtype), v,
                             -1).unsqueeze(
                             -1), "l1": lambda: v.norm(p=1, dim=-1, keepdim=True),
             "where": lambda: torch.where(v > 0.25, v * 2, v), "threshold": lambda: F.threshold(v, 0.0, 0.0),
             "prelu": lambda: F.prelu(v, self.s[:1]), "sign": lambda: torch.sign(v) * v, "celu": lambda: F.celu(v, 0.5),
             "square": lambda: v.clamp(min=0) ** 2, "power": lambda: F.relu(v) ** 1.5, "global": lambda: v.flatten(
             1).amax(
                 1).view(-1, *[1] * (v.dim() - 1)) + v, "adaptive": lambda: F.adaptive_max_pool1d(v.flatten(0,
                     -2).unsqueeze(
                     1), 1).reshape(*v.shape[:-1], 1)}[form]()
        y = y * self.s if y.shape[-1] in (1, self.s.numel()) else y
        return y + 0.1 * x[..., :1]


TIES = ["amax", "amin", "maximum", "minimum", "weight at a bound", "weight from a bound", "relu", "abs", "leaky",
    "hardtanh", "relu6", "pool", "prod",
        "hardsigmoid", "elu", "shrink", "hard shrink", "norm", "normalize", "std", "likeness", "l1", "where",
        "threshold", "prelu",
        "sign", "celu", "square", "power", "global", "adaptive"]


@layer("ties", lambda r, shapes: {"form": r.choice(TIES)}, weight=2)
def ties(p, shapes):
    return Ties(p, shapes)

"""Gradients of weights that an exporter has computed with.

The file stores f = g(w) instead of weights w. Exported again with weights a little to either side, the files tell how f
follows w along a direction d, and by the chain rule PyTorch's gradient along d is windlass's gradient of f along J d.
"""

import copy

import numpy
import torch

from networks.build import export, stored_values
from networks.catalogue import Unsuitable
from networks.compare import FACTOR

DIRECTIONS = 2
STEP = 3e-3  # relative to a weight, to either side: what is stored has single precision
TOLERANCE = 1e-3  # of the sum of the absolute products


class Folds:
    """Directions are drawn when they are first asked for."""

    def __init__(self, network, path, folder):
        self.network, self.path, self.folder, self.directions = network, path, folder, None

    def stored_at(self, weights):
        """What is stored of other weights."""
        moved = copy.deepcopy(self.network)
        with torch.no_grad():
            for name, weight in moved.named_parameters():
                weight.copy_(torch.as_tensor(weights[name]))
        path = self.folder / "moved.onnx"
        export(moved, path)
        return {name: value.astype(numpy.float64) for name, value in stored_values(path).items()
                if value.dtype == numpy.float32}

    def draw(self):
        """A list of (d, J d), both by name."""
        begin = {name: p.detach().double().numpy() for name, p in self.network.named_parameters()}
        generator = numpy.random.default_rng(self.network.description["seed"])
        found = []
        for _ in range(DIRECTIONS):
            d = {name: generator.standard_normal(value.shape) * (numpy.abs(value) + 0.1) for name, value in begin.items(
                )}
            above, below = (self.stored_at({name: begin[name] + sign * STEP * d[name] for name in begin})
                            for sign in (1, -1))
            found.append((d, {name: (value - below[name]) / (2 * STEP) for name, value in above.items()
                              if name in below and value.shape == below[name].shape}))
        return found

    def compare(self, reference, tensors, trained):
        """Complaints; None if trained tensors are none that the file stores, or have no slope."""
        if self.network.stands_at_kinks():
            return None
        if self.directions is None:
            try:
                self.directions = self.draw()
            except Unsuitable:
                self.directions = []
        if not self.directions or any(not trained <= set(follows) for _, follows in self.directions):
            return None
        # A number without a name might as well be a constant.
        if any(value.size == 1 and name.startswith("onnx::") and name not in trained and value.any()
               for _, follows in self.directions for name, value in follows.items()):
            return None
        complaints = []
        prefix = "gradient.1."
        stored = stored_values(self.path)
        for d, follows in self.directions:
            sums = [sum(float((run.tensors[prefix + name] * d[name]).sum()) for name in d)
                    for run in (reference.truth, *reference.neighbours)]
            size = sum(float(numpy.abs(reference.truth.tensors[prefix + name] * d[name]).sum()) for name in d)
            if any(tensors[prefix + name].shape != follows[name].shape for name in trained):
                return None
            found = sum(float((tensors[prefix + name] * follows[name]).sum()) for name in trained)
            moved = max(abs(near - sums[0]) for near in sums[1:])
            # What is stored of weights to either side is rounded: J d is known to so much.
            rounded = sum(float((numpy.abs(tensors[prefix + name] * stored[name])).sum()) for name in trained
                          if name in stored) * numpy.finfo(numpy.float32).eps / STEP
            if not abs(found - sums[0]) <= FACTOR * moved + TOLERANCE * size + rounded:
                complaints.append(f"gradient along a direction of all weights: {found}, PyTorch {sums[0]}, of products "
                                  f"that sum up to {size} at most")
        return complaints

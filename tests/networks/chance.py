"""Networks that drop something: PyTorch draws other masks, so that only the spread of its losses compares.

That every memory action draws the same masks is seen from plans that compute the same to the last bit (trial.py).
"""

import copy

import numpy
import torch

DRAWS = 40
SPREADS = 8  # so many standard deviations are no accident


def drops(description):
    return any(node["layer"] == "dropout" for node in description["nodes"])


def judge_chance(network, losses):
    """Complaints about the first loss."""
    module = copy.deepcopy(network)
    with torch.no_grad():
        drawn = [module.loss(0).item() for _ in range(DRAWS)]
    middle, spread = numpy.mean(drawn), numpy.std(drawn)
    if not abs(losses[0] - middle) <= SPREADS * spread + 1e-3 * abs(middle) + 1e-5:
        return [f"loss of step 1: {losses[0]}, PyTorch {middle} with a spread of {spread}"]
    return []

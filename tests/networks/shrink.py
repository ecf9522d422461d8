"""Makes a failing network small, as long as it fails the same way."""

import copy

from networks.catalogue import Unsuitable
from networks.trial import Trial


def without_node(description, position):
    """The first operand in the node's place."""
    smaller = copy.deepcopy(description)
    node = smaller["nodes"].pop(position)
    gone, instead = f"n{node['id']}", node["of"][0]
    for other in smaller["nodes"]:
        other["of"] = [instead if name == gone else name for name in other["of"]]
    for loss in smaller["losses"]:
        loss["of"] = instead if loss["of"] == gone else loss["of"]
    smaller["outputs"] = [instead if name == gone else name for name in smaller["outputs"]]
    return smaller


def live(description):
    """Without nodes that nothing reads."""
    smaller = copy.deepcopy(description)
    while True:
        read = {name for node in smaller["nodes"] for name in node["of"]}
        read |= {node["p"].get("node") for node in smaller["nodes"]}
        read |= {loss["of"] for loss in smaller["losses"]} | set(smaller["outputs"])
        kept = [node for node in smaller["nodes"] if f"n{node['id']}" in read]
        if len(kept) == len(smaller["nodes"]):
            return smaller
        smaller["nodes"] = kept


def changed(description, **changes):
    smaller = copy.deepcopy(description)
    smaller.update(changes)
    return smaller


def candidates(description):
    """Smaller descriptions, the boldest first."""
    for position in reversed(range(len(description["nodes"]))):
        yield live(without_node(description, position))
    for i in range(len(description["losses"])):
        if len(description["losses"]) > 1:
            rest = description["losses"][:i] + description["losses"][i + 1:]
            yield live(changed(description, losses=rest))
    if description["outside"]:
        yield changed(description, outside=None, outputs=[],
                      losses=[{"kind": "squares", "of": description["outputs"][0]}])
    elif description["outputs"]:
        yield live(changed(description, outputs=[]))
    for i, loss in enumerate(description["losses"]):
        if loss["kind"] != "squares":
            losses = copy.deepcopy(description["losses"])
            losses[i]["kind"] = "squares"
            yield changed(description, losses=losses)
    train = description["train"]
    if train["steps"] > 1:
        yield changed(description, train={**train, "steps": 1})
    if train["optimizer"] != "sgd":
        yield changed(description, train={"optimizer": "sgd", "steps": train["steps"],
                                          "hyperparameters": {"lr": 0.1}})
    plain = {"opset": 13, "mode": "train", "fold": False}
    if description["export"] != plain:
        yield changed(description, export=plain)
    last = len(description["inputs"]) - 1
    if last > 0 and not any(f"x{last}" in node["of"] for node in description["nodes"]):
        yield changed(description, inputs=description["inputs"][:-1])
    if description["batch"] > 1:
        yield changed(description, batch=1)
        yield changed(description, batch=description["batch"] - 1)
    for i, given in enumerate(description["inputs"]):
        for axis, size in enumerate(given["shape"]):
            for less in {1, 2, size - 1}:
                if 0 < less < size:
                    inputs = copy.deepcopy(description["inputs"])
                    inputs[i]["shape"][axis] = less
                    yield changed(description, inputs=inputs)
    yield from plainer_layers(description)


def plainer_layers(description):
    for i, node in enumerate(description["nodes"]):
        for key, value in node["p"].items():
            plainer = {"out": 1, "stride": [1], "dilation": [1], "padding": [0], "kernel": [1], "bias": False,
                       "mode": "zeros", "kind": "plain", "layers": 1, "both": False, "state": "none",
                       "mask": "none", "affine": False, "size": 1, "function": "mean"}.get(key)
            if isinstance(plainer, list):
                plainer = plainer * len(value)
            if plainer is None or plainer == value or isinstance(value, bool) != isinstance(plainer, bool):
                continue
            nodes = copy.deepcopy(description["nodes"])
            nodes[i]["p"][key] = plainer
            yield changed(description, nodes=nodes)


def shrink(service, description, failure, budget=150):
    """The smallest description found in so many trials, and how it fails."""
    def fails(trial):
        try:
            verdict = Trial(service, trial, [failure.strategy] if failure.strategy != "loading" else None).run()
        except Unsuitable:
            return None
        return next((found for found in verdict.failures if found.alike(failure)), None)
    best = failure
    progress = True
    while progress and budget > 0:
        progress = False
        for smaller in candidates(description):
            budget -= 1
            if budget <= 0:
                break
            found = fails(smaller)
            if found is not None:
                description, best, progress = smaller, found, True
                break
    return description, best

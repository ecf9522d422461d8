"""Draws descriptions of networks."""

import random

from networks.build import LOSSES, Unsuitable, build, input_shape
from networks.catalogue import CATALOGUE

TRIES = 12  # of a layer, until one suits
INTEGERS = 12  # integers are below this
REFUSED_LOSS = "sum of classes"  # seldom drawn

OPTIMIZERS = {
    "sgd": lambda r: {"lr": r.choice([0.01, 0.1]), "weight_decay": r.choice([0, 0, 0.01])},
    "momentum": lambda r: {"lr": r.choice([0.01, 0.05]), "momentum": r.choice([0.5, 0.9]),
                           "weight_decay": r.choice([0, 1e-3])},
    "adam": lambda r: {"lr": 1e-3, "epsilon": r.choice([1e-8, 1e-4]), "weight_decay": r.choice([0, 1e-3])},
    "adamw": lambda r: {"lr": 1e-3, "epsilon": r.choice([1e-8, 1e-4]), "weight_decay": r.choice([0, 0.1])},
}


def draw_input(r, large):
    """Seldom one that all samples share: a mask, a table."""
    kind = r.choice(["image", "image", "sequence", "sequence", "tokens", "vector", "volume"])
    size = lambda: r.choice([11, 16, 19] if large else [1, 3, 4, 5, 6, 7, 8])  # noqa: E731
    shape = {"image": [r.randint(1, 4), size(), size()], "sequence": [
        r.randint(1, 16 if large else 8), r.choice([16, 24, 33, 40] if large else [2, 4, 6, 7, 8])],
        "tokens": [r.randint(1, 7)], "vector": [r.randint(20, 70) if large else r.randint(1, 12)],
        "volume": [r.randint(1, 3), r.randint(1, 4), r.randint(2, 5), r.randint(1, 5)]}[kind]
    given = {"shape": shape, "bound": INTEGERS if kind == "tokens" else 0}
    if r.random() < 0.05 and len(shape) > 1:
        given["shared"] = True
    return given


class Draft:
    """A description that grows by what suits it."""

    def __init__(self, r, seed):
        self.r = r
        large = r.random() < 0.1
        self.description = {
            "seed": seed, "batch": r.choice([1, 2, 2, 3, 4, 4, 5, 6]), "inputs": [draw_input(r, large)],
            "nodes": [], "losses": [], "outside": None, "outputs": [], "large": large,
            "export": {"opset": r.choice([11, 12, 13, 13, 14, 15, 16, 17]), "mode": "train", "fold": False},
            "train": {"optimizer": "sgd", "steps": 1, "hyperparameters": {}}}
        for _ in range(r.choice([0, 0, 0, 1, 2])):
            self.description["inputs"].append(
                draw_input(r, large) if r.random() < 0.6 else dict(self.description["inputs"][0]))
        self.shapes = {f"x{i}": (input_shape(self.description, given), given["bound"] > 0)
                       for i, given in enumerate(self.description["inputs"])}

    def pick(self, integer):
        """A value, most often a late one."""
        names = [name for name, (_, is_integer) in self.shapes.items() if is_integer == integer]
        if not names:
            return None
        return names[-1 - min(len(names) - 1, int(self.r.expovariate(1.0)))]

    def partner(self, name):
        """A second operand: one of the same shape where there is one."""
        shape = self.shapes[name][0]
        same = [n for n, (s, integer) in self.shapes.items() if s == shape and not integer]
        return self.r.choice(same) if len(same) > 1 and self.r.random() < 0.7 else self.pick(False)

    def shapes_of(self, names):
        return [tuple(self.shapes[name][0]) for name in names]

    def draw_node(self):
        r = self.r
        names = list(CATALOGUE)
        layer = r.choices(names, [CATALOGUE[name].weight for name in names])[0]
        entry = CATALOGUE[layer]
        first = self.pick(entry.integer)
        if first is None:
            return None
        of = [first] if entry.operands == 1 else [first, self.pick(False) if entry.integer else self.partner(first)]
        if None in of:
            return None
        p = entry.draw(r, self.shapes_of(of))
        return None if p is None else {"layer": layer, "of": of, "p": p}

    def draw_again(self):
        with_modules = [n for n in self.description["nodes"] if len(n["of"]) == 1 and n["layer"] in (
            "linear", "convolution", "product", "layer norm", "weight over channels", "attention", "recurrent",
            "parametric relu", "group norm", "embedding")]
        if not with_modules:
            return None
        node = self.r.choice(with_modules)
        of = self.pick(CATALOGUE[node["layer"]].integer)
        return None if of is None else {"layer": "again", "of": [of], "p": {"node": f"n{node['id']}"}}

    def draw_tied(self):
        tables = [n for n in self.description["nodes"] if n["layer"] in ("embedding", "linear")]
        of = self.pick(False)
        if not tables or of is None:
            return None
        return {"layer": "tied", "of": [of], "p": {"node": f"n{self.r.choice(tables)['id']}"}}

    def add_node(self):
        for _ in range(TRIES):
            kind = self.r.random()
            node = self.draw_again() if kind < 0.06 else self.draw_tied() if kind < 0.1 else self.draw_node()
            if node is None:
                continue
            node["id"] = len(self.description["nodes"])
            self.description["nodes"].append(node)
            try:
                shape = build(self.description).shapes[f"n{node['id']}"]
            except Unsuitable:
                self.description["nodes"].pop()
                continue
            self.shapes[f"n{node['id']}"] = (shape, False)
            return True
        return False

    def finish(self):
        """Losses on what nobody reads."""
        r, description = self.r, self.description
        read = {name for node in description["nodes"] for name in node["of"]}
        ends = [f"n{node['id']}" for node in description["nodes"] if f"n{node['id']}" not in read]
        last = ends.pop()
        rank = len(self.shapes[last][0])
        if r.random() < 0.25:
            # Before a softmax at the end, windlass attaches cross-entropy to what goes into it.
            ends_so = description["nodes"][-1]["layer"] == "along an axis"
            many = rank in (2, 4) and self.shapes[last][0][-1 if rank == 2 else 1] > 1
            classes = many and not ends_so and r.random() < 0.5
            description["outside"] = "cross-entropy" if classes else "mse"
            description["outputs"] = [last]
            if r.random() < 0.3:
                description["outputs"].append(r.choice([f"n{node['id']}" for node in description["nodes"]]))
        else:
            common = [kind for kind in LOSSES if kind != REFUSED_LOSS or r.random() < 0.1]
            description["losses"] = [{"kind": r.choice(common), "of": last}]
            for name in ends[:2]:
                if r.random() < 0.8:
                    description["losses"].append({"kind": r.choice(common), "of": name})
            if r.random() < 0.2:
                description["losses"].append({"kind": "squares", "of": r.choice(list(
                    f"n{node['id']}" for node in description["nodes"]))})
            for loss in description["losses"]:
                if r.random() < 0.1:
                    loss["uncertain"] = True
            if r.random() < 0.25:
                description["outputs"] = [r.choice([last, *ends])]
        optimizer = r.choice(list(OPTIMIZERS))
        description["train"] = {"optimizer": optimizer, "steps": r.choice([1, 1, 2, 2, 3, 5]),
                                "hyperparameters": OPTIMIZERS[optimizer](r)}
        norms = any(node["layer"] in ("batch norm", "instance norm") for node in description["nodes"])
        description["export"]["fold"] = r.random() < 0.2
        description["export"]["open"] = r.random() < 0.15
        if not norms and r.random() < 0.15:
            description["export"]["mode"] = "default"


def draw(seed):
    """The description of a seed: the first draft that has a weight and can be trained."""
    for attempt in range(1000):
        r = random.Random(f"{seed}.{attempt}")
        draft = Draft(r, seed)
        wanted = r.choice([1, 2, 3, 4, 5, 6, 8, 10, 12])
        while len(draft.description["nodes"]) < wanted and draft.add_node():
            pass
        if not draft.description["nodes"]:
            continue
        draft.finish()
        try:
            network = build(draft.description)
        except Unsuitable:
            continue
        if any(True for _ in network.parameters()):
            return draft.description
    raise AssertionError(f"seed {seed}: no network")

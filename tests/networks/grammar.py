"""Draws descriptions of networks."""

import random

from networks.build import LOSSES, Unsuitable, build, input_shape
from networks.catalogue import CATALOGUE

TRIES = 12  # of a layer, until one suits
INTEGERS = 12  # integers are below this
REFUSED_LOSS = "sum of classes"  # seldom drawn
DROPPING = 0.03  # of networks drop something

OPTIMIZERS = {
    "sgd": lambda r: {"lr": r.choice([0.01, 0.1]), "weight_decay": r.choice([0, 0, 0.01])},
    "momentum": lambda r: {"lr": r.choice([0.01, 0.05]), "momentum": r.choice([0.5, 0.9]),
                           "weight_decay": r.choice([0, 1e-3])},
    "adam": lambda r: {"lr": 1e-3, "epsilon": r.choice([1e-8, 1e-4]), "weight_decay": r.choice([0, 1e-3])},
    "adamw": lambda r: {"lr": 1e-3, "epsilon": r.choice([1e-8, 1e-4]), "weight_decay": r.choice([0, 0.1])},
}


def draw_input(r, large):
    """Seldom one that all samples share: a table."""
    kind = r.choice(["image", "image", "sequence", "sequence", "tokens", "vector", "volume"])
    size = lambda: r.choice([11, 16, 19] if large else [1, 3, 4, 5, 6, 7, 8])  # noqa: E731
    shape = {"image": [r.randint(1, 4), size(), size()], "sequence": [
        r.randint(1, 16 if large else 8), r.choice([16, 24, 33, 40] if large else [2, 4, 6, 7, 8])],
        "tokens": [r.randint(1, 7)], "vector": [r.randint(20, 70) if large else r.randint(1, 12)],
        "volume": [r.randint(1, 3), r.randint(1, 4), r.randint(2, 5), r.randint(1, 5)]}[kind]
    given = {"shape": shape, "bound": INTEGERS if kind == "tokens" else 0}
    if kind == "tokens" and r.random() < 0.2:
        given["narrow"] = True
    if r.random() < 0.05 and len(shape) > 1:
        given["shared"] = True
    return given


def draw_mask(r, given):
    """Of the first axes of another input."""
    return {"shape": given["shape"][:r.randint(0, len(given["shape"]))], "bound": 0, "truth": True}


def kind_of(given):
    return "truth" if given.get("truth") else "integer" if given["bound"] > 0 else "number"


def draw_outside(r, shape, layer, ends):
    """A loss by --loss. `layer`, `ends`: the last layer, and the function there; of a final sigmoid windlass takes what
    goes into it (of a softmax as well: `ends_in_softmax` sees to it)."""
    choices = ["mse", "mse", "l1", "huber", "huber:delta=0.4"]
    if ends != "sigmoid":
        choices += ["bce", "bce"]
    axes = [axis for axis in range(1, len(shape)) if shape[axis] > 1]
    plain = len(shape) == 2 or len(shape) >= 4 or layer in ("convolution", "convolution and norm")
    if plain and (len(shape) - 1 if len(shape) == 2 else 1) in axes:
        choices += ["cross-entropy"] * 4 + ["cross-entropy:ignore=1"]
    for axis in axes:
        choices += [f"cross-entropy:axis={axis}", f"cross-entropy:axis={axis - len(shape)},ignore=0"]
    return r.choice(choices)


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
                draw_input(r, large) if r.random() < 0.5 else dict(self.description["inputs"][0]))
        if r.random() < 0.15 and not self.description["inputs"][0].get("shared"):
            self.description["inputs"].append(draw_mask(r, self.description["inputs"][0]))
        self.shapes = {f"x{i}": (input_shape(self.description, given), kind_of(given))
                       for i, given in enumerate(self.description["inputs"])}

    def pick(self, kind="number"):
        """A value, most often a late one."""
        names = [name for name, (_, its_kind) in self.shapes.items() if its_kind == kind]
        if not names:
            return None
        return names[-1 - min(len(names) - 1, int(self.r.expovariate(1.0)))]

    def partner(self, name):
        """A second operand: one of the same shape where there is one."""
        shape = self.shapes[name][0]
        same = [n for n, (s, kind) in self.shapes.items() if s == shape and kind == "number"]
        return self.r.choice(same) if len(same) > 1 and self.r.random() < 0.7 else self.pick()

    def shapes_of(self, names):
        return [tuple(self.shapes[name][0]) for name in names]

    def draw_node(self, wanted=None):
        r = self.r
        names = list(CATALOGUE)
        layer = wanted or r.choices(names, [CATALOGUE[name].weight for name in names])[0]
        entry = CATALOGUE[layer]
        first = self.pick(entry.first)
        if first is None:
            return None
        of = [first] if entry.operands == 1 else [first, self.partner(first) if entry.first == "number" else self.pick(
            )]
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
        of = self.pick(CATALOGUE[node["layer"]].first)
        return None if of is None else {"layer": "again", "of": [of], "p": {"node": f"n{node['id']}"}}

    def draw_tied(self):
        tables = [n for n in self.description["nodes"] if n["layer"] in ("embedding", "linear")]
        of = self.pick()
        if not tables or of is None:
            return None
        return {"layer": "tied", "of": [of], "p": {"node": f"n{self.r.choice(tables)['id']}"}}

    def add_node(self, wanted=None):
        """`wanted`: the name of a layer."""
        for _ in range(TRIES):
            kind = self.r.random() + (1 if wanted else 0)
            node = self.draw_again() if kind < 0.06 else self.draw_tied() if kind < 0.1 else self.draw_node(wanted)
            if node is None:
                continue
            node["id"] = len(self.description["nodes"])
            self.description["nodes"].append(node)
            try:
                shape = build(self.description).shapes[f"n{node['id']}"]
            except Unsuitable:
                self.description["nodes"].pop()
                continue
            self.shapes[f"n{node['id']}"] = (shape, "number")
            export = self.description["export"]
            export["opset"] = max(export["opset"], node["p"].get("opset", 0))
            return True
        return False

    def finish(self):
        """Losses on what nobody reads."""
        r, description = self.r, self.description
        read = {name for node in description["nodes"] for name in node["of"]}
        ends = [f"n{node['id']}" for node in description["nodes"] if f"n{node['id']}" not in read]
        last = ends.pop()
        if r.random() < 0.3:
            end = description["nodes"][-1]
            description["outside"] = draw_outside(r, self.shapes[last][0], end["layer"], end["p"].get("function"))
            description["outputs"] = [last]
            others = [f"n{node['id']}" for node in description["nodes"]
                      if node["p"].get("function") != "sigmoid"]
            inferred = description["outside"].startswith("cross-entropy") and "axis" not in description["outside"]
            if r.random() < 0.3 and others and not (inferred and len(self.shapes[last][0]) == 3):
                description["outputs"].append(r.choice(others))
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
        description["export"]["fold"] = r.random() < 0.2
        description["export"]["open"] = r.random() < 0.15
        if r.random() < 0.15:
            description["export"]["mode"] = "default"
            description["export"]["literal"] = r.random() < 0.6


def draw(seed, wanted=None):
    """The description of a seed: the first draft that has a weight and can be trained. `wanted`: the name of a layer
    that shall be in it."""
    for attempt in range(1000):
        r = random.Random(f"{seed}.{attempt}")
        draft = Draft(r, seed)
        drops = wanted is None and r.random() < DROPPING
        count = r.choice([1, 2, 3, 4, 5, 6, 8, 10, 12])
        before = r.randrange(count) if wanted or drops else -1
        while len(draft.description["nodes"]) < count:
            named = (wanted or "dropout") if len(draft.description["nodes"]) == before else None
            if not draft.add_node(named):
                break
        names = [node["layer"] for node in draft.description["nodes"]]
        if not names or wanted and wanted not in names:
            continue
        draft.finish()
        try:
            network = build(draft.description)
        except Unsuitable:
            continue
        if any(True for _ in network.parameters()):
            return draft.description
    raise AssertionError(f"seed {seed}: no network")

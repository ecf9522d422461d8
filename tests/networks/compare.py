"""Whether two runs are the same up to rounding."""

import numpy

# A difference is rounding if it is this many times what PyTorch's own rounding makes, ...
FACTOR = 16
# ... or this little of the largest element, ...
FLOOR = 1e-5
# ... or this little of the largest element of all gradients: where terms cancel, nothing else is left.
CANCELLED = 2e-6
NEIGHBOURS = 10  # runs that are asked before a difference is one
# A tensor in which PyTorch's own rounding explains more than this of its largest element says nothing, ...
BLURRED = 0.05
# ... unless the element is this little of the largest of all gradients.
LITTLE = 1e-4
NORMAL = 1e-30  # below, numbers have no bits to compare


class Places:
    """Where the elements of stored weights lie among the parameters of a module.

    Exporters transpose, cut and join parameters. No two of their elements are the same number, so that each
    is found by its value.
    """

    def __init__(self, parameters, stored):
        """`parameters`, `stored`: arrays in single precision by name."""
        self.parameters = parameters
        names = list(parameters)
        self.offsets = dict(zip(names, numpy.cumsum([0] + [parameters[n].size for n in names])))
        self.size = sum(parameters[n].size for n in names)
        flat = self.join(parameters)
        order = numpy.argsort(flat, kind="stable")
        self.places, self.foreign = {}, []
        for name, value in stored.items():
            if name in parameters and parameters[name].shape == value.shape and numpy.array_equal(
                    parameters[name], value):
                self.places[name] = self.offsets[name] + numpy.arange(value.size)
                continue
            at = numpy.searchsorted(flat[order], value.reshape(-1))
            at = order[numpy.minimum(at, self.size - 1)]
            if numpy.array_equal(flat[at], value.reshape(-1)):
                self.places[name] = at
            else:
                self.foreign.append(name)

    def join(self, arrays):
        return numpy.concatenate([arrays[name].reshape(-1) for name in self.parameters])

    def uses(self):
        """How often each element of the parameters is stored."""
        count = numpy.zeros(self.size, int)
        for at in self.places.values():
            numpy.add.at(count, at, 1)
        return count

    def owner(self, position):
        return [name for name in self.parameters if self.offsets[name] <= position][-1]


def blurred(truth, neighbours, scale):
    """Whether a comparison with these would pass what is wrong. `scale`: of all tensors of this kind."""
    if truth.size == 0:
        return False
    moved = max(numpy.abs(n - truth).max() for n in neighbours)
    return FACTOR * moved > BLURRED * max(numpy.abs(truth).max(), LITTLE * scale) + NORMAL


def differs(found, truth, neighbours, scale, slack):
    """The excess of the worst element over what is allowed, or 0. `scale`: of all tensors of this kind; `slack`:
    what else is allowed, for each element."""
    if found.size == 0:
        return 0.0
    largest = numpy.abs(truth).max()
    moved = max(numpy.abs(n - truth).max() for n in neighbours)
    allowed = FACTOR * moved + FLOOR * largest + CANCELLED * scale + NORMAL + slack
    worst = (numpy.abs(found - truth) / allowed).max()
    return 0.0 if worst <= 1 else float(worst)  # not a number: differs


class Comparison:
    """A run of windlass against the reference. `complaints` says what differs, `blurred` which tensors
    rounding hides."""

    def __init__(self, reference, places, losses, tensors):
        self.reference, self.places, self.blurred = reference, places, []
        self.losses, self.tensors = losses, tensors
        self.complaints = self.compare()
        if self.complaints:
            reference.more(NEIGHBOURS)
            self.complaints = self.compare()

    def compare(self):
        truth, near = self.reference.truth, self.reference.neighbours
        complaints, self.blurred = [], []
        for step, (found, true) in enumerate(zip(self.losses, truth.losses, strict=True)):
            moved = max(abs(n.losses[step] - true) for n in near)
            if not abs(float(found) - true) <= FACTOR * moved + FLOOR * abs(true) + 1e-7:
                complaints.append(f"loss of step {step + 1}: {found}, PyTorch {true}")
        kinds = [f"gradient.{i + 1}." for i in range(len(truth.losses))] + ["weight."]
        for prefix in kinds:
            complaints += self.compare_kind(prefix, truth, near)
        return complaints

    def slack_of_weights(self):
        """Adam makes steps of a gradient that is 0 but for rounding, in either direction."""
        train = self.reference.network.description["train"]
        slack = numpy.zeros(self.places.size)
        if not train["optimizer"].startswith("adam"):
            return slack
        truth = self.reference.truth.tensors
        for step in range(1, train["steps"] + 1):
            gradient = numpy.abs(self.places.join(
                {name: truth[f"gradient.{step}.{name}"] for name in self.places.parameters}))
            slack[gradient <= CANCELLED * gradient.max(initial=0)] = 2 * train["steps"] * train["hyperparameters"]["lr"]
        return slack

    def compare_kind(self, prefix, truth, near):
        complaints = []
        flat = [self.places.join({name: run.tensors[prefix + name] for name in self.places.parameters})
                for run in (truth, *near)]
        scale = numpy.abs(flat[0]).max(initial=0)
        slacks = self.slack_of_weights() if prefix == "weight." else numpy.zeros(self.places.size)
        for name, value in self.tensors.items():
            if not name.startswith(prefix):
                continue
            own, slack = name[len(prefix):], 0
            if own in self.places.places:
                wanted = [f[self.places.places[own]] for f in flat]
                slack = slacks[self.places.places[own]]
            elif name in truth.tensors:  # running statistics
                wanted = [run.tensors[name].reshape(-1) for run in (truth, *near)]
            else:
                continue
            if blurred(wanted[0], wanted[1:], scale):
                self.blurred.append(name)
            excess = differs(value.reshape(-1), wanted[0], wanted[1:], scale, slack)
            if excess != 0:
                worst = int(numpy.argmax(numpy.nan_to_num(numpy.abs(value.reshape(-1) - wanted[0]), nan=1e30)))
                complaints.append(
                    f"{name} {list(value.shape)}: element {worst} is {value.reshape(-1)[worst]}, PyTorch "
                    f"{wanted[0][worst]}; {excess:.3g} times what rounding explains")
        return complaints

    def missing(self):
        """Weights with a gradient that were not trained, or trained as two."""
        complaints = []
        truth = self.reference.truth.tensors
        gradient = self.places.join({n: truth[f"gradient.1.{n}"] for n in self.places.parameters})
        uses = self.places.uses()
        scale = numpy.abs(gradient).max(initial=0)
        for position in numpy.nonzero((uses == 0) & (numpy.abs(gradient) > 1e-3 * scale))[0][:1]:
            complaints.append(f"weight {self.places.owner(position)} is not trained")
        for position in numpy.nonzero(uses > 1)[0][:1]:
            complaints.append(f"weight {self.places.owner(position)} is stored twice")
        return complaints

"""From a description to a module, its data and its ONNX file.

A description is plain JSON:

  seed, batch             of data and weights; samples of a step
  inputs                  [{shape, bound}]: values "x0", "x1", ...; bound > 0: integers below it, narrow: of 32 bits;
                          truth: true or false; shared: without a batch axis
  large                   whether tensors may be large
  nodes                   [{id, layer, of, p}]: values "n<id>", each a layer of the catalogue on earlier values;
                          layer "again": the module of node p["node"] once more; "tied": a linear layer of
                          its own name with the weight of node p["node"]
  losses                  [{kind, of, uncertain}]: added up, uncertain ones weighed by a weight; or
  outside                 what --loss says: of outputs[0], and of others of its shape
  outputs                 further values that the module returns
  export                  {opset, mode, fold, open, literal}; open: the batch is a name in the file; literal: windlass
                          restores nothing that the exporter folded
  train                   {optimizer, steps, hyperparameters}

Shapes follow when it is built. Weights and data of a part depend on that part and on the seed alone.
"""

import os
import warnings
import zlib

import numpy
import onnx
import onnx.numpy_helper
import torch
from torch import nn
from torch.nn import functional as F

import networks.architectures  # noqa: F401: these fill the catalogue
import networks.blocks  # noqa: F401
import networks.buffers  # noqa: F401
import networks.layers  # noqa: F401
import networks.patterns  # noqa: F401
import networks.sequences  # noqa: F401
import networks.spellings  # noqa: F401
import networks.tensors  # noqa: F401
from networks.architectures import PaddedEmbedding
from networks.catalogue import CATALOGUE, TOLD, Unsuitable
from networks.layers import ConvolutionAndNorm
from networks.ties import Ties

MOST_ELEMENTS = 6000
LARGEST = 50.0
NEWEST_OPSET = 17
LEFT_OUT = -100  # label that counts in no loss


def seed_of(description, what):
    return zlib.crc32(f"{description['seed']} {what}".encode())


def rows(x):
    return x.reshape(-1, x.shape[-1])


def huber(d):
    return torch.where(d.abs() < 1, 0.5 * d * d, d.abs() - 0.5).mean()


def one_class(v, t):
    """The logarithm of the probability of the class that is meant, of each row."""
    return F.log_softmax(rows(v), -1).gather(1, t.reshape(-1, 1)).squeeze(1)


def contrast(v):
    """Samples are their own classes."""
    v = F.normalize(v.flatten(1), dim=1)
    return F.cross_entropy(v @ v.t() / 0.5, torch.arange(v.shape[0]))


def masked(v, t):
    """The mean over what the target leaves."""
    mask = (t > 0.5).to(v.dtype)
    return ((v - t).pow(2) * mask).sum() / mask.sum().clamp(min=1)


def dice(v, t):
    p = torch.sigmoid(v).flatten(1)
    t = t.flatten(1)
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


def triplet(v, t):
    v, t = v.flatten(1), t.flatten(1)
    return F.relu((v - t).pow(2).sum(1).add(1e-3).sqrt() - (v + t).pow(2).sum(1).add(1e-3).sqrt() + 0.5).mean()


# kind: target ("same", "bits", "class", "padded", "channel" or none), function
LOSSES = {
    "mse": ("same", lambda v, t: (v - t).pow(2).mean()), "l1": ("same", lambda v, t: (v - t).abs().mean()),
    "huber": ("same", lambda v, t: huber(v - t)),
    "padded": ("padded", lambda v, t: F.cross_entropy(rows(v), t.reshape(-1))),
    "masked": ("same", masked), "padded and weighed": ("padded", lambda v, t: F.cross_entropy(
        rows(v), t.reshape(-1), weight=v.new_tensor([0.5 + i % 3 for i in range(v.shape[-1])]))),
    "ignored": ("class", lambda v, t: F.cross_entropy(rows(v), t.reshape(-1), ignore_index=1)),
    "log cosh": ("same", lambda v, t: torch.log(torch.exp(v - t) + torch.exp(t - v)).mean()),
    "bits": ("bits", F.binary_cross_entropy_with_logits),
    "cross-entropy": ("class", lambda v, t: F.cross_entropy(rows(v), t.reshape(-1))),
    "smooth": ("class", lambda v, t: 0.9 * F.cross_entropy(rows(v), t.reshape(-1))
               - 0.1 * F.log_softmax(rows(v), -1).mean()),
    "likelihood": ("class", lambda v, t: F.nll_loss(F.log_softmax(rows(v), -1), t.reshape(-1))),
    "channels": ("channel", F.cross_entropy), "squares": (None, lambda v: v.pow(2).mean()),
    "divergence": ("same", lambda v, t: F.kl_div(F.log_softmax(v, -1), F.softmax(t, -1), reduction="batchmean")),
    "by sample": ("same", lambda v, t: ((v - t) ** 2).flatten(1).sum(1).mean()),
    "sum": ("same", lambda v, t: (v * t).sum() * 0.1),
    "focal": ("class", lambda v, t: (-(1 - one_class(v, t).exp()).pow(2) * one_class(v, t)).mean()),
    "weighed classes": ("class", lambda v, t: F.cross_entropy(
        rows(v), t.reshape(-1), weight=v.new_tensor([0.5 + i % 3 for i in range(v.shape[-1])]))),
    "weighed bits": ("bits", lambda v, t: F.binary_cross_entropy_with_logits(v, t, pos_weight=v.new_tensor(2.0))),
    "hinge": ("bits", lambda v, t: F.relu(1 - (2 * t - 1) * v).mean()), "soft margin": (
        "bits", lambda v, t: torch.log(1 + torch.exp(-(2 * t - 1) * v)).mean()), "dice": ("bits", dice),
    "poisson": ("bits", lambda v, t: (torch.exp(torch.tanh(v)) - t * torch.tanh(v)).mean()),
    "contrast": (None, contrast), "triplet": ("same", triplet), "likeness": (
        "same", lambda v, t: 1 - F.cosine_similarity(v, t, dim=-1).mean()),
    "mixture": ("same", lambda v, t: -torch.logsumexp(F.log_softmax(v, -1) - 0.5 * (v - t) ** 2, -1).mean()),
    "of none": ("same", lambda v, t: (v - t).pow(2).mean(0).sum() * 0.2),
    "sum of classes": ("class", lambda v, t: F.cross_entropy(rows(v), t.reshape(-1), reduction="sum")),
}


def target_of(kind, shape):
    """Shape and bound of the target of a loss on a value; a bound of 0: numbers, of -1: zeros and ones."""
    needs = LOSSES[kind][0]
    if needs in ("class", "channel", "padded"):
        axis = 1 if needs == "channel" else len(shape) - 1
        if shape[axis] < 2:
            raise Unsuitable("one class")
        return [s for i, s in enumerate(shape) if i != axis], shape[axis]
    return list(shape), -1 if needs == "bits" else 0


def outside_of(text, shape):
    """The loss that --loss means for a value of a shape: function, shape and bound of the target."""
    kind, _, parameters = text.partition(":")
    given = dict(part.split("=") for part in parameters.split(",") if part)
    if kind == "cross-entropy":
        axis = int(given.get("axis", 1 if len(shape) > 2 else -1)) % len(shape)
        if shape[axis] < 2:
            raise Unsuitable("one class")
        ignored = int(given.get("ignore", -100))
        return (lambda v, t: F.cross_entropy(v.movedim(axis, 1), t, ignore_index=ignored),
                [s for i, s in enumerate(shape) if i != axis], shape[axis])
    function = {"mse": F.mse_loss, "l1": F.l1_loss, "bce": F.binary_cross_entropy_with_logits,
                "huber": lambda v, t: F.huber_loss(v, t, delta=float(given.get("delta", 1)))}[kind]
    return function, list(shape), -1 if kind == "bce" else 0


def ends_in_softmax(text, value):
    """Whether --loss would go before the last function: without an axis, any softmax but one over samples says it."""
    kind, _, parameters = text.partition(":")
    given = dict(part.split("=") for part in parameters.split(",") if part)
    axes = [int(given["axis"])] if "axis" in given else range(1, value.dim())
    return kind == "cross-entropy" and bool((value >= 0).all()) and any(
        torch.allclose(value.sum(axis), torch.ones(())) for axis in axes)


def draw_data(description, name, shape, bound, narrow=False, truth=False):
    """Of all steps, [steps, ...]."""
    generator = torch.Generator().manual_seed(seed_of(description, name))
    shape = [description["train"]["steps"], *shape]
    if truth:
        return torch.randint(2, shape, generator=generator) > 0
    if narrow:
        return torch.randint(bound, shape, generator=generator, dtype=torch.int32)
    if bound > 0:
        return torch.randint(bound, shape, generator=generator)
    if bound < 0:
        return torch.randint(2, shape, generator=generator).float()
    return torch.randn(shape, generator=generator)


def pad(labels):
    """Of the labels [steps, ...] of each step, all but some at the end are left out."""
    flat = labels.flatten(1)
    flat[:, :flat.shape[1] * 2 // 3] = LEFT_OUT


def input_shape(description, given):
    return list(given["shape"]) if given.get("shared") else [description["batch"], *given["shape"]]


class Network(nn.Module):
    """`data` has a tensor for each input and label, with a row for each step."""

    def __init__(self, description):
        super().__init__()
        self.description = description
        self.functions = {}
        self.data, self.inputs, self.shapes = {}, [], {}
        values = {}
        for i, given in enumerate(description["inputs"]):
            values[f"x{i}"] = self.add_input(f"x{i}", input_shape(description, given), given["bound"],
                                             given.get("narrow", False), given.get("truth", False))
        inputs = list(values.values())
        for node in description["nodes"]:
            values[f"n{node['id']}"] = self.add_node(node, values)
        self.variances = nn.ParameterDict()
        for i, loss in enumerate(description["losses"]):
            if loss.get("uncertain"):
                self.variances[f"v{i}"] = nn.Parameter(torch.tensor(0.1 + 0.0371 * i))
            if LOSSES[loss["kind"]][0] is not None:
                shape, bound = target_of(loss["kind"], values[loss["of"]].shape)
                self.add_input(f"t{i}", shape, bound)
                if LOSSES[loss["kind"]][0] == "padded":
                    pad(self.data[f"t{i}"])
        if description["outside"]:
            first, *others = (values[name] for name in description["outputs"])
            if any(torch.equal(first, other) for other in others):
                raise Unsuitable("one output twice, which counts once or not by how it was made")
            if any(torch.equal(output, given) for output in (first, *others) for given in inputs):
                raise Unsuitable("an output that is an input, which windlass has no loss for")
            if any(ends_in_softmax(description["outside"], value) for value in (first, *others)
                   if value.shape == first.shape):
                raise Unsuitable("a softmax over classes before a loss that makes one, which windlass leaves out")
            self.outside, shape, bound = outside_of(
                description["outside"], values[description["outputs"][0]].shape)
            name = "labels" if bound > 0 else "target"
            self.data[name] = draw_data(description, name, shape, bound)
        for part in self.modules():
            if hasattr(part, "reset_running_stats"):
                part.reset_running_stats()
        self.train()

    def add_input(self, name, shape, bound, narrow=False, truth=False):
        self.data[name] = draw_data(self.description, name, shape, bound, narrow, truth)
        self.inputs.append(name)
        return self.data[name][0]

    def add_node(self, node, values):
        operands = [values[name] for name in node["of"]]
        name = f"n{node['id']}"
        if node["layer"] == "again":
            made = self.functions[node["p"]["node"]]
            if not isinstance(made, nn.Module):
                raise Unsuitable("nothing to share")
            self.functions[name] = made
        elif node["layer"] == "tied":
            made = nn.Linear(1, 1, bias=False)
            made.weight = self.functions[node["p"]["node"]].weight
            self.functions[name] = made
            self.add_module(name, made)
        else:
            torch.manual_seed(seed_of(self.description, name))
            made = CATALOGUE[node["layer"]].build(node["p"], [tuple(v.shape) for v in operands])
            self.functions[name] = made
            if isinstance(made, nn.Module):
                if isinstance(made, Ties):
                    if self.stands_at_kinks():
                        raise Unsuitable("the same quarters twice")
                    make_unique(made)
                elif isinstance(made, ConvolutionAndNorm):
                    make_unique(made.convolution)
                else:
                    make_unique(made)
                if isinstance(made, (Ties, PaddedEmbedding)):
                    made.settle()
                self.add_module(name, made)
        with torch.no_grad():
            value = made(*operands)
        if not value.is_floating_point() or not 2 <= value.dim() <= 5:
            raise Unsuitable("no tensor to go on from")
        most = MOST_ELEMENTS * (10 if self.description["large"] else 1)
        if not 0 < value.numel() <= most or not value.abs().max() < LARGEST:
            raise Unsuitable("too large")
        self.shapes[name] = list(value.shape)
        return value

    def forward(self, *inputs):
        values = dict(zip(self.inputs, inputs, strict=True))
        for node in self.description["nodes"]:
            operands = [values[name] for name in node["of"]]
            values[f"n{node['id']}"] = self.functions[f"n{node['id']}"](*operands)
        outputs, total = tuple(values[name] for name in self.description["outputs"]), None
        for i, loss in enumerate(self.description["losses"]):
            targets = [values[f"t{i}"]] if f"t{i}" in values else []
            term = LOSSES[loss["kind"]][1](values[loss["of"]], *targets)
            if loss.get("uncertain"):
                term = term * torch.exp(-self.variances[f"v{i}"]) + self.variances[f"v{i}"]
            total = term if total is None else total + term
        return outputs if total is None else (total, *outputs)

    def stands_at_kinks(self):
        return any(isinstance(part, Ties) for part in self.modules())

    def frozen(self):
        """What windlass has to be told not to train."""
        names = [name for name, _ in [*self.named_parameters(), *self.named_buffers()]]
        return [name for name in names if name.split(".")[-1].startswith(TOLD)]

    def loss(self, step, dtype=torch.float32):
        batch = {name: rows[step].to(dtype) if rows.is_floating_point() else rows[step]
                 for name, rows in self.data.items()}
        found = self(*(batch[name] for name in self.inputs))
        if not self.description["outside"]:
            return found[0]
        labels = batch["labels" if "labels" in batch else "target"]
        total = self.outside(found[0], labels)
        for value in found[1:]:
            if value.shape == found[0].shape:
                total = total + self.outside(value, labels)
        return total

    def __deepcopy__(self, memo):
        made = Network(self.description)
        made.load_state_dict(self.state_dict())
        for mine, part in zip(self.modules(), made.modules(), strict=True):
            part.training = mine.training
        return made


def make_unique(module):
    """No two weights of a network are the same number, so that what was stored elsewhere is found again."""
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() < 2:
                weight.add_(torch.randn_like(weight) * 0.1)
            weight.add_(torch.randn_like(weight) * 1e-3)


def build(description):
    """Throws Unsuitable."""
    try:
        return Network(description)
    except (RuntimeError, ValueError, IndexError, AssertionError, KeyError, TypeError,
            AttributeError) as error:
        raise Unsuitable(str(error)) from error


def export(network, path):
    """With the newest opset where PyTorch lacks something in the wanted one. Throws Unsuitable if it cannot.

    In a process of its own: an exporter that fails once leaves itself broken.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, export_here(network, path).encode()[:1000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        reason = answer.read()
    os.waitpid(child, 0)
    if reason != EXPORTED:
        raise Unsuitable(f"export: {reason}")


EXPORTED = "exported"


def export_here(network, path):
    """What went wrong, or EXPORTED."""
    wanted = network.description["export"]
    mode = torch.onnx.TrainingMode
    names = ["loss"] * bool(network.description["losses"]) + network.description["outputs"]
    inputs = tuple(network.data[name][0] for name in network.inputs)
    open_axes = {name: {0: "batch"} for name, value in zip(network.inputs, inputs, strict=True)
                 if wanted.get("open") and value.dim() > 0 and value.shape[0] == network.description["batch"]}
    for opset in (wanted["opset"], NEWEST_OPSET):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.onnx.export(
                    network, inputs, str(path), input_names=network.inputs, output_names=names,
                    training=mode.TRAINING if wanted["mode"] == "train" else mode.EVAL,
                    do_constant_folding=wanted["fold"], opset_version=opset, dynamic_axes=open_axes)
            return EXPORTED
        except Exception as error:  # of any kind: the exporter's own limits
            reason = str(error)
    return reason


def stored_values(path):
    """Initializers of an ONNX file by name, under all their names."""
    graph = onnx.load(str(path)).graph
    values = {t.name: numpy.array(onnx.numpy_helper.to_array(t)) for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Identity" and node.input[0] in values:
            values[node.output[0]] = values[node.input[0]]
    return values


def operators(path):
    """The operators of an ONNX file, and the stored names that batch norms read."""
    found, norms = set(), set()

    def walk(graph):
        for node in graph.node:
            found.add(node.op_type)
            if node.op_type == "BatchNormalization":
                norms.update(node.input)
            for attribute in node.attribute:
                if attribute.g.node:
                    walk(attribute.g)
    walk(onnx.load(str(path)).graph)
    return found, norms

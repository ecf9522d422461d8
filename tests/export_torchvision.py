#!/usr/bin/python3
"""Exports torchvision's classification models to ONNX, with the facts an importer must reproduce.

Weights are random: only shapes and structure matter. Beside each NAME.onnx lies NAME.json:

  model, mode, opset, folding, input_shape   what was exported, and how
  parameters             elements of all trainable parameters of the module
  parameters_reached     elements of those the outputs depend on in this mode (an auxiliary head is
                         not reached in eval mode)
  parameters_named       elements of those that kept their name as an initializer of the file
  parameters_absorbed    elements of biases of convolutions directly before a batch normalisation:
                         in eval mode the exporter merges the two, and no initializer of the file
                         tells whether the convolution had a bias of its own
  tensors, tensors_reached, tensors_named     the same, counted in tensors
  buffers                elements of the floating-point buffers, such as running statistics
  macs                   multiply-adds of one forward pass of the batch
  macs_by_op             the same, by ATen operator

Multiply-adds are counted at ATen's dispatcher while PyTorch runs the model, so they owe nothing to
the ONNX file.
"""

import argparse
import collections
import contextlib
import json
import math
import pathlib
import sys
import time
import warnings

import onnx
import torch
from torch.nn import functional as F
from torch.onnx import symbolic_helper, symbolic_opset9
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision import models

# One member of each family, the cheapest that shows all of the family's structure.
FAMILIES = [
    "alexnet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
    "inception_v3", "googlenet", "densenet121", "mobilenet_v2", "mobilenet_v3_small",
    "efficientnet_b0", "efficientnet_v2_s", "regnet_x_400mf", "regnet_y_400mf", "convnext_tiny",
    "vit_b_32", "swin_t", "swin_v2_t", "maxvit_t", "shufflenet_v2_x0_5", "squeezenet1_1",
    "mnasnet0_5",
]

# Models above this size go to a folder of their own: the exporter writes each of their weights to a
# separate file, named after the parameter.
INLINE_LIMIT_BYTES = 2**31


def model_names():
    return models.list_models(module=models)


def build(name):
    # These two would otherwise draw every weight from scipy's truncated normal, for minutes.
    quick = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, **quick)


def input_shape(name, batch):
    """The crop size of the model's ImageNet recipe; 224 where only fine-tuned weights exist."""
    for weights in models.get_model_weights(name):
        if weights.name == "IMAGENET1K_V1":
            size = weights.transforms().crop_size[0]
            return (batch, 3, size, size)
    return (batch, 3, 224, 224)


def bernoulli(g, tensor, p=None, generator=None, out=None):
    """Stochastic depth, as the exporter of PyTorch 2 writes it."""
    if p is None or symbolic_helper._is_none(p):
        p = tensor
    draw = g.op("RandomUniformLike", tensor, high_f=1.0, low_f=0.0, dtype_i=onnx.TensorProto.FLOAT)
    return g.op("Cast", g.op("Less", draw, p), to_i=onnx.TensorProto.FLOAT)


def zero(g, tensor):
    """Swin v2 clears the key bias in place."""
    return symbolic_opset9.zeros_like(g, tensor)


def teach_exporter():
    """Operators of torchvision's models that the exporter of PyTorch 1 lacks."""
    if int(torch.__version__.split(".")[0]) < 2:
        torch.onnx.register_custom_op_symbolic("aten::bernoulli", bernoulli, 9)
        torch.onnx.register_custom_op_symbolic("aten::zero", zero, 9)


class MacCounter(TorchDispatchMode):
    """Multiply-adds of every convolution and matrix product that ATen is asked for."""

    def __init__(self):
        super().__init__()
        self.by_op = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        op = func.overloadpacket
        aten = torch.ops.aten
        if op is aten.convolution:
            weight, transposed = args[1], args[6]
            positions = args[0] if transposed else result
            self.by_op["convolution"] += positions.numel() * math.prod(weight.shape[1:])
        elif op in (aten.mm, aten.bmm, aten.addmm, aten.baddbmm):
            left = args[1] if op in (aten.addmm, aten.baddbmm) else args[0]
            self.by_op[op.__name__] += result.numel() * left.shape[-1]
        elif op in (aten.mv, aten.dot):
            self.by_op[op.__name__] += args[0].numel()
        elif op.__name__.startswith(("_native_multi_head", "_transformer_encoder")):
            raise RuntimeError(f"{op.__name__} hides its matrix products: run with gradients on")
        return result


def leaf_tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [t for v in values if v is not None for t in leaf_tensors(v)]


def reached_parameters(outputs):
    """The leaves of the autograd graph below the outputs."""
    stack = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen, leaves = set(stack), set()
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            leaves.add(node.variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return leaves


@contextlib.contextmanager
def absorbed_biases(module):
    """While the module runs, collects biases of convolutions whose output is normalised next."""
    convolved, biases = [], []

    def after_convolution(layer, _, output):
        convolved.append((output, layer.bias))

    def before_norm(_, inputs):
        biases.extend(b for out, b in convolved if out is inputs[0] and b is not None)

    hooks = [m.register_forward_hook(after_convolution) for m in module.modules()
             if isinstance(m, torch.nn.modules.conv._ConvNd)]
    hooks += [m.register_forward_pre_hook(before_norm) for m in module.modules()
              if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    try:
        yield biases
    finally:
        for hook in hooks:
            hook.remove()


def describe(module, example):
    """Everything in the JSON that needs no ONNX file."""
    counter = MacCounter()
    with absorbed_biases(module) as absorbed, counter:
        outputs = leaf_tensors(module(*example))
    trainable = [p for p in module.parameters() if p.requires_grad]
    reached = reached_parameters(outputs)
    return {
        "parameters": sum(p.numel() for p in trainable),
        "parameters_reached": sum(p.numel() for p in trainable if p in reached),
        "parameters_absorbed": sum(b.numel() for b in absorbed),
        "tensors": len(trainable),
        "tensors_reached": sum(p in reached for p in trainable),
        "buffers": sum(b.numel() for b in module.buffers() if b.is_floating_point()),
        "macs": sum(counter.by_op.values()),
        "macs_by_op": dict(sorted(counter.by_op.items())),
        "outputs": [list(t.shape) for t in outputs],
    }


def named_parameters(module, path):
    file = onnx.load(str(path), load_external_data=False)
    names = {i.name for i in file.graph.initializer}
    kept = [p for n, p in module.named_parameters() if p.requires_grad and n in names]
    return {"parameters_named": sum(p.numel() for p in kept), "tensors_named": len(kept)}


def attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    """Attention as PyTorch 1 computes it, and exports it at every opset."""
    scores = query * (query.shape[-1] ** -0.5 if scale is None else scale) @ key.transpose(-2, -1)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, dim=-1)
    return (F.dropout(weights, dropout_p) if dropout_p > 0 else weights) @ value


def unflatten(tensor, axis, sizes):
    axis %= tensor.dim()
    return tensor.reshape(*tensor.shape[:axis], *sizes, *tensor.shape[axis + 1:])


@contextlib.contextmanager
def written_out(opset):
    """Functions of PyTorch 2 that its exporter knows from some opset on, as PyTorch 1 computes them; below that."""
    spellings = []
    if hasattr(F, "scaled_dot_product_attention"):
        spellings += [(F, "scaled_dot_product_attention", attend)] * (opset < 14)
        spellings += [(torch.Tensor, "unflatten", unflatten)] * (opset < 13)
    own = [getattr(owner, name) for owner, name, _ in spellings]
    for owner, name, function in spellings:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, _), function in zip(spellings, own):
            setattr(owner, name, function)


def write_onnx(module, example, path, opset, folding=True, **options):
    """Exports the module in the mode it is in."""
    kind = torch.onnx.TrainingMode.TRAINING if module.training else torch.onnx.TrainingMode.EVAL
    # The exporter writes warnings about tracing to both streams.
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr), written_out(opset):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, example, str(path), training=kind, opset_version=opset,
                          do_constant_folding=folding, **options)


def export(module, example, path, mode, opset, folding, **options):
    """Writes the file and returns its facts."""
    module.train(mode == "train")
    facts = {
        "mode": mode,
        "opset": opset,
        "folding": folding,
        "input_shape": list(example[0].shape),
        **describe(module, example),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_onnx(module, example, path, opset, folding, **options)
    facts.update(named_parameters(module, path))
    return facts


# What the exporter raises where it cannot export.
EXPORT_ERRORS = (RuntimeError, torch.onnx.errors.OnnxExporterError)


def cause_of(error):
    """The first sentence of the exporter's message."""
    return str(error).splitlines()[0].split(". ")[0]


def find_models(text):
    """Names of models for 'families', 'all' or a list with commas; ValueError for unknown ones."""
    names = {"all": model_names(), "families": FAMILIES}.get(text) or text.split(",")
    unknown = sorted(set(names) - set(model_names()))
    if unknown:
        raise ValueError(f"torchvision has no classification model {', '.join(unknown)}")
    return names


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder for the files")
    parser.add_argument("--models", default="families",
                        help="comma-separated names, 'families' (one of each) or 'all'")
    parser.add_argument("--mode", default="both", choices=["train", "eval", "both"])
    parser.add_argument("--opset", type=int, default=13)
    parser.add_argument("--folding", default="on", choices=["on", "off"],
                        help="the exporter's constant folding")
    parser.add_argument("--batch", type=int, default=2,
                        help="batch normalisation cannot train on a batch of 1")
    parser.add_argument("--max-parameters", type=float, default=math.inf,
                        help="skip models with more, e.g. 4e8")
    parser.add_argument("--keep", action="store_true", help="skip what is already exported")
    options = parser.parse_args()
    try:
        options.models = find_models(options.models)
    except ValueError as error:
        parser.error(str(error))
    return options


def main():
    options = parse_arguments()
    teach_exporter()
    failures = 0
    folding = options.folding == "on"
    modes = ["train", "eval"] if options.mode == "both" else [options.mode]
    for name in options.models:
        stems = {m: f"{name}-{m}-{options.opset}{'' if folding else '-unfolded'}" for m in modes}
        if options.keep:
            done = [m for m in modes if list(options.out.glob(f"**/{stems[m]}.json"))]
            stems = {m: s for m, s in stems.items() if m not in done}
        if not stems:
            continue
        torch.manual_seed(0)
        module = build(name)
        size = sum(p.numel() for p in module.parameters())
        if size > options.max_parameters:
            print(f"{name}: skipped, {size:,} parameters", flush=True)
            continue
        example = (torch.randn(input_shape(name, options.batch)),)
        for mode, stem in stems.items():
            start = time.monotonic()
            folder = options.out / stem if 4 * size >= INLINE_LIMIT_BYTES else options.out
            path = folder / f"{stem}.onnx"
            try:
                facts = export(module, example, path, mode, options.opset, folding)
            except EXPORT_ERRORS as error:
                failures += 1
                print(f"{stem}: PyTorch cannot export it: {cause_of(error)}", flush=True)
                continue
            path.with_suffix(".json").write_text(
                json.dumps({"model": name, **facts}, indent=1) + "\n")
            print(f"{stem}: {facts['parameters']:,} parameters, {facts['macs']:,} multiply-adds, "
                  f"{time.monotonic() - start:.1f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

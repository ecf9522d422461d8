#!/usr/bin/python3
"""Imports exported torchvision models and compares what windlass says of them with PyTorch.

One model of each family in both modes at opset 13, and shrunken transformers at other opsets, go
through `windlass inspect --json`. Parameters must equal the elements of the trainable parameters
that the outputs depend on, exactly; forward multiply-adds must agree with a count at ATen's
dispatcher within 0.1 %.

A ninth of them, unless WINDLASS_THOROUGH is set (make test-slow). By hand, for everything torchvision
has: --models all --max-parameters 1.5e8
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

try:
    import export_torchvision as exporting
    import torch
    from torchvision import models
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

# The smallest member of each family.
MODELS = [
    "alexnet", "vgg11", "vgg11_bn", "resnet18", "resnext50_32x4d", "wide_resnet50_2",
    "inception_v3", "googlenet", "densenet121", "mobilenet_v2", "mobilenet_v3_small",
    "efficientnet_b0", "regnet_x_400mf", "regnet_y_400mf", "convnext_tiny", "vit_b_32", "swin_t",
    "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5",
]

# At other opsets the exporter writes other operators; small models show them as well as large ones.
OTHER_OPSETS = [
    ("mobilenet_v3_small", 9), ("shufflenet_v2_x0_5", 9), ("squeezenet1_1", 9),
    ("tiny_vit", 9), ("tiny_convnext", 9),
    ("mobilenet_v3_small", 11), ("mnasnet0_5", 11), ("tiny_vit", 11), ("tiny_swin", 11),
    ("tiny_convnext", 11),
    ("mobilenet_v3_small", 17), ("shufflenet_v2_x0_5", 17), ("tiny_vit", 17), ("tiny_swin", 17),
    ("tiny_convnext", 17),
]

# Without batch normalisation a batch of 1 will do in training mode too.
NO_BATCH_NORM = ("alexnet", "vgg11", "convnext", "vit", "swin", "tiny")

# What PyTorch 1 cannot export whatever it is taught: pooling 14 places to 4 in an auxiliary head.
NOT_EXPORTABLE = {("googlenet", "train")}


def build_tiny(name):
    """A transformer with the structure of its family, in a fraction of the size; and its input."""
    if name == "tiny_vit":
        return models.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2,
                                        hidden_dim=16, mlp_dim=32, num_classes=10), 32
    if name == "tiny_swin":
        return models.SwinTransformer(patch_size=[4, 4], embed_dim=8, depths=[2, 2],
                                      num_heads=[2, 4], window_size=[7, 7], num_classes=10,
                                      stochastic_depth_prob=0.1), 56
    setting = models.convnext.CNBlockConfig
    blocks = [setting(8, 16, 1), setting(16, None, 1)]
    return models.ConvNeXt(blocks, stochastic_depth_prob=0.1, num_classes=10), 64


def build(name, mode):
    torch.manual_seed(0)
    alone = mode == "eval" or name.startswith(NO_BATCH_NORM) and not name.endswith("_bn")
    batch = 1 if alone else 2
    if name.startswith("tiny_"):
        module, size = build_tiny(name)
        return module, (batch, 3, size, size)
    return exporting.build(name), exporting.input_shape(name, batch)


def inspect(program, path):
    result = subprocess.run([program, "inspect", path, "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        raise AssertionError(f"inspect fails with {result.returncode}: {result.stderr.strip()}")
    return json.loads(result.stdout)


def check(program, folder, name, mode, opset, limit):
    """Raises AssertionError where windlass and PyTorch differ; returns a line for people."""
    module, shape = build(name, mode)
    size = sum(p.numel() for p in module.parameters())
    if size > limit:
        return f"skipped, {size:,} parameters"
    module.train(mode == "train")
    example = (torch.randn(shape),)
    path = folder / f"{name}-{mode}-{opset}.onnx"
    try:
        exporting.write_onnx(module, example, path, opset)
        facts = exporting.describe(module, example)
        found = inspect(program, path)
    finally:
        path.unlink(missing_ok=True)
    expected = facts["parameters_reached"]
    if found["parameters"] != expected:
        raise AssertionError(f"{found['parameters']:,} parameters, PyTorch has {expected:,}")
    macs = found["forward_multiply_adds"]
    if abs(macs - facts["macs"]) > 1e-3 * facts["macs"]:
        raise AssertionError(f"{macs:,.0f} multiply-adds, PyTorch counts {facts['macs']:,}")
    return f"{expected:,} parameters, {macs:,.0f} multiply-adds"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", help="comma-separated names, 'families' or 'all'; default: a "
                        "choice")
    parser.add_argument("--mode", default="both", choices=["train", "eval", "both"])
    parser.add_argument("--opset", type=int, default=13, help="with --models")
    parser.add_argument("--max-parameters", type=float, default=math.inf, help="skip larger models")
    options = parser.parse_args()
    try:
        names = exporting.find_models(options.models) if options.models else None
    except ValueError as error:
        parser.error(str(error))
    if names is None:
        options.cases = [(name, 13) for name in MODELS] + OTHER_OPSETS
        if "WINDLASS_THOROUGH" not in os.environ:
            options.cases = options.cases[::9]
    else:
        options.cases = [(name, options.opset) for name in names]
    return options


def main():
    options = parse_arguments()
    program = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
    modes = ["train", "eval"] if options.mode == "both" else [options.mode]
    exporting.teach_exporter()
    failures = []
    with tempfile.TemporaryDirectory(prefix="windlass-") as folder:
        for name, opset in options.cases:
            for mode in modes:
                if (name, mode) in NOT_EXPORTABLE:
                    continue
                start = time.monotonic()
                try:
                    result = check(program, pathlib.Path(folder), name, mode, opset,
                                   options.max_parameters)
                except AssertionError as error:
                    result = f"FAILED: {error}"
                    failures.append(f"{name}-{mode}-{opset}")
                except exporting.EXPORT_ERRORS as error:
                    result = f"FAILED: PyTorch cannot export it: {exporting.cause_of(error)}"
                    failures.append(f"{name}-{mode}-{opset}")
                print(f"{name}-{mode}-{opset}: {result} ({time.monotonic() - start:.1f} s)",
                      flush=True)
    if failures:
        print(f"{len(failures)} failed: {', '.join(failures)}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Networks as people bring them train as in PyTorch: several integer inputs, buffers, mixtures of
experts, losses that are attached by a flag.

Each is exported, trained for five steps with momentum by PyTorch and by windlass on the same
batches, under three memory plans; losses must agree to 1e-4, the plans with each other to the last
bit, and what is no parameter must not be trained. Arguments choose networks by the beginning of
their names; without any it is every sixth one, all with WINDLASS_THOROUGH (make test-slow).
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import warnings

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

import brought_models
from brought_models import BATCH, STEPS

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
TOLERANCE = 1e-4
TYPES = {torch.float32: "F32", torch.int64: "I64"}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, tensor in tensors.items():
        values = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def train_by_torch(case, module, inputs):
    update = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        labels = case.label[1][rows] if case.label else None
        loss = case.loss(module(*(v[rows] for v in inputs.values())), labels)
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


def run(arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)


def check(name, case, folder):
    torch.manual_seed(5)
    inputs, module = case.inputs(), case.make().train()
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(v[:BATCH] for v in inputs.values()), str(path),
                          input_names=list(inputs), output_names=["output"],
                          training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=case.folding, opset_version=16)
    write_safetensors(folder / "data.safetensors", {**inputs, **dict([case.label] if case.label else [])})
    parameters = sum(p.numel() for p in module.parameters())
    shown = run(["inspect", path, *case.flags, "--json"])
    if shown.returncode != 0:
        return [f"inspect: {shown.stderr[-1500:]}"]
    facts, failures = json.loads(shown.stdout), []
    if facts["parameters"] != parameters:
        failures.append(f"{facts['parameters']} parameters, PyTorch has {parameters}: "
                        f"{[t for t in facts['stored_tensors']]} {facts['notes']}")
    expected = train_by_torch(case, module, inputs)
    first = None
    for strategy in ("single", "recompute-all", "offload-all", "single:micro=2"):
        done = run(["train", path, "--strategy", strategy, "--data", folder / "data.safetensors",
                    "--no-shuffle", "--steps", STEPS, "--json", "--optimizer", "momentum",
                    "--lr", 0.1, "--momentum", 0.9, *case.flags])
        # Where micro-batches would change the mathematics, they are refused.
        if done.returncode == 1 and "cannot be cut" in done.stderr and not case.cuts:
            continue
        if done.returncode != 0:
            failures.append(f"{strategy}: {done.stderr[-1500:]}")
            continue
        losses = [json.loads(line)["loss"] for line in done.stdout.splitlines()[:STEPS]]
        if any(abs(a - b) > TOLERANCE * max(1e-3, abs(b)) for a, b in zip(losses, expected)):
            failures.append(f"{strategy}: losses {losses}, PyTorch {expected}")
        first = first or losses
        if losses != first and "micro" not in strategy:
            failures.append(f"{strategy}: losses {losses} differ from those of single {first}")
    random = run(["train", path, "--strategy", "single", "--steps", 2, "--json", *case.flags])
    if random.returncode != 0:
        failures.append(f"synthetic data: {random.stderr[-1500:]}")
    return failures


def main():
    count, failed = 0, 0
    every = 1 if sys.argv[1:] or "WINDLASS_THOROUGH" in os.environ else 6
    for name, case in list(brought_models.cases().items())[::every]:
        if sys.argv[1:] and not name.startswith(tuple(sys.argv[1:])):
            continue
        with tempfile.TemporaryDirectory() as folder:
            failures = check(name, case, pathlib.Path(folder))
        count, failed = count + 1, failed + (1 if failures else 0)
        print(f"{name}: {'ok' if not failures else 'FAILED'}", flush=True)
        for failure in failures:
            print("  " + failure)
    print(f"{count} networks, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Whether `windlass train` computes what PyTorch does, and stays where it said it would.

Models are exported to ONNX with their weights and trained for ten steps on the same batches by
PyTorch and by windlass, under every memory action. Losses must agree to 1e-4; where rounding alone
moves PyTorch further (a batch norm over a handful of values), to a few times what PyTorch in fp32
and PyTorch in fp64 differ by up to that step. The measured peak must be below the limit, and the
predicted one at most 2 % above the measured one and never below. Saved weights must agree at the
end as well where rounding does not matter so much.

Arguments choose models by the beginning of their names.
"""

import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import torch
    import torchvision
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
STEPS = 10
TOLERANCE = 1e-4
PEAK_TOLERANCE = 0.02


class Gpt(nn.Module):
    """A GPT-2 of four layers, written out as its reference implementation is."""

    def __init__(self, vocabulary=211, width=64, heads=4, layers=4, positions=24):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(nn.ModuleDict({
                "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                "project": nn.Linear(width, width), "norm2": nn.LayerNorm(width),
                "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.tril(torch.ones(positions, positions)) == 0)

    def forward(self, ids):
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["norm1"](x)).split(x.shape[-1], dim=2)
            q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            scores = scores.masked_fill(self.mask[:length, :length], float("-inf"))
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
            x = x + layer["project"](y)
            x = x + layer["down"](nn.functional.gelu(layer["up"](layer["norm2"](x))))
        logits = self.norm(x) @ self.tokens.weight.T
        return logits.reshape(-1, logits.shape[-1])


class LstmModel(nn.Module):
    def __init__(self, vocabulary=173, width=48):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids):
        logits = self.out(self.lstm(self.tokens(ids))[0])
        return logits.reshape(-1, logits.shape[-1])


def vit():
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128,
        num_classes=10)


def vgg():
    """VGG-11 for small images: the exporter cannot enlarge by adaptive pooling."""
    module = torchvision.models.vgg11(num_classes=10)
    module.avgpool = nn.AdaptiveAvgPool2d(1)
    module.classifier[0] = nn.Linear(512, 256)
    module.classifier[3] = nn.Linear(256, 256)
    module.classifier[6] = nn.Linear(256, 10)
    return module


def images(size, batch, classes=10):
    return lambda: {"input": torch.randn(STEPS * batch, 3, size, size),
                    "labels": torch.randint(classes, (STEPS * batch,))}


def tokens(batch, length, vocabulary):
    return lambda: {"input": torch.randint(vocabulary, (STEPS * batch, length)),
                    "labels": torch.randint(vocabulary, (STEPS * batch, length))}


models = torchvision.models
# name: module, batch, data
CASES = {
    "resnet18": (lambda: models.resnet18(num_classes=10), 4, images(64, 4)),
    "vgg11": (vgg, 2, images(32, 2)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(num_classes=10), 4, images(64, 4)),
    "vit": (vit, 4, images(32, 4)),
    "gpt": (Gpt, 4, tokens(4, 24, 211)),
    "lstm": (LstmModel, 4, tokens(4, 16, 173)),
}
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-4, weight_decay=0.01),
}
FLAGS = {
    "momentum": ["--lr", "0.01", "--momentum", "0.9", "--weight-decay", "1e-4"],
    "adamw": ["--lr", "3e-4", "--weight-decay", "0.01"],
}


def write_safetensors(path, tensors):
    """The format in a few lines: a length, a JSON header, bytes."""
    names = {torch.float32: "F32", torch.int64: "I64"}
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(data[8 + size + begin:8 + size + end], numpy.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def make(name):
    build, batch, data = CASES[name]
    torch.manual_seed(1)
    module = build().train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # the two draw other numbers
    return module, batch, data()


def train_by_torch(name, optimizer, dtype=torch.float32):
    module, batch, data = make(name)
    module = module.to(dtype)
    if data["input"].is_floating_point():
        data["input"] = data["input"].to(dtype)
    update = OPTIMIZERS[optimizer](module.parameters())
    losses = []
    for step in range(STEPS):
        rows = slice(step * batch, (step + 1) * batch)
        loss = nn.functional.cross_entropy(module(data["input"][rows]),
                                           data["labels"][rows].reshape(-1))
        update.zero_grad()
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses, {k: v.detach().numpy() for k, v in module.state_dict().items()}


def export(name, folder):
    module, batch, data = make(name)
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (data["input"][:batch],), str(path), input_names=["input"],
                          output_names=["output"], training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, opset_version=14)
    write_safetensors(folder / f"{name}.safetensors", data)
    return path


def run(arguments, expected=0):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == expected, f"{arguments}: {done.returncode}\n{done.stderr[-2000:]}"
    return done


def strategies(name, onnx, folder, common, few):
    """Arguments of `train` for each memory action, random mixtures and planned limits among them."""
    chosen = ["single", "recompute-all", "offload-all", "single:host-update=on",
              "single:host-weights=on,host-update=on"]
    for strategy in chosen[::2] if few else chosen:
        yield strategy, [onnx, "--strategy", strategy]
    if few:
        return
    base = folder / "base.json"
    run(["simulate", onnx, *common, "--on", "local", "--strategy", "single", "--save", base])
    for seed in range(2):
        plan = json.loads(base.read_text())
        generator = random.Random(seed)
        saved = []
        for entry in plan["strategy"]["saved"]:
            for i in range(entry["count"]):
                saved.append({"first": entry["first"] + i, "count": 1,
                              "action": generator.choice(["keep", "recompute", "offload"])})
        plan["strategy"]["saved"] = saved
        path = folder / f"mixture{seed}.json"
        path.write_text(json.dumps(plan))
        yield f"mixture {seed}", [path]
    peak = json.loads(run(["plan", onnx, *common, "--on", "local", "--memory", "8GiB", "--json"])
                      .stdout)["devices"][0]["peak_bytes"]
    half = folder / "half.json"
    run(["plan", onnx, *common, "--on", "local", "--memory", peak // 2, "-o", half])
    yield "half", [half]
    answer = json.loads(run(["plan", onnx, *common, "--on", "local", "--memory", 4096, "--json"],
                            expected=2).stdout)
    least = answer["minimum_limit_bytes"]
    run(["plan", onnx, *common, "--on", "local", "--memory", least - 1], expected=2)
    path = folder / "least.json"
    run(["plan", onnx, *common, "--on", "local", "--memory", least, "-o", path])
    yield "least", [path]
    # A plan with room to spare may run below the limit it was made for, but not on nothing.
    run(["train", path, "--memory", 4096, "--steps", 1], expected=2)


def check(name, optimizer, strategy, lines, losses, bounds, failures):
    steps = [json.loads(line) for line in lines]
    last = steps.pop()
    for step, expected, bound in zip(steps, losses, bounds, strict=True):
        error = abs(step["loss"] - expected) / max(1e-12, abs(expected))
        if not error < bound:
            failures.append(f"{name}, {optimizer}, {strategy}: step {step['step']}: loss "
                            f"{step['loss']}, PyTorch {expected}")
            break
    predicted = last["predicted"]["devices"][0]["peak_bytes"]
    measured = last["measured"]["devices"][0]["peak_bytes"]
    limit = last["measured"]["devices"][0]["limit_bytes"]
    if measured > limit or not measured <= predicted <= measured * (1 + PEAK_TOLERANCE):
        failures.append(f"{name}, {optimizer}, {strategy}: peak predicted {predicted}, measured "
                        f"{measured}, limit {limit}")
    host = [last[side]["host"]["peak_bytes"] for side in ("predicted", "measured")]
    if not host[1] <= host[0] <= host[1] * (1 + PEAK_TOLERANCE):
        failures.append(f"{name}, {optimizer}, {strategy}: host peak {host}")
    return [step["loss"] for step in steps]


def main():
    chosen = [n for n in CASES if not sys.argv[1:] or n.startswith(tuple(sys.argv[1:]))]
    failures, runs = [], 0
    for name in chosen:
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            onnx = export(name, folder)
            for optimizer in OPTIMIZERS:
                losses, weights = train_by_torch(name, optimizer)
                wide, _ = train_by_torch(name, optimizer, torch.float64)
                bounds, moved = [], 0
                for a, b in zip(losses, wide):
                    moved = max(moved, abs(a - b) / abs(b))
                    bounds.append(max(TOLERANCE, 10 * moved))
                common = ["--optimizer", optimizer]
                first = None
                for strategy, arguments in strategies(name, onnx, folder, common,
                                                      few=optimizer != "momentum"):
                    if str(arguments[0]).endswith(".onnx"):
                        arguments = arguments + common
                    saved = folder / "trained.safetensors"
                    lines = run(["train", *arguments, "--data", folder / f"{name}.safetensors",
                                 "--no-shuffle", "--steps", STEPS, "--json", "--save", saved,
                                 *FLAGS[optimizer]]).stdout.splitlines()
                    found = check(name, optimizer, strategy, lines, losses, bounds, failures)
                    runs += 1
                    # Whatever becomes of activations and weights, the numbers are the same.
                    micro = len(lines) and strategy in ("half", "least")
                    if first is None:
                        first = found
                    elif not micro and found != first:
                        failures.append(f"{name}, {optimizer}, {strategy}: losses differ from those "
                                        f"of \"single\": {found} {first}")
                    for key, value in read_safetensors(saved).items():
                        # Exporting in training mode moves the running statistics of the module.
                        if key not in weights or moved > 1e-5 or "running" in key:
                            continue
                        # The mean: Adam blows up gradients that are zero but for rounding, as
                        # those of the biases of attention's keys are.
                        error = numpy.abs(value - weights[key]).mean()
                        scale = numpy.abs(weights[key]).max() + 1e-3
                        if not error / scale < 2e-3:
                            failures.append(f"{name}, {optimizer}, {strategy}: {key} is off by "
                                            f"{error} of {scale}")
                            break
                print(f"{name} {optimizer}: {runs} runs, {len(failures)} failures", flush=True)
    for failure in failures:
        print(failure)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

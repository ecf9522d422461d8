#!/usr/bin/python3
"""How fast `windlass train` is beside eager PyTorch, on the same cores with as many threads.

Each model is trained by PyTorch, by windlass without a limit, and by windlass at half of the peak
it has without one. The three take turns, a few steps at a time, so that whatever else the machine
does hits them alike; of each the fastest step counts, the first ones of every turn left out. The
bars: at least 0.95 times the speed of PyTorch without a limit, and at least 0.75 times the speed
without a limit at half the memory.

Runs with the system's python3-torch, from the root of the repository. Both sides have as many
OpenMP threads as OpenBLAS threads: left alone, Debian's PyTorch has one of the former and one of
the latter for each core.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="of gpt2, resnet50, bert; default: all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        help="default: as many as cores")
    parser.add_argument("--steps", type=int, default=4, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    return parser.parse_args()


OPTIONS = arguments() if __name__ == "__main__" else None
if OPTIONS:
    # Read when the library is loaded.
    os.environ["OPENBLAS_NUM_THREADS"] = str(OPTIONS.threads)

try:
    import torch
    import torchvision
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
from training_parity_test import Gpt, write_safetensors  # noqa: E402

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
EAGER_BAR, HALF_BAR = 0.95, 0.75
SETTLING = 1  # steps at the beginning of a turn that do not count


class Bert(nn.Module):
    """An encoder with the sizes of BERT-base, and a classifier of the first token."""

    def __init__(self, vocabulary=30522, width=768, heads=12, layers=12, positions=128, classes=16):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(nn.ModuleDict({
                "query": nn.Linear(width, width), "key": nn.Linear(width, width),
                "value": nn.Linear(width, width), "project": nn.Linear(width, width),
                "norm1": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width),
                "down": nn.Linear(4 * width, width), "norm2": nn.LayerNorm(width)}))
        self.pool = nn.Linear(width, width)
        self.out = nn.Linear(width, classes)

    def forward(self, ids):
        batch, length = ids.shape
        x = self.norm(self.tokens(ids) + self.positions(torch.arange(length)))
        for layer in self.layers:
            q, k, v = (layer[name](x).view(batch, length, self.heads, -1).transpose(1, 2)
                       for name in ("query", "key", "value"))
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
            x = layer["norm1"](x + layer["project"](y))
            x = layer["norm2"](x + layer["down"](nn.functional.gelu(layer["up"](x))))
        return self.out(torch.tanh(self.pool(x[:, 0])))


# name: module, samples, the shape of one, the values it has (None: real numbers), the shape of its
# labels, classes
CASES = {
    "gpt2": (lambda: Gpt(5000, 512, 8, 4, 128), 4, (128,), 5000, (128,), 5000),
    "resnet50": (lambda: torchvision.models.resnet50(num_classes=100), 4, (3, 96, 96), None, (),
                 100),
    "bert": (Bert, 2, (128,), 30522, (), 16),
}


class Eager:
    def __init__(self, module, data, batch):
        self.module, self.data, self.batch = module, data, batch
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01)

    def run(self, steps):
        times = []
        for step in range(steps):
            begin = time.perf_counter()
            rows = slice(step * self.batch, (step + 1) * self.batch)
            self.optimizer.zero_grad(set_to_none=True)
            output = self.module(self.data["input"][rows])
            loss = nn.functional.cross_entropy(output, self.data["labels"][rows].reshape(-1))
            loss.backward()
            self.optimizer.step()
            loss.item()
            times.append(time.perf_counter() - begin)
        return times


def windlass(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{PROGRAM} {arguments}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


class Planned:
    def __init__(self, plan, data, threads):
        self.arguments = ["train", plan, "--data", data, "--no-shuffle", "--lr", "1e-4",
                          "--weight-decay", "0.01", "--threads", threads, "--json"]
        self.last = None

    def run(self, steps):
        lines = [json.loads(line)
                 for line in windlass(*self.arguments, "--steps", steps).splitlines()]
        self.last = lines.pop()
        return [line["step_time_s"] for line in lines]


def plan(model, limit, threads, path):
    """Writes a plan and returns the peak it has."""
    windlass("plan", model, "--optimizer", "adamw", "--on", "local", "--threads", threads,
             "--memory", limit, "--fresh", "-o", path)
    return json.loads(windlass("simulate", path, "--json"))["devices"][0]["peak_bytes"]


def by_kind(last):
    """Predicted and measured milliseconds of each kind of task."""
    predicted, measured = last["predicted"]["tasks"], last["measured"]["tasks"]
    kinds = [f"{kind[:-2]} {predicted.get(kind, 0) * 1e3:.0f}/{measured.get(kind, 0) * 1e3:.0f}"
             for kind in predicted | measured]
    return ", ".join(kinds)


def measure(name, options, folder):
    build, batch, shape, values, label_shape, classes = CASES[name]
    torch.manual_seed(1)
    module = build().train()
    count = batch * (options.steps + SETTLING)
    inputs = torch.randn(count, *shape) if values is None else torch.randint(values,
                                                                             (count, *shape))
    data = {"input": inputs, "labels": torch.randint(classes, (count, *label_shape))}
    model, file = folder / f"{name}.onnx", folder / f"{name}.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (inputs[:batch],), str(model), input_names=["input"],
                          output_names=["output"], training=torch.onnx.TrainingMode.TRAINING,
                          do_constant_folding=False, opset_version=14)
    write_safetensors(file, data)

    free, half = folder / "free.json", folder / "half.json"
    peak = plan(model, "95%", options.threads, free)
    plan(model, peak // 2, options.threads, half)
    ways = {"eager": Eager(module, data, batch), "windlass": Planned(free, file, options.threads),
            "half": Planned(half, file, options.threads)}
    times = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, runner in ways.items():
            times[way] += runner.run(options.steps + SETTLING)[SETTLING:]
    best = {way: min(found) for way, found in times.items()}
    middle = {way: statistics.median(found) for way, found in times.items()}

    print(f"{name}: batch {batch}, {options.threads} threads, keep-all peak "
          f"{peak / 2**20:.0f} MiB, load {os.getloadavg()[0]:.1f}")
    passed = True
    for way, base, bar in (("windlass", "eager", EAGER_BAR), ("half", "windlass", HALF_BAR)):
        speed = best[base] / best[way]
        passed &= speed >= bar
        print(f"  {way:8} {best[way] * 1e3:8.1f} ms, {base:8} {best[base] * 1e3:8.1f} ms: "
              f"{speed:.2f}x {'' if speed >= bar else 'MISSED '}(bar {bar}, of medians "
              f"{middle[base] / middle[way]:.2f}x)")
    for way in ("windlass", "half"):
        last = ways[way].last
        print(f"  {way:8} predicted/measured ms: step "
              f"{last['predicted']['step_time_s'] * 1e3:.0f}/{best[way] * 1e3:.0f}, "
              f"{by_kind(last)}", flush=True)
    return passed


def main():
    torch.set_num_threads(OPTIONS.threads)
    passed = True
    for name in OPTIONS.models or CASES:
        with tempfile.TemporaryDirectory() as folder:
            passed &= measure(name, OPTIONS, pathlib.Path(folder))
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Training models far larger than all device memory together: packs of layers beside demand paging.

A GPT, a BERT and a deep CNN in the manner of VGG, whose weights, gradients and optimizer state are
at least eight times the memory of all devices together, are trained on two and on four CPU devices:
by the plan that windlass finds (packs of layers), and by data and pipeline parallel training on
devices that page on demand, least recently used first. Same limits, same links, same batch, one
after the other in one run. Links are as slow beside the devices as PCIe 3 is beside a GTX 1080 Ti:
11.3 TFLOP/s of fp32 (NVIDIA's data sheet) to 12.3 GB/s (measured on x16 links; Harmony's own scripts
have 11.5 GiB/s).

Printed for each case: step times predicted and measured, how many times faster packs are, and how
many times the weights (for packs: with their gradients) cross the links in a step. Nothing here is
simulated but what is called predicted.

Runs with the system's python3-torch (which exports the CNN), from the root of the repository.
"""

import argparse
import json
import pathlib
import tempfile
import warnings

from measured import links, off, run, train

OVER = 8  # times the memory of all devices
MICRO_BATCHES = 32
TRANSFORMER = "layers=48,hidden=128,heads=4,vocab=256"
CASES = {
    "gpt": (f"gpt2:{TRANSFORMER}", ["--seq", "32"]),
    "bert": (f"bert:{TRANSFORMER}", ["--seq", "32"]),
    "vgg": (None, []),
}


def export_cnn(path, batch, layers=64, width=128, size=8):
    import torch
    from torch import nn

    torch.manual_seed(0)
    parts, channels = [], 3
    for _ in range(layers):
        parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        channels = width
    module = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, torch.randn(batch, 3, size, size), str(path),
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=14)


def swapped(listing):
    """Bytes of weights and of their gradients that are copied between devices and host in a step."""
    tasks = json.loads(listing)
    weights = gradients = 0
    for task in tasks["tasks"]:
        if task["kind"] not in ("swap-in", "swap-out"):
            continue
        source = next(use for use in task["uses"] if use["as"] == "from")
        kind = tasks["buffers"][source["buffer"]]["kind"]
        weights += task["traffic"]["bytes"] if kind == "weight" else 0
        gradients += task["traffic"]["bytes"] if kind == "weight gradient" else 0
    return weights, gradients


def measure(name, devices, batch, steps, paging, folder):
    model, more = CASES[name]
    if model is None:
        model = folder / f"{name}-{batch}.onnx"
        export_cnn(model, batch)
    else:
        more = [*more, "--batch", batch]
    facts = json.loads(run("inspect", model, *more, "--json"))
    weights = facts["weight_bytes"]
    state = weights + facts["gradient_bytes"] + facts["optimizer_bytes"]
    memory = state // OVER // devices
    link = links(devices)
    where = ["--on", "local", "--devices", devices, "--memory", memory, "--link-bandwidth", f"{link}B/s"]
    print(f"\n{name} on {devices} devices of {memory / 2**20:.2f} MiB: weights {weights / 2**20:.1f} MiB, with gradients "
          f"and state {state / 2**20:.1f} MiB, {state / memory / devices:.1f} times all devices; links {link / 1e6:.0f} MB/s",
          flush=True)
    plan = folder / f"{name}-{devices}.json"
    one = ["--threads", 1]
    run("plan", model, *more, *where, *one, "--search", "harmony", "-o", plan)
    rows = [("packs", [plan], steps, run("simulate", plan, "--tasks", "--json"))]
    for label, strategy in (("paging, data parallel", f"lru:micro-batches={MICRO_BATCHES}"),
                            ("paging, pipeline", f"lru:pp={devices},micro-batches={MICRO_BATCHES}")) if paging else ():
        named = [model, *more, *where, "--strategy", strategy]
        rows.append((label, [*named, *one], 1, run("simulate", *named, "--tasks", "--json")))
    print(f"  {'':24}{'predicted':>11}{'measured':>11}{'off':>9}{'weights moved':>15}{'packs are':>20}")
    base = None
    for label, arguments, count, listing in rows:
        predicted, measured = train(arguments, count)
        moved = sum(swapped(listing)) if base is None else swapped(listing)[0]
        text = f"  {label:24}{predicted:9.3f} s{measured:9.3f} s{off(predicted, measured):>9}{moved / weights:13.1f} W"
        if base is None:
            base = measured, moved
        else:
            text += f"  {measured / base[0]:5.2f}x, {moved / base[1]:5.1f}x less"
        print(text, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--devices", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3, help="of packs; paging runs one")
    parser.add_argument("--packs-only", action="store_true", help="without paging, which takes most of the time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.models or CASES:
            for devices in options.devices:
                measure(name, devices, options.batch, options.steps, not options.packs_only, pathlib.Path(temporary))


if __name__ == "__main__":
    main()

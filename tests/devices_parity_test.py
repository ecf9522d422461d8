#!/usr/bin/python3
"""Whether windlass on several devices trains what PyTorch trains on one.

Models are exported to ONNX with their weights and trained for ten steps on the same batches by
PyTorch and by the program, on two and on four devices under strategies of different kinds. Losses
must agree as those of one device do (training_parity_test.py), and no device may go beyond its
predicted peak. A strategy that does not suit a network (a batch norm that cannot be cut) is refused
with a word; of each network most must run.

Arguments choose models by the beginning of their names. Without any, a sample of the models is
trained, each with a third of the strategies, so that each strategy is tried by one; with WINDLASS_THOROUGH
(make test-slow) the six of the first parity test with all.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch

    from training_parity_test import PROGRAM, Check, export
    from trained_models import CASES, STEPS
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SAMPLE = ["gpt", "lstm", "sloped"]
THOROUGH = ["resnet18", "vgg11", "mobilenet_v2", "vit", "gpt", "lstm"]
STRATEGIES = {
    2: ["data-parallel", "zero:stage=3", "megatron:tp=2", "gpipe:micro-batches=2", "harmony:mode=pp,packs=6", "lru"],
    4: ["data-parallel:recompute=full", "zero:stage=2,offload=on", "megatron:tp=2", "1f1b:micro-batches=2",
        "harmony:mode=dp,packs=6", "lru:pp=4"],
}
LEAST = 0.5  # of the strategies, that must run
REFUSED = 1


def train(check, model, data, devices, strategy):
    done = subprocess.run(
        [PROGRAM, "train", str(model), "--on", "local", "--devices", str(devices), "--strategy", strategy, "--data",
         str(data), "--no-shuffle", "--steps", str(STEPS), "--json", "--optimizer", "momentum", "--lr", "0.01",
         "--momentum", "0.9", "--weight-decay", "1e-4"], capture_output=True, text=True)
    what = f"{strategy} on {devices} devices"
    if done.returncode == REFUSED and done.stderr.strip():
        print(f"  {what}: {done.stderr.strip()[:200]}")
        return 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode != 0 or len(lines) != STEPS + 1:
        check.fail(what, f"exit code {done.returncode}, {len(lines)} lines\n{done.stderr[-2000:]}")
        return 0
    check.compare_losses(what, [line["loss"] for line in lines[:-1]])
    predicted, measured = (lines[-1][side]["devices"] for side in ("predicted", "measured"))
    for before, after in zip(predicted, measured, strict=True):
        if after["peak_bytes"] > before["peak_bytes"]:
            check.fail(what, f"peak predicted {before}, measured {after}")
    return 1


def main():
    torch.set_num_threads(1)
    names = CASES if sys.argv[1:] else THOROUGH if "WINDLASS_THOROUGH" in os.environ else SAMPLE
    chosen = [n for n in names if not sys.argv[1:] or n.startswith(tuple(sys.argv[1:]))]
    failures, runs = [], 0
    whole = bool(sys.argv[1:]) or "WINDLASS_THOROUGH" in os.environ
    for number, name in enumerate(chosen):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            model, data = export(name, folder)
            check = Check(name, "momentum", reordered=True)
            for devices, strategies in STRATEGIES.items():
                if not whole:
                    strategies = strategies[number::len(chosen)]
                ran = sum(train(check, model, data, devices, strategy) for strategy in strategies)
                if ran < LEAST * len(strategies):
                    check.fail(f"{devices} devices", f"only {ran} of {len(strategies)} strategies ran")
                runs += ran
            failures += check.failures
            print(f"{name}: {runs} runs, {len(failures)} failures", flush=True)
    for failure in failures:
        print(failure)
    sys.exit(1 if failures or not runs else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Whole networks, as people bring them, train as in PyTorch.

Each is exported and trained for three steps on the same batches by PyTorch and by windlass: under every memory action,
in the least memory and in half of it, in micro-batches where these change nothing, and by the program on two devices.
Losses, gradients and weights must be PyTorch's up to rounding, as those of generated networks (network_fuzz.py); what
PyTorch does not train must not be trained, and the plans must agree to the last bit. SGD with momentum and AdamW.

Arguments choose networks by the beginning of their names. Without any, every fifth is trained, by one of the two in
turn; all of them by both with WINDLASS_THOROUGH (make test-slow).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from torch import nn

    import whole_buffers  # noqa: F401: these fill the list
    import whole_images  # noqa: F401
    import whole_sequences  # noqa: F401
    from networks.build import make_unique, outside_of
    from networks.catalogue import Unsuitable
    from networks.service import Service
    from networks.trial import Trial
    from whole_networks import BATCH, NETWORKS, STEPS
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
TOOL = os.environ.get("WINDLASS_RUN_TRAINING", "build/release/bin/windlass_run_training")
PLANS = ["single", "recompute-all", "offload-all", "single:host-weights=on,host-update=on", "least", "half", "random:1",
         "random:2", "single:micro-batches=2"]
LEAST = 6  # plans that do not cut the batch, which changes the mathematics of some networks
OPTIMIZERS = {"momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
              "adamw": {"lr": 1e-3, "epsilon": 1e-4, "weight_decay": 0.1}}


class Brought(nn.Module):
    """A network of the list, with what a trial asks of a generated one."""

    def __init__(self, whole, description):
        super().__init__()
        torch.manual_seed(7)
        self.whole, self.description = whole, description
        self.body = whole.make()
        make_unique(self.body)
        self.data = {name: draw().unflatten(0, (STEPS, BATCH)) for name, draw in whole.data.items()}
        self.inputs = list(self.data)
        if whole.outside:
            self.inputs = self.inputs[:-1]
        self.train()

    def forward(self, *inputs):
        return self.body(*inputs)

    def loss(self, step, dtype=torch.float32):
        rows = {name: v[step].to(dtype) if v.is_floating_point() else v[step] for name, v in self.data.items()}
        found = self.body(*(rows[name] for name in self.inputs))
        if not self.whole.outside:
            return found
        return outside_of(self.whole.outside, found.shape)[0](found, list(rows.values())[-1])

    def __deepcopy__(self, memo):
        made = Brought(self.whole, self.description)
        made.load_state_dict(self.state_dict())
        return made

    def frozen(self):
        return [f"body.{name}" for name in self.whole.told]

    def stands_at_kinks(self):
        return False


class WholeTrial(Trial):
    """Keeps the file and the data in `folder`."""

    def __init__(self, service, whole, optimizer, folder):
        description = {"seed": 1, "batch": BATCH, "nodes": [], "outside": whole.outside, "outputs": ["out"] * bool(
            whole.outside), "losses": [None] * (not whole.outside),
            "export": {"opset": whole.opset, "mode": "train", "fold": False},
            "train": {"optimizer": optimizer, "steps": STEPS, "hyperparameters": OPTIMIZERS[optimizer]}}
        super().__init__(service, description, PLANS)
        self.whole, self.folder, self.network, self.reference = whole, folder, None, None

    def make(self):
        self.network = Brought(self.whole, self.description)
        return self.network

    def judge(self, network, reference, results):
        self.reference = reference
        return super().judge(network, reference, results)

    def run(self):
        return self.run_in(self.folder)


def devices(trial, folder):
    """By the program on two devices, which share the samples: failures."""
    h = trial.description["train"]["hyperparameters"]
    flags = ["--lr", h["lr"], "--weight-decay", h["weight_decay"], "--momentum", h.get("momentum", 0.9)]
    if trial.whole.outside:
        flags += ["--loss", trial.whole.outside]
    if trial.whole.told:
        flags += ["--freeze", *trial.network.frozen()]
    done = subprocess.run([str(word) for word in [
        PROGRAM, "train", folder / "net.onnx", "--on", "local", "--devices", 2, "--strategy", "data-parallel", "--data",
        folder / "net.safetensors", "--no-shuffle", "--steps", STEPS, "--json", "--optimizer",
        trial.description["train"]["optimizer"], "--threads", 1, *flags]], capture_output=True, text=True)
    if done.returncode == 1 and done.stderr.strip():
        return [], done.stderr.strip()
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(lines) != STEPS + 1:
        return [f"two devices: exit code {done.returncode}: {done.stderr[-1500:]}"], ""
    truth, near = trial.reference.truth.losses, trial.reference.neighbours
    for step, (line, true) in enumerate(zip(lines, truth)):
        allowed = 16 * max(abs(n.losses[step] - true) for n in near) + 1e-5 * abs(true) + 1e-6
        if not abs(line["loss"] - true) <= allowed:
            return [f"two devices: loss of step {step + 1}: {line['loss']}, PyTorch {true}"], ""
    return [], ""


def check(service, name, optimizer, through_program):
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        trial = WholeTrial(service, NETWORKS[name], optimizer, folder)
        verdict = trial.run()
        failures = [f"{f.strategy}: {f.kind}: {f.text}" for f in verdict.failures]
        refusals = list(verdict.refusals)
        if through_program and verdict.runs:
            found, refusal = devices(trial, folder)
            failures += found
            refusals += [f"two devices: {refusal}"] if refusal else []
        return verdict, failures, refusals


def main():
    torch.set_num_threads(1)
    every = 1 if sys.argv[1:] or "WINDLASS_THOROUGH" in os.environ else 5
    chosen = [name for name in list(NETWORKS)[::every] if not sys.argv[1:] or name.startswith(tuple(sys.argv[1:]))]
    service, failed, runs = Service(TOOL), 0, 0
    for number, name in enumerate(chosen):
        for optimizer in list(OPTIMIZERS) if every == 1 else [list(OPTIMIZERS)[number % len(OPTIMIZERS)]]:
            try:
                verdict, failures, refusals = check(service, name, optimizer, optimizer == "momentum")
            except Unsuitable as reason:
                failed += 1
                print(f"{name}: FAILED: {reason}", flush=True)
                break
            runs += verdict.runs
            if verdict.runs < LEAST or any("cannot be cut" not in message for message in refusals):
                failures.append(f"{verdict.runs} of {len(PLANS)} plans ran")
            failed += bool(failures)
            print(f"{name}, {optimizer}: {verdict.runs} runs, {'FAILED' if failures else 'ok'}"
                  f"{' ' + str(sorted(verdict.remarks)) if verdict.remarks else ''}", flush=True)
            for text in failures:
                print(f"  {text}", flush=True)
            for text in sorted(set(refusals)):
                print(f"  refused: {text}", flush=True)
    service.close()
    print(f"{len(chosen)} networks, {runs} runs, {failed} failed")
    sys.exit(1 if failed or not runs else 0)


if __name__ == "__main__":
    main()

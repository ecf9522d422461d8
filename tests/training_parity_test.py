#!/usr/bin/python3
"""Whether windlass trains what PyTorch trains, and stays where it said it would.

Models are exported to ONNX with their weights and trained for ten steps on the same batches by
PyTorch and by windlass, under nine memory plans: every memory action, mixtures, half of the memory
and the least there is; each twice, with the same bits; gradients clipped as well. Losses must agree to 1e-4; where rounding
alone moves PyTorch further (a batch norm over a handful of values), to a few times what PyTorch in
fp32 and in fp64 differ by up to that step. The measured peak must be below the limit, and the
predicted one never below; where nothing overlaps at most 2 % above. Weights must agree at the end as
well where rounding does not matter so much. The program itself plans and trains in half of the
memory and in the least, which is the same each time it is asked for.

Arguments choose models by the beginning of their names. Without any, a sample of the models is
trained, each by one of the optimizers, and the program itself runs one of them. With WINDLASS_THOROUGH
(make test-slow) it is all models by all optimizers, and the program runs three.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import torch

    from networks.service import Service, read_safetensors, write_safetensors
    from trained_models import CASES, STEPS, loss_of
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
TOOL = os.environ.get("WINDLASS_RUN_TRAINING", "build/release/bin/windlass_run_training")
TOLERANCE = 1e-4
PEAK_TOLERANCE = 0.02

# One of each kind: skips, attention, two inputs, experts, batch norms.
SAMPLE = ["unet", "gpt", "seq2seq", "mixture", "sloped"]
# Planned and trained by the program too, the first always; those that are named by arguments all are.
THROUGH_THE_PROGRAM = ["unet", "gpt", "seq2seq"]
THOROUGH = "WINDLASS_THOROUGH" in os.environ
PLANS = ["single", "recompute-all", "offload-all", "single:host-update=on",
         "single:host-weights=on,host-update=on", "random:1", "random:4", "half", "least"]
OPTIMIZERS = {
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4),
                 {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}, PLANS),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=3e-4, weight_decay=0.01),
              {"lr": 3e-4, "weight_decay": 0.01}, PLANS[::4]),
    # Gradients are clipped, wherever they are updated with.
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), {"lr": 0.1, "clip": 0.05}, PLANS[:1] + PLANS[3:7]),
}


def make(name):
    build, batch, data = CASES[name]
    torch.manual_seed(1)
    module = build().train()
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0  # the two draw other numbers
    inputs, labels = data()
    return module, batch, inputs, labels


def train_by_torch(name, optimizer, dtype=torch.float32, noise=0):
    """`noise`: a seed; the weights begin with their last bits changed."""
    module, batch, inputs, labels = make(name)
    module = module.to(dtype)
    if noise:
        torch.manual_seed(noise)
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(1 + 1e-6 * torch.randn_like(weight))
    inputs = [v.to(dtype) if v.is_floating_point() else v for v in inputs.values()]
    update = OPTIMIZERS[optimizer][0](module.parameters())
    losses = []
    for step in range(STEPS):
        rows = slice(step * batch, (step + 1) * batch)
        loss = loss_of(module(*(v[rows] for v in inputs)), labels[rows])
        update.zero_grad()
        loss.backward()
        clip = OPTIMIZERS[optimizer][1].get("clip")
        if clip is not None:
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
            assert norm > clip, f"{name}: a norm of {norm} is not clipped"
        update.step()
        losses.append(loss.item())
    return losses, {k: v.detach().numpy() for k, v in module.named_parameters()}


def export(name, folder):
    module, batch, inputs, labels = make(name)
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(v[:batch] for v in inputs.values()), str(path),
                          input_names=list(inputs), output_names=["output"],
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
                          opset_version=14)
    data = folder / f"{name}.safetensors"
    write_safetensors(data, {k: v.numpy() for k, v in {**inputs, "labels": labels}.items()})
    return path, data


class Check:
    """Compares runs of one model and optimizer; `failures` are sentences."""

    def __init__(self, name, optimizer, reordered=False):
        """`reordered`: sums are rounded in another order than PyTorch's, which some networks make much of."""
        self.label = f"{name}, {optimizer}"
        self.losses, self.weights = train_by_torch(name, optimizer)
        others = [train_by_torch(name, optimizer, torch.float64)[0]]
        if reordered:
            others += [train_by_torch(name, optimizer, noise=seed)[0] for seed in (1, 2, 3)]
        self.bounds, self.moved, self.failures = [], 0, []
        for step, a in enumerate(self.losses):
            self.moved = max(self.moved, *(abs(a - b[step]) / abs(b[step]) for b in others))
            self.bounds.append(max(TOLERANCE, 10 * self.moved))

    def fail(self, plan, text):
        self.failures.append(f"{self.label}, {plan}: {text}")

    def compare_losses(self, plan, found):
        for step, (loss, expected, bound) in enumerate(zip(found, self.losses, self.bounds,
                                                           strict=True), 1):
            if not abs(loss - expected) / max(1e-12, abs(expected)) < bound:
                return self.fail(plan, f"step {step}: loss {loss}, PyTorch {expected}")

    def compare_weights(self, plan, found):
        for key, value in found.items():
            if key not in self.weights or self.moved > 1e-5:
                continue
            # The mean: Adam blows up gradients that are zero but for rounding, as those of the
            # biases of attention's keys are.
            error = numpy.abs(value - self.weights[key]).mean()
            scale = numpy.abs(self.weights[key]).max() + 1e-3
            if not error / scale < 2e-3:
                return self.fail(plan, f"{key} is off by {error} of {scale}")

    def compare_peaks(self, plan, what, predicted, measured, limit, overlaps=False):
        """What overlaps in the simulation need not when a thread is late."""
        near = overlaps or predicted <= measured * (1 + PEAK_TOLERANCE)
        if not near or not measured <= predicted <= limit:
            self.fail(plan, f"peak of the {what} predicted {predicted}, measured {measured}, "
                      f"limit {limit}")

    def run_tool(self, service, folder, model, data, optimizer):
        _, hyperparameters, plans = OPTIMIZERS[optimizer]
        out = folder / optimizer
        out.mkdir()
        results = service.run({"model": str(model), "data": str(data), "out": str(out),
                               "steps": STEPS, "optimizer": optimizer, "strategies": plans,
                               "hyperparameters": hyperparameters})
        first = None
        for plan, result in results.items():
            if "error" in result:
                self.fail(plan, result["message"])
                continue
            for complaint in result["complaints"][:3]:
                self.fail(plan, complaint)
            if result["repeats"]:
                self.fail(plan, f"{result['repeats']} differs from run to run")
            self.compare_losses(plan, result["losses"])
            overlaps = result["lanes"] > 1
            self.compare_peaks(plan, "device", result["predicted_peak"], result["measured_peak"],
                               result["limit"], overlaps)
            self.compare_peaks(plan, "host", result["predicted_host_peak"],
                               result["measured_host_peak"], 1 << 40, overlaps)
            tensors = read_safetensors(result["file"])
            self.compare_weights(plan, {k.removeprefix("weight."): v for k, v in tensors.items()
                                        if k.startswith("weight.")})
            # Whatever becomes of activations and weights, the numbers are the same.
            if result["micro_batches"] == 1:
                first = first or result["losses"]
                if result["losses"] != first:
                    self.fail(plan, f"losses differ from \"single\": {result['losses']} {first}")
        return len(results)

    def run_program(self, folder, model, data):
        """Plans and trains in half of the memory and in the least, by the program."""
        common = ["--optimizer", "momentum"]

        def run(arguments, expected=0):
            done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
            if done.returncode != expected:
                self.fail("program", f"{arguments}: {done.returncode}\n{done.stderr[-2000:]}")
            return done.stdout

        def plan(memory, *more, expected=0):
            return run(["plan", model, *common, "--on", "local", "--memory", memory, *more],
                       expected)
        peak = json.loads(plan("8GiB", "--json"))["devices"][0]["peak_bytes"]
        least, again = (json.loads(plan(4096, "--json", expected=2))["minimum_limit_bytes"]
                        for _ in range(2))
        if least != again:
            self.fail("program", f"the least limit is {least} and then {again}")
        plan(least * 3 // 4, expected=2)
        for what, limit in (("half", peak // 2), ("least", least)):
            path = folder / f"{what}.json"
            plan(limit, "-o", path)
            lines = run(["train", path, "--data", data, "--no-shuffle", "--steps", STEPS, "--json",
                         "--paranoid", "--lr", "0.01", "--momentum", "0.9", "--weight-decay",
                         "1e-4"]).splitlines()
            if len(lines) != STEPS + 1:
                continue
            self.compare_losses(f"program, {what}", [json.loads(x)["loss"] for x in lines[:-1]])
            last = json.loads(lines[-1])
            peaks = [last[side]["devices"][0]["peak_bytes"] for side in ("predicted", "measured")]
            self.compare_peaks(f"program, {what}", "device", *peaks, limit, overlaps=True)
        # A plan with room to spare may run below the limit it was made for, but not on nothing.
        run(["train", folder / "least.json", "--memory", 4096, "--steps", 1], expected=2)
        return 2


def main():
    torch.set_num_threads(1)
    whole = bool(sys.argv[1:]) or THOROUGH
    names = CASES if whole else SAMPLE
    run_by_program = CASES if sys.argv[1:] else THROUGH_THE_PROGRAM if THOROUGH else THROUGH_THE_PROGRAM[:1]
    chosen = [n for n in names if not sys.argv[1:] or n.startswith(tuple(sys.argv[1:]))]
    failures, runs = [], 0
    service = Service(TOOL)
    for number, name in enumerate(chosen):
        # Of a sample each has one of them, by turns.
        optimizers = list(OPTIMIZERS) if whole else [list(OPTIMIZERS)[number % len(OPTIMIZERS)]]
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            model, data = export(name, folder)
            for optimizer in optimizers:
                check = Check(name, optimizer)
                runs += check.run_tool(service, folder, model, data, optimizer)
                if optimizer == "momentum" and name in run_by_program:
                    runs += check.run_program(folder, model, data)
                failures += check.failures
                print(f"{name} {optimizer}: {runs} runs, {len(failures)} failures", flush=True)
    service.close()
    for failure in failures:
        print(failure)
    sys.exit(1 if failures or not runs else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Trains a small network in PyTorch with scripts/step_timer.py and with the profiler, and moves the predictions of
`windlass advise` by what they write."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
from step_timer import StepTimer  # noqa: E402


def steps(batch, count, done):
    network = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters())
    data, labels = torch.randn(batch, 784), torch.randint(0, 10, (batch,))
    for _ in range(count):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(data), labels).backward()
        optimizer.step()
        done()


def advise(*measured):
    command = [os.environ["WINDLASS_PROGRAM"], "advise", "mlp:hidden=64,layers=2", "--on", "1x3090", "--batches", "8", "32",
               "--methods", "recompute", "--max-batch", "64", "--json"]
    for file in measured:
        command += ["--measured", file]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def time_at(answer, batch):
    return next(p["step_time_s"] for p in answer["methods"][0]["points"] if p["batch"] == batch)


with tempfile.TemporaryDirectory() as folder:
    table, trace = f"{folder}/steps.csv", f"{folder}/trace.json"
    for batch in (8, 32):
        timer = StepTimer(table, batch)
        steps(batch, 12, timer.step)
        timer.close()
    lines = pathlib.Path(table).read_text().splitlines()
    assert lines[0] == "batch,method,peak_bytes,step_time_s" and len(lines) == 3, lines
    measured = {int(line.split(",")[0]): float(line.split(",")[3]) for line in lines[1:]}
    plain, moved = advise(), advise(table)
    for batch in (8, 32):
        # By how much is a matter of the host: tests/advise_test.cpp has that with steps that are known.
        assert measured[batch] > 0 and time_at(moved, batch) != time_at(plain, batch), measured
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=4),
                 on_trace_ready=lambda ready: ready.export_chrome_trace(trace)) as profiler:
        steps(8, 6, profiler.step)
    with_trace = advise(f"{trace}@8")
    assert time_at(with_trace, 8) != time_at(plain, 8)
    failed = subprocess.run([os.environ["WINDLASS_PROGRAM"], "advise", "mlp", "--on", "1x3090", "--measured", trace],
                            capture_output=True, text=True)
    assert failed.returncode == 1 and "@" in failed.stderr, failed.stderr
print("steps of PyTorch move the predictions")

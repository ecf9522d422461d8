#!/usr/bin/python3
"""Data parallel training on two devices beside one device, and beside PyTorch's DistributedDataParallel on Gloo.

The same GPT with the same batch: by windlass on one device with one thread, by windlass on two devices with one thread
each in one process and in two (with ordered sums, and with those of Gloo), and by two processes of PyTorch with one
thread each. They take turns, so that whatever
else the machine does hits them alike; of each the median step counts, the first ones of every turn left out. The bars:
two devices at least 1.8 times as fast as one, two processes at least 0.95 times as fast as one with two devices, and
both at least as fast as PyTorch's two processes.

Runs with the system's python3-torch, from the root of the repository.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # read when the libraries are loaded

try:
    import torch
    from torch import distributed, nn
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
from measured import run  # noqa: E402
from trained_models import Gpt  # noqa: E402

BATCH, LENGTH, VOCABULARY, SETTLING = 16, 128, 2048, 2
TWICE_BAR, PROCESSES_BAR, PEER_BAR = 1.8, 0.95, 1.0


def model():
    torch.manual_seed(1)
    return Gpt(VOCABULARY, 256, 4, 4, LENGTH)


def peer(steps):
    """One of two processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    module = model().train()
    # Gloo does not send truth values.
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["mask"])
    module = nn.parallel.DistributedDataParallel(module, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, weight_decay=0.01)
    share = BATCH // distributed.get_world_size()
    ids = torch.randint(VOCABULARY, (share, LENGTH))
    labels = torch.randint(VOCABULARY, (share * LENGTH,))
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(module(ids), labels)
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - begin)
    if distributed.get_rank() == 0:
        print(json.dumps(times))


def peers(steps):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [subprocess.Popen([sys.executable, __file__, "--steps", str(steps), "--peer"], text=True,
                                  stdout=subprocess.PIPE, env={**os.environ, **world, "RANK": str(rank)})
                 for rank in range(2)]
    texts = [process.communicate(timeout=600)[0] for process in processes]
    if any(process.returncode for process in processes):
        sys.exit("PyTorch's processes failed")
    return json.loads(texts[0])


def windlass(path, kind, count, strategy, steps, *more):
    lines = run("train", path, "--on", "local", kind, count, "--threads", 1, "--strategy", strategy,
                "--optimizer", "adamw", "--lr", "1e-4", "--weight-decay", "0.01", "--steps", steps,
                "--json", *more).splitlines()
    return [json.loads(line)["step_time_s"] for line in lines[:-1]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each")
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options.steps)
    with tempfile.TemporaryDirectory() as temporary:
        path = pathlib.Path(temporary) / "gpt.onnx"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model().train(), (torch.randint(VOCABULARY, (BATCH, LENGTH)),), str(path),
                              training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=14)
        ways = {"windlass, one device": lambda steps: windlass(path, "--devices", 1, "single", steps),
                "windlass, two devices": lambda steps: windlass(path, "--devices", 2, "data-parallel", steps),
                "windlass, two processes": lambda steps: windlass(path, "--hosts", 2, "data-parallel", steps),
                "windlass, two processes, --fast-sums":
                    lambda steps: windlass(path, "--hosts", 2, "data-parallel", steps, "--fast-sums"),
                "PyTorch DDP on Gloo, two processes": peers}
        times = {label: [] for label in ways}
        for _ in range(options.rounds):
            for label, way in ways.items():
                times[label] += way(options.steps + SETTLING)[SETTLING:]
    one, two, processes, fast, torchs = (statistics.median(times[label]) for label in ways)
    for label, median in zip(ways, (one, two, processes, fast, torchs)):
        print(f"{label:38}{median * 1e3:8.1f} ms a step (median of {len(times[label])})")
    print(f"two devices are {one / two:.2f} times as fast as one (bar {TWICE_BAR}), "
          f"{torchs / two:.2f} times as fast as DDP (bar {PEER_BAR})")
    print(f"two processes are {two / processes:.2f} times as fast as two devices of one (bar {PROCESSES_BAR}), "
          f"{torchs / processes:.2f} times as fast as DDP (bar {PEER_BAR})")
    print(f"with Gloo's own sums they are {processes / fast:.2f} times as fast as with ordered ones")
    return int(one / two < TWICE_BAR or two / processes < PROCESSES_BAR or torchs / max(two, processes) < PEER_BAR)


if __name__ == "__main__":
    sys.exit(main())

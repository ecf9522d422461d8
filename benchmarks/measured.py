"""What the benchmarks that measure training on several CPU devices share: how the program is run, and links."""

import json
import os
import subprocess
import sys
import tempfile

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
# A GTX 1080 Ti has 11.3 TFLOP/s of fp32 (NVIDIA's data sheet); PCIe 3 on 16 lanes carries 12.3 GB/s.
FLOPS_A_BYTE = 11.3e12 / 12.3e9
DOES_NOT_FIT = 2
# Kernels are measured by this benchmark, not by runs before it.
CACHE = tempfile.TemporaryDirectory()


def run(*arguments, allowed=(0,)):
    """Returns what the program prints, or nothing if it ends with another of the allowed exit codes."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "XDG_CACHE_HOME": CACHE.name})
    if done.returncode not in (0, *allowed):
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout if done.returncode == 0 else ""


def links(devices):
    """Bytes a second of links that are as slow beside the devices as PCIe 3 is beside a GTX 1080 Ti."""
    machine = json.loads(run("machine", "show", "local", "--devices", devices, "--json"))
    return int(machine["device_types"]["cpu"]["peak"]["fp32"] / FLOPS_A_BYTE)


def train(arguments, steps, allowed=(0,)):
    """Predicted and measured seconds of a step; None if it does not fit."""
    text = run("train", *arguments, "--steps", steps, "--json", allowed=allowed)
    if not text:
        return None
    line = json.loads(text.splitlines()[-1])
    for device in line["measured"]["devices"]:
        if device["peak_bytes"] > device["limit_bytes"]:
            sys.exit(f"{arguments}: {device} is above its limit")
    return line["predicted"]["step_time_s"], line["measured"]["step_time_s"]


def off(predicted, measured):
    return f"{100 * (predicted / measured - 1):+.1f}%"

#!/usr/bin/python3
"""Trains exported PyTorch scripts beside windlass: the same losses, step by step.

One device and two replicas (Gloo), with everything kept, blocks computed again, blocks moved to the host, in
micro-batches; and the other formats are read by what reads them here. Every other case, unless WINDLASS_THOROUGH is set
(make test-slow).
"""

import csv
import io
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
GPT2 = ["gpt2:layers=3,hidden=32,heads=2,vocab=64,dropout=0", "--seq", "16"]
LLAMA = ["llama2-7b:layers=2,hidden=32,heads=4,inner=48,vocab=64", "--seq", "16"]
CASES = [
    ("plain", GPT2, 4, 1, "single"),
    ("recompute", GPT2, 4, 1, "single:recompute=full,micro-batches=2"),
    ("offload", GPT2, 4, 1, "single:offload=on"),
    ("replicas", GPT2, 8, 2, "data-parallel:micro-batches=2,recompute=full"),
    ("zero", GPT2, 8, 2, "zero:stage=1"),
    ("tensor", GPT2, 4, 2, "megatron:tp=2"),
    ("llama", LLAMA, 4, 2, "data-parallel"),
    ("adamw", GPT2 + ["--optimizer", "adamw", "--clip", "0.5"], 4, 1, "single"),
    ("momentum", GPT2 + ["--optimizer", "momentum"], 4, 2, "data-parallel"),
]
STEPS = 5
failures = []


def check(what, condition):
    if not condition:
        failures.append(what)
        print("FAILED:", what)


def windlass(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=600)
    if done.returncode not in (0, 2):
        raise AssertionError(f"windlass {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def write_safetensors(path, tensors):
    head, at, data = {}, 0, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        head[name] = {"dtype": {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype],
                      "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        at, data = at + len(raw), data + raw
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def load_script(path):
    """The module of a script, without running it."""
    scope = {"__name__": "exported"}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), scope)  # pylint: disable=exec-used
    return scope


def run_script(path, replicas, arguments):
    command = [sys.executable, path, *arguments]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                       WORLD_SIZE=str(replicas), OMP_NUM_THREADS="1")
    running = [subprocess.Popen(command, env=dict(environment, RANK=str(rank)), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for rank in range(replicas)]
    texts = [process.communicate(timeout=300) for process in running]
    if any(process.returncode for process in running):
        raise AssertionError(f"{path}: {texts[0][1]}{texts[-1][1]}")
    return [json.loads(line)["loss"] for line in texts[0][0].splitlines()]


def saved_bytes(module, arguments):
    """What a forward pass leaves for the backward pass on the device."""
    seen = {}

    def pack(tensor):
        seen[tensor.storage().data_ptr()] = tensor.storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = module(*arguments)
    own = {parameter.storage().data_ptr() for parameter in module.parameters()}
    del loss
    return sum(size for place, size in seen.items() if place not in own)


def check_case(name, model, batch, devices, strategy, folder):
    plan, script = (os.path.join(folder, name + end) for end in (".json", ".py"))
    windlass("simulate", *model, "--batch", str(batch), "--on", "local", "--devices", str(devices),
             "--strategy", strategy, "--save", plan)
    said = json.loads(windlass("export", plan, "--to", "pytorch", "-o", script, "--json"))
    check(f"{name}: {said['micro_batch']} x {said['accumulation']} x {said['dp']} = {batch}",
          said["micro_batch"] * said["accumulation"] * said["dp"] == batch)
    scope = load_script(script)
    torch.manual_seed(1)
    made = scope["Model"]()
    weights = {key: torch.randn(value.shape) * 0.1 for key, value in made.by_name().items()}
    stored, data = os.path.join(folder, "weights.safetensors"), os.path.join(folder, "data.safetensors")
    write_safetensors(stored, weights)
    samples = {key: torch.randint(0, 64, (batch * STEPS, 16)) for key in scope["INPUTS"]}
    write_safetensors(data, samples)
    ours = [json.loads(line) for line in windlass(
        "train", plan, "--weights", stored, "--data", data, "--no-shuffle", "--lr", "0.01", "--steps", str(STEPS),
        "--json").splitlines()]
    ours = [line["loss"] for line in ours if "loss" in line]
    theirs = run_script(script, said["dp"], ["--data", data, "--weights", stored, "--lr", "0.01", "--steps", str(STEPS)])
    print(f"{name}: windlass {['%.5f' % v for v in ours]}, PyTorch {['%.5f' % v for v in theirs]}")
    check(f"{name}: as many steps", len(ours) == len(theirs) == STEPS)
    for step, (a, b) in enumerate(zip(ours, theirs)):
        check(f"{name}: loss {step}: {a} and {b}", abs(a - b) < 2e-4 * max(1, abs(a)))
    # Per replica and micro-batch, so that cases are comparable.
    micro = {key: value[:2] for key, value in samples.items()}
    return saved_bytes(made, list(micro.values())) if said["micro_batch"] == 2 else None


def check_formats(folder):
    plan = os.path.join(folder, "grid.json")
    windlass("simulate", *GPT2, "--batch", "16", "--on", "8xa100-80g", "--strategy",
             "megatron:tp=2,pp=2,micro=2,zero=1", "--save", plan)
    rows = list(csv.DictReader(io.StringIO(windlass("export", plan, "--to", "csv"))))
    check("csv: a row a task", len(rows) == json.loads(windlass("simulate", plan, "--json"))["tasks"])
    check("csv: times", all(float(row["start_s"]) <= float(row["end_s"]) for row in rows))
    check("perfetto", len(json.loads(windlass("export", plan, "--to", "perfetto"))["traceEvents"]) > len(rows))
    check("dot", windlass("export", plan, "--to", "dot").startswith("digraph"))
    check_snapshot(json.loads(windlass("export", plan, "--to", "memory-viz")),
                   json.loads(windlass("simulate", plan, "--json")))


def check_snapshot(snapshot, said):
    """Replays the allocations: nothing overlaps, nothing is left over, the end is what segments say."""
    check("snapshot: a trace a team", len(snapshot["segments"]) == len(snapshot["device_traces"]))
    for segment, trace in zip(snapshot["segments"], snapshot["device_traces"]):
        live = {}
        for event in trace:
            if event["action"] == "alloc":
                first, last = event["addr"], event["addr"] + event["size"]
                check("snapshot: within its segment", segment["address"] <= first and
                      last <= segment["address"] + segment["total_size"])
                check("snapshot: overlaps", all(last <= a or a + s <= first for a, s in live.items()))
                live[first] = event["size"]
            elif event["action"] == "free_completed":
                check("snapshot: frees what is there", live.pop(event["addr"], None) == event["size"])
        active = {block["address"]: block["size"] for block in segment["blocks"] if block["state"] == "active_allocated"}
        check("snapshot: ends as segments say", active == live)
        at = segment["address"]
        for block in segment["blocks"]:
            check("snapshot: blocks tile", block["address"] == at)
            at += block["size"]
        check("snapshot: to the end", at == segment["address"] + segment["total_size"])


def main():
    with tempfile.TemporaryDirectory() as folder:
        every = 1 if "WINDLASS_THOROUGH" in os.environ else 2
        saved = {case[0]: check_case(*case, folder) for case in CASES[::every]}
        check_formats(folder)
        scope = load_script(os.path.join(folder, "plain.py"))
        kept, again = scope["Model"](), scope["Model"]()
        again.actions = ["recompute"] * len(again.actions)
        for model in (kept, again):
            for parameter in model.parameters():
                torch.nn.init.normal_(parameter, std=0.02)
        batch = [torch.randint(0, 64, (4, 16)) for _ in scope["INPUTS"]]
        check(f"recomputing saves less: {saved}", saved_bytes(again, batch) < saved_bytes(kept, batch) / 2)
    print("failed:" if failures else "exported scripts train as windlass does", *failures, sep="\n  " if failures else "")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

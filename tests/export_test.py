#!/usr/bin/python3
"""Trains exported PyTorch scripts beside windlass: the same losses, step by step.

One device and two replicas (Gloo), with everything kept, blocks computed again, blocks moved to the host, in
micro-batches; networks of the zoo and such that are brought as ONNX files; what is saved for the backward pass falls as planned.
And the other formats are read by what reads them here. Every fourth case, unless WINDLASS_THOROUGH is set
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
import warnings

try:
    import torch
    from torch import nn
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROGRAM = os.environ.get("WINDLASS_PROGRAM", "build/release/windlass")
GPT2 = ["gpt2:layers=3,hidden=32,heads=2,vocab=64,dropout=0", "--seq", "16"]
LLAMA = ["llama2-7b:layers=2,hidden=32,heads=4,inner=48,vocab=64", "--seq", "16"]
MIXTRAL = ["mixtral.json", "--seq", "16"]
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
    ("images", ["images.onnx"], 8, 2, "data-parallel"),
    ("images again", ["images.onnx"], 4, 1, "single:recompute=full"),
    ("series", ["series.onnx"], 8, 2, "zero:stage=1,recompute=full"),
    ("series kept", ["series.onnx"], 4, 1, "single"),
    ("shares of weights", GPT2 + ["--clip", "0.5"], 8, 2, "zero:stage=3"),
    ("shares of gradients", GPT2 + ["--optimizer", "momentum"], 12, 2, "zero:stage=2,micro-batches=3"),
    ("shares of experts", MIXTRAL, 4, 2, "zero:stage=3,recompute=full"),
    ("experts", MIXTRAL, 4, 1, "single"),
    ("weights on the host", LLAMA, 4, 1, "single:host-weights=on,host-update=on,offload=on"),
    ("shares on the host", GPT2, 8, 2, "zero:stage=3,host-weights=on,host-update=on,micro-batches=2"),
    ("shares of images", ["images.onnx"], 8, 2, "zero:stage=3"),
]
STEPS = 5
failures = []


class Images(nn.Module):
    """What networks of images are made of, with statistics that replicas share."""

    def __init__(self):
        super().__init__()
        self.start = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Hardswish()) for _ in range(3))
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.norm = nn.GroupNorm(2, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        x = self.start(x)
        for block in self.blocks:
            x = x + block(x)
        x = nn.functional.elu(self.norm(self.up(nn.functional.max_pool2d(x, 2))))
        x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(x.amax((2, 3)))


class Series(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 8, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.out = nn.Linear(8, 5)

    def forward(self, x):
        return self.out(self.lstm(self.gru(x.flatten(2).transpose(1, 2))[0])[0][:, -1])


def export_networks(folder):
    """Networks that are brought as files."""
    with open(os.path.join(folder, "mixtral.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "mixtral", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "num_local_experts": 5, "num_experts_per_tok": 3, "vocab_size": 64,
                   "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4}, file)
    for name, network in (("images", Images()), ("series", Series())):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(network.train(), torch.randn(2, 3, 8, 8), os.path.join(folder, name + ".onnx"), input_names=["x"],
                              dynamic_axes={"x": {0: "batch"}}, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)


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


# Runs a script and counts what of the weights is gathered at once, in elements.
COUNT_GATHERED = """
import json, os, sys, weakref
scope = {"__name__": "exported"}
path = sys.argv.pop(1)
exec(compile(open(path).read(), path, "exec"), scope)
now, most, sizes = 0, 0, {}
collect = scope["Shards"].collect
def freed(size):
    global now
    now -= size
def counted(self):
    global now, most
    fresh = self.flat is None
    flat = collect(self)
    if fresh:
        now += flat.numel()
        most = max(most, now)
        weakref.finalize(flat, freed, flat.numel())
    return flat
scope["Shards"].collect = counted
prepare = scope["prepare"]
def counting(model):
    whole = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    made = prepare(model)
    sizes.update(whole=whole, own=sum(weight.numel() for weight in model.parameters() if weight.requires_grad))
    return made
scope["prepare"] = counting
scope["main"]()
print(json.dumps({**sizes, "gathered": most}), file=sys.stderr, flush=True)
sys.stdout.flush()
os._exit(0)  # as the script itself
"""


def run_script(path, replicas, arguments, count=False):
    """Losses, and what the last replica says of gathered weights."""
    command = [sys.executable, *(["-c", COUNT_GATHERED] if count else []), path, *arguments]
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000),
                       WORLD_SIZE=str(replicas), OMP_NUM_THREADS="1")
    running = [subprocess.Popen(command, env=dict(environment, RANK=str(rank)), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True) for rank in range(replicas)]
    texts = [process.communicate(timeout=300) for process in running]
    if any(process.returncode for process in running):
        raise AssertionError(f"{path}: {texts[0][1]}{texts[-1][1]}")
    return [json.loads(line)["loss"] for line in texts[0][0].splitlines()], texts[-1][1]


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
    model = [os.path.join(folder, word) if word.endswith((".onnx", ".json")) else word for word in model]
    windlass("simulate", *model, "--batch", str(batch), "--on", "local", "--devices", str(devices),
             "--strategy", strategy, "--save", plan)
    said = json.loads(windlass("export", plan, "--to", "pytorch", "-o", script, "--json"))
    check(f"{name}: {said['micro_batch']} x {said['accumulation']} x {said['dp']} = {batch}",
          said["micro_batch"] * said["accumulation"] * said["dp"] == batch)
    scope = load_script(script)
    torch.manual_seed(1)
    made = scope["Model"]()
    # Deviations are positive.
    weights = {key: torch.randn(value.shape) * 0.1 if value.requires_grad else torch.ones(value.shape)
               for key, value in made.by_name().items()}
    stored, data = os.path.join(folder, "weights.safetensors"), os.path.join(folder, "data.safetensors")
    write_safetensors(stored, weights)
    if model[0].endswith(".onnx"):
        samples = {"x": torch.randn(batch * STEPS, 3, 8, 8), "labels": torch.randint(0, 5, (batch * STEPS,))}
    else:
        samples = {key: torch.randint(0, 64, (batch * STEPS, 16)) for key in scope["INPUTS"]}
    write_safetensors(data, samples)
    ours = [json.loads(line) for line in windlass(
        "train", plan, "--weights", stored, "--data", data, "--no-shuffle", "--lr", "0.01", "--steps", str(STEPS),
        "--json").splitlines()]
    ours = [line["loss"] for line in ours if "loss" in line]
    saved = os.path.join(folder, "saved.safetensors")
    theirs, counted = run_script(script, said["dp"], ["--data", data, "--weights", stored, "--lr", "0.01", "--steps", str(STEPS),
                                                      "--save", saved], "Shards" in scope)
    print(f"{name}: windlass {['%.5f' % v for v in ours]}, PyTorch {['%.5f' % v for v in theirs]}")
    check(f"{name}: as many steps", len(ours) == len(theirs) == STEPS)
    for step, (a, b) in enumerate(zip(ours, theirs)):
        check(f"{name}: loss {step}: {a} and {b}", abs(a - b) < 2e-4 * max(1, abs(a)))
    check_weights(name, scope["read_safetensors"](saved), weights)
    if "Shards" in scope:
        check_gathered(name, json.loads(counted.strip().splitlines()[-1]), scope)
    check_saved(name, scope["Model"], [samples[key][:said["micro_batch"]] for key in scope["INPUTS"]], weights)


def check_weights(name, saved, begun):
    """Trained weights are written under the names that they were read with, and have changed."""
    check(f"{name}: names of trained weights", saved.keys() == begun.keys())
    check(f"{name}: shapes of trained weights", all(saved[key].shape == begun[key].shape for key in begun))
    check(f"{name}: weights are trained", any(not torch.equal(saved[key], begun[key]) for key in begun))


def check_gathered(name, counted, scope):
    """A replica has its share of the weights; with ZeRO 3 no more of them than a part or two at a time."""
    print(f"{name}: {counted}")
    each = counted["whole"] / scope["REPLICAS"]
    check(f"{name}: shares", each <= counted["own"] <= each + 64)
    if scope["ZERO"] == 3:
        check(f"{name}: gathered at once", counted["gathered"] < 0.7 * counted["whole"])
    else:
        check(f"{name}: gathered for the step", counted["gathered"] >= counted["whole"])


def check_saved(name, make, batch, weights):
    """What the script keeps on the device falls with what the plan does not keep."""
    planned, kept = make(), make()
    kept.actions = ["keep"] * len(kept.actions)
    for model in (planned, kept):
        with torch.no_grad():
            for key, value in model.by_name().items():
                value.copy_(weights[key])
    share = saved_bytes(planned, batch) / saved_bytes(kept, batch)
    moved = [action for action in planned.actions if action != "keep"]
    print(f"{name}: {len(moved)} of {len(planned.actions)} parts are not kept, {100 * share:.0f} % of the bytes are")
    check(f"{name}: saved tensors are {share} of those that are kept otherwise",
          share < 1 - 0.4 * len(moved) / len(planned.actions) if moved else share == 1)


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
        thorough = "WINDLASS_THOROUGH" in os.environ
        export_networks(folder)
        for case in CASES if thorough else CASES[1::4]:
            check_case(*case, folder)
        check_formats(folder)
    print("failed:" if failures else "exported scripts train as windlass does", *failures, sep="\n  " if failures else "")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()

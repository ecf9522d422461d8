"""The program `windlass train` itself as a service, for a few networks: starting it takes half a second."""

import json
import pathlib
import re
import subprocess

from networks.build import stored_values
from networks.service import read_safetensors, write_safetensors

KINDS = {1: "input", 3: "runtime", 4: "internal"}  # by exit code


class Program:
    """Runs strategies by name; "half" is a search in half the memory of "single", or in the least."""

    def __init__(self, program):
        self.program = program

    def close(self):
        pass

    def run(self, request):
        results = {}
        for number, strategy in enumerate(request["strategies"]):
            file = pathlib.Path(request["out"]) / f"{number}.safetensors"
            results[strategy] = self.run_strategy(request, strategy, file)
        return results

    def run_strategy(self, request, strategy, file):
        if strategy != "half":
            return self.result(self.train(request, file, ["--strategy", strategy]), request, file)
        plain = self.result(self.train(request, file, ["--strategy", "single"]), request, file)
        if "error" in plain:
            return plain
        done = self.train(request, file, ["--memory", plain["predicted_peak"] // 2])
        if done.returncode == 2:
            least = re.search(r"the least limit is (\d+) bytes", done.stderr)
            done = self.train(request, file, ["--memory", least.group(1)])
        return self.result(done, request, file)

    def train(self, request, file, flags):
        h = request["hyperparameters"]
        given = {"--lr": h["lr"], "--momentum": h.get("momentum", 0.9), "--epsilon": h.get("epsilon", 1e-8),
                 "--weight-decay": h.get("weight_decay", 0), "--optimizer": request["optimizer"],
                 "--steps": request["steps"], "--data": request["data"], "--save": file, "--threads": 1}
        for flag in ("loss", "batch"):
            if flag in request:
                given[f"--{flag}"] = request[flag]
        command = [self.program, "train", request["model"], "--no-shuffle", "--json", *flags]
        for flag, value in given.items():
            command += [flag, value]
        if "freeze" in request:
            command += ["--freeze", *request["freeze"]]
        if request.get("as_exported"):
            command.append("--as-exported")
        return subprocess.run([str(word) for word in command], capture_output=True, text=True)

    def result(self, done, request, file):
        if done.returncode != 0:
            return {"error": KINDS.get(done.returncode, "crash"),
                    "message": done.stderr.strip() or f"ended with {done.returncode}"}
        *steps, last = [json.loads(line) for line in done.stdout.splitlines()]
        # Weights alone are saved, under their names in the model.
        saved = read_safetensors(file)
        stored = stored_values(request["model"])
        write_safetensors(file, {f"weight.{name}": value for name, value in saved.items()})
        out = file.parent / file.stem
        out.mkdir(exist_ok=True)
        write_safetensors(out / "initial.safetensors",
                          {name: value for name, value in stored.items() if name in saved})
        predicted, measured = last["predicted"], last["measured"]
        return {"losses": [step["loss"] for step in steps], "complaints": [], "repeats": "",
                "limit": measured["devices"][0]["limit_bytes"],
                "predicted_peak": predicted["devices"][0]["peak_bytes"],
                "measured_peak": measured["devices"][0]["peak_bytes"],
                "predicted_host_peak": predicted["host"]["peak_bytes"],
                "measured_host_peak": measured["host"]["peak_bytes"], "out": str(out), "file": str(file)}

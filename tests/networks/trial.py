"""One network through PyTorch and windlass."""

import dataclasses
import pathlib
import re
import tempfile

import numpy
import torch

from networks.build import Unsuitable, build, export, stored_values
from networks.compare import Comparison, Places
from networks.reference import Reference
from networks.service import read_safetensors, write_safetensors


@dataclasses.dataclass
class Failure:
    kind: str
    strategy: str
    text: str

    def alike(self, other):
        return self.kind == other.kind and (self.kind not in ("internal", "refused") or
                                            signature(self.text) == signature(other.text))


@dataclasses.dataclass
class Verdict:
    failures: list
    refusals: list  # messages without names and numbers
    runs: int = 0
    inconclusive: str = ""  # why there was nothing to compare


def signature(message):
    """A message without what differs from network to network."""
    message = re.sub(r"/[^ :]*\.(onnx|safetensors): ", "", message)
    message = re.sub(r'"[^"]*"', '"..."', message)
    message = re.sub(r"\[[0-9, ]*\]", "[...]", message)
    return re.sub(r"[0-9]+", "0", message)


def strategies(description, mixtures=2):
    """Every memory action, and so many mixtures that the seed draws."""
    seed, batch = description["seed"], description["batch"]
    chosen = ["single", "recompute-all", "offload-all", "single:host-update=on",
              "single:host-weights=on,host-update=on", "least", "half", "recompute-sqrt:host-weights=on"]
    chosen += [f"random:{mixtures * seed + i}" for i in range(mixtures)]
    cuts = [n for n in range(2, batch + 1) if batch % n == 0]
    if cuts:
        chosen.append(f"single:micro-batches={cuts[seed % len(cuts)]}")
        chosen.append(f"recompute-all:micro-batches={cuts[0]},host-update=on")
    return chosen


# What an exporter makes of a weight that it computes with is another weight, or several: only the first loss
# compares.
FOLDED = "weights were folded by the exporter"


def folded(places, comparison, parameters, stored, description):
    """`stored`: all that the file stores."""
    folds = description["export"]["fold"] or description["export"]["mode"] == "default"
    in_file = Places(parameters, {name: value for name, value in stored.items() if value.dtype == numpy.float32})
    return folds and (places.foreign or comparison.missing() or in_file.foreign or in_file.uses().max() > 1)


class Trial:
    """`service` runs windlass; `chosen` are strategies, by default all of them."""

    def __init__(self, service, description, chosen=None):
        self.service, self.description = service, description
        self.chosen = chosen or strategies(description)

    def run(self):
        """Throws Unsuitable."""
        with tempfile.TemporaryDirectory(prefix="windlass-network-") as temporary:
            return self.run_in(pathlib.Path(temporary))

    def run_in(self, folder):
        network = build(self.description)
        if not any(True for _ in network.parameters()):
            raise Unsuitable("no weights")
        path = folder / "net.onnx"
        export(network, path)
        self.stored = stored_values(path)
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                if name in self.stored:
                    buffer.copy_(torch.from_numpy(self.stored[name]))
        reference = Reference(network)
        if not reference.usable():
            raise Unsuitable("losses or gradients mean nothing")
        data = {name: rows.flatten(0, 1).numpy() if rows.dim() > 1 else rows.numpy()
                for name, rows in network.data.items()}
        write_safetensors(folder / "net.safetensors", data)
        train = self.description["train"]
        request = {"model": str(path), "data": str(folder / "net.safetensors"), "out": str(folder),
                   "steps": train["steps"], "optimizer": train["optimizer"],
                   "hyperparameters": train["hyperparameters"], "strategies": self.chosen}
        if self.description["export"].get("open"):
            request["batch"] = self.description["batch"]
        if self.description["outside"]:
            request["loss"] = self.description["outside"]
        return self.judge(network, reference, self.service.run(request))

    def judge(self, network, reference, results):
        verdict = Verdict([], [])
        parameters = {name: p.detach().numpy() for name, p in network.named_parameters()}
        for strategy, result in results.items():
            label = strategy or "loading"
            if "error" in result:
                message = result["message"]
                if result["error"] in ("input", "unsupported"):
                    verdict.refusals.append(signature(message))
                else:
                    kind = result["error"]
                    verdict.failures.append(Failure(kind, label, message))
                continue
            verdict.runs += 1
            self.judge_run(network, reference, parameters, label, result, verdict)
        return verdict

    def judge_run(self, network, reference, parameters, label, result, verdict):
        def fail(kind, text):
            verdict.failures.append(Failure(kind, label, text))
        stored = read_safetensors(pathlib.Path(result["out"]) / "initial.safetensors")
        buffers = dict(network.named_buffers())
        places = Places(parameters, {name: v for name, v in stored.items() if name not in buffers})
        if result["complaints"]:
            fail("complaint", "; ".join(result["complaints"][:3]))
        if result["repeats"]:
            fail("repetition", f"{result['repeats']} differs from run to run")
        # What overlaps in the simulation need not when a thread is late.
        exact = result.get("lanes", 2) > 1 or result["measured_peak"] == result["predicted_peak"]
        if not exact or not result["measured_peak"] <= result["predicted_peak"] <= result["limit"]:
            fail("peak", f"{result['measured_peak']} bytes measured, {result['predicted_peak']} predicted, "
                 f"{result['limit']} allowed")
        if result["measured_host_peak"] > result["predicted_host_peak"]:
            fail("host peak", f"{result['measured_host_peak']} bytes measured on the host, "
                 f"{result['predicted_host_peak']} predicted")
        comparison = Comparison(reference, places, result["losses"], read_safetensors(result["file"]))
        if folded(places, comparison, parameters, self.stored, self.description):
            verdict.inconclusive = FOLDED
            if any(text.startswith("loss of step 1:") for text in comparison.complaints):
                fail("difference", comparison.complaints[0])
            return
        if places.foreign:
            fail("foreign", f"{', '.join(places.foreign)} is trained, but no parameter")
            return
        if comparison.complaints:
            fail("difference", "\n    ".join(comparison.complaints[:6]))
        missing = comparison.missing()
        if missing:
            fail("missing", "; ".join(missing))

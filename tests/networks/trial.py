"""One network through PyTorch and windlass."""

import dataclasses
import pathlib
import re
import tempfile

import numpy
import torch

from networks.build import build, export, operators, stored_values
from networks.catalogue import Unsuitable
from networks.chance import drops, judge_chance
from networks.compare import Comparison, Places
from networks.folds import Folds
from networks.reference import Reference, train
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
    remarks: set = dataclasses.field(default_factory=set)  # what could not be compared, and why
    operators: set = dataclasses.field(default_factory=set)  # of the file


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


# What an exporter makes of a weight that it computes with is another weight, or several: the first loss compares, and
# the gradient along directions (folds.py).
FOLDED = "with weights that the exporter folded"
LOST_FOLDS = "with folded weights that nothing tells from others"
RESTORED = "with norms that were folded and restored"
BLURRED = "whose first gradients rounding hides"
LATER = "whose later gradients rounding hides"
CHANCE = "that drop something"


def folded(places, comparison, parameters, stored, description):
    """`stored`: all that the file stores."""
    folds = description["export"]["fold"] or description["export"]["mode"] == "default"
    in_file = Places(parameters, {name: value for name, value in stored.items() if value.dtype == numpy.float32})
    # A number without a name might as well be a constant.
    numbers = [name for name in in_file.places
               if stored[name].size == 1 and name.startswith("onnx::") and name not in places.places]
    return folds and (numbers or places.foreign or comparison.missing() or in_file.foreign)


class Trial:
    """`service` runs windlass; `chosen` are strategies, by default all of them."""

    def __init__(self, service, description, chosen=None):
        self.service, self.description = service, description
        self.chosen = chosen or strategies(description)

    def run(self):
        """Throws Unsuitable."""
        with tempfile.TemporaryDirectory(prefix="windlass-network-") as temporary:
            return self.run_in(pathlib.Path(temporary))

    def make(self):
        return build(self.description)

    def run_in(self, folder):
        network = self.make()
        if not any(True for _ in network.parameters()):
            raise Unsuitable("no weights")
        path = folder / "net.onnx"
        export(network, path)
        self.stored = stored_values(path)
        self.operators, norms = operators(path)
        self.restored = self.settle_norms(network, norms)
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                if name in self.stored:
                    buffer.copy_(torch.from_numpy(self.stored[name]))
        reference = None if drops(self.description) else Reference(network)
        if not (reference.usable() if reference else train(network).finite):
            raise Unsuitable("losses or gradients mean nothing")
        data = {name: rows.flatten(0, 1).numpy() if rows.dim() > 1 else rows.numpy()
                for name, rows in network.data.items()}
        write_safetensors(folder / "net.safetensors", data)
        wanted = self.description["train"]
        request = {"model": str(path), "data": str(folder / "net.safetensors"), "out": str(folder),
                   "steps": wanted["steps"], "optimizer": wanted["optimizer"],
                   "hyperparameters": wanted["hyperparameters"], "strategies": self.chosen}
        if self.description["export"].get("open"):
            request["batch"] = self.description["batch"]
        if self.description["outside"]:
            request["loss"] = self.description["outside"]
        if self.description["export"].get("literal"):
            request["as_exported"] = True
        frozen = [name for name in network.frozen() if name in self.stored]
        if frozen:
            request["freeze"] = frozen
        self.folds = Folds(network, path, folder)
        return self.judge(network, reference, self.service.run(request))

    def settle_norms(self, network, norms):
        """Batch norms that the exporter folded into convolutions are what they are in inference, unless windlass
        restores them; whether it does."""
        folded = [part for name, part in network.named_modules()
                  if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.running_mean is not None
                  and f"{name}.running_mean" not in norms]
        literal = self.description["export"].get("literal", False)
        for part in folded if literal else []:
            part.eval()
        return bool(folded) and not literal

    def judge(self, network, reference, results):
        verdict = Verdict([], [], operators=self.operators)
        parameters = {name: p.detach().numpy() for name, p in network.named_parameters()}
        for strategy, result in results.items():
            label = strategy or "loading"
            if "error" in result:
                message = result["message"]
                folds = self.description["export"]["fold"] or self.description["export"]["mode"] == "default"
                if result["error"] in ("input", "unsupported"):
                    verdict.refusals.append(signature(message))
                elif folds and result["error"] == "runtime" and "the loss is" in message:
                    verdict.remarks.add(LOST_FOLDS)  # a folded square, say, is trained until it is negative
                else:
                    kind = result["error"]
                    verdict.failures.append(Failure(kind, label, message))
                continue
            verdict.runs += 1
            self.judge_run(network, reference, parameters, label, result, verdict)
        self.judge_plans(results, verdict)
        return verdict

    def judge_plans(self, results, verdict):
        """Plans that do not cut the batch compute the same to the last bit."""
        alike = [(name, result) for name, result in results.items()
                 if "error" not in result and result.get("micro_batches") == 1]
        if not alike:
            return
        first = read_safetensors(alike[0][1]["file"])
        for name, result in alike[1:]:
            if result["losses"] != alike[0][1]["losses"]:
                verdict.failures.append(Failure("plans", name, f"losses {result['losses']}, of {alike[0][0]} "
                                                f"{alike[0][1]['losses']}"))
                continue
            for key, value in read_safetensors(result["file"]).items():
                if key in first and value.tobytes() != first[key].tobytes():
                    verdict.failures.append(Failure("plans", name, f"{key} is not that of {alike[0][0]}"))
                    break

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
        tensors = read_safetensors(result["file"])
        trained = {key.split(".", 2)[2] for key in tensors if key.startswith("gradient.")}
        wrong = trained & (set(buffers) | set(network.frozen()))
        if wrong:
            fail("foreign", f"{', '.join(sorted(wrong))} is trained, but no parameter")
        if reference is None:
            verdict.remarks.add(CHANCE)
            for text in judge_chance(network, result["losses"]):
                fail("chance", text)
            return
        comparison = Comparison(reference, places, result["losses"], tensors)
        if self.restored:
            verdict.remarks.add(RESTORED)
            self.judge_restored(network, reference, result, fail)
            return
        if folded(places, comparison, parameters, self.stored, self.description):
            if any(text.startswith("loss of step 1:") for text in comparison.complaints):
                fail("difference", comparison.complaints[0])
            complaints = self.folds.compare(reference, tensors, trained)
            verdict.remarks.add(LOST_FOLDS if complaints is None else FOLDED)
            for text in complaints or []:
                fail("difference", text)
            return
        if places.foreign:
            fail("foreign", f"{', '.join(places.foreign)} is trained, but no parameter")
            return
        if comparison.blurred:
            first = any(name.startswith("gradient.1.") for name in comparison.blurred)
            verdict.remarks.add(BLURRED if first else LATER)
        if comparison.complaints:
            fail("difference", "\n    ".join(comparison.complaints[:6]))
        missing = comparison.missing()
        if missing:
            fail("missing", "; ".join(missing))

    def judge_restored(self, network, reference, result, fail):
        """Norms begin anew with a scale of 1: that is what they had if nothing but such were folded."""
        begun = all((part.weight is not None) and bool((part.weight == 1).all() and (part.bias == 0).all())
                    for part in network.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm))
        if not begun or places_lost(network):
            return
        found, true = result["losses"][0], reference.truth.losses[0]
        if not abs(found - true) <= RESTORED_TOLERANCE * (abs(true) + 0.1):
            fail("difference", f"loss of step 1: {found}, PyTorch {true}, with restored norms")


# The epsilon of a norm counts otherwise where variances were folded away.
RESTORED_TOLERANCE = 3e-3


def places_lost(network):
    """Whether a convolution with a bias may have been folded with its norm: the bias is in the norm's shift then."""
    return any(isinstance(part, torch.nn.modules.conv._ConvNd) and part.bias is not None for part in network.modules())

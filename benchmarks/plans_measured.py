#!/usr/bin/python3
"""What searches promise, measured: plans of PaSE's and MemFlow's kind and windlass's own, trained on CPU devices.

`pase`: small versions of AlexNet, Inception-v3, RNNLM and the Transformer on two and four devices. The strategy of the
exact search beside data parallelism and what an expert would do; where the simulator says that it is faster by more
than 5 %, it must be.

`memflow`: the same networks and a GPT on four devices under limits of 100 to 20 % of the data-parallel peak: data
parallel, recompute-all, a search for time alone (the plan without a limit), a search by Markov chains as MemFlow's, and
windlass. All run where they fit; windlass must fit wherever any does, and be at most 3 % slower than the best.

Links are as slow beside the devices as PCIe 3 is beside a GTX 1080 Ti. All of one network run one after the other.
"""

import argparse
import json
import pathlib
import sys
import tempfile

from measured import DOES_NOT_FIT, links, off, run, train

# Model, its flags, and an expert's strategy.
CASES = {
    "alexnet": ("alexnet:classes=100", ["--image", "64", "--batch", "32"], "one-weird-trick"),
    "inception": ("inception-v3:classes=100", ["--image", "75", "--batch", "16"], "one-weird-trick"),
    "rnnlm": ("rnnlm:hidden=256,vocab=4096", ["--seq", "16", "--batch", "32"], "megatron:tp={devices}"),
    "transformer": ("transformer:layers=2,hidden=128,heads=4,vocab=4096", ["--seq", "32", "--batch", "32"],
                    "megatron:tp={devices}"),
    "gpt": ("gpt2:layers=6,hidden=192,heads=4,vocab=2048", ["--seq", "64", "--batch", "32"], "megatron:tp={devices}"),
}
LIMITS = [100, 80, 60, 40, 30, 20]
LEAD, SLACK = 1.05, 1.03


def where(devices, memory=None):
    limit = [] if memory is None else ["--memory", memory]
    return ["--on", "local", "--devices", devices, "--link-bandwidth", f"{links(devices)}B/s", *limit]


def planned(model, more, place, path, *search):
    """Arguments of `train` for the plan that is found, or None."""
    found = run("plan", model, *more, *place, "--threads", 1, *search, "-o", path, allowed=(DOES_NOT_FIT,))
    return [path] if found else None


def show(label, result):
    if result is None:
        print(f"    {label:28}does not fit", flush=True)
    else:
        print(f"    {label:28}{result[0]:9.3f} s predicted{result[1]:9.3f} s measured{off(*result):>9}", flush=True)


def pase(names, steps, folder):
    failed = False
    for name in names or [case for case in CASES if case != "gpt"]:
        model, more, expert = CASES[name]
        for devices in (2, 4):
            print(f"{name} on {devices} devices", flush=True)
            place = where(devices)
            exact = train(planned(model, more, place, folder / "exact.json", "--search", "exact"), steps)
            show("exact search", exact)
            for strategy in ("data-parallel", expert.format(devices=devices)):
                other = train([model, *more, *place, "--threads", 1, "--strategy", strategy], steps,
                              allowed=(1, DOES_NOT_FIT))
                show(strategy, other)
                if other and other[0] > LEAD * exact[0] and other[1] < exact[1]:
                    print("    MISSED: the simulator says otherwise")
                    failed = True
    return failed


def memflow(names, steps, folder):
    failed, devices = False, 4
    for name in names or CASES:
        model, more, _ = CASES[name]
        free = where(devices)
        simulated = json.loads(run("simulate", model, *more, *free, "--strategy", "data-parallel", "--json"))
        peak = max(device["peak_bytes"] for device in simulated["devices"])
        fastest = planned(model, more, free, folder / "free.json", "--search", "mcmc")
        for percent in LIMITS:
            limit = peak * percent // 100
            print(f"{name}, {percent} % of the data-parallel peak: {limit / 2**20:.1f} MiB a device", flush=True)
            place = where(devices, limit)
            named = [model, *more, *place, "--threads", 1, "--strategy"]
            ways = {
                "data parallel": [*named, "data-parallel"],
                "recompute-all": [*named, "recompute-all"],
                "search for time alone": [*fastest, "--memory", limit],
                "Markov chains": planned(model, more, place, folder / "mcmc.json", "--search", "mcmc"),
                "windlass": planned(model, more, place, folder / "auto.json"),
            }
            found = {}
            for label, arguments in ways.items():
                found[label] = arguments and train(arguments, steps, allowed=(1, DOES_NOT_FIT))
                show(label, found[label])
            own = found.pop("windlass")
            times = [result[1] for result in found.values() if result]
            if times and (own is None or own[1] > SLACK * min(times)):
                print("    MISSED: another one is faster, or fits where windlass does not")
                failed = True
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=["pase", "memflow"])
    parser.add_argument("models", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        failed = (pase if options.which == "pase" else memflow)(options.models, options.steps, pathlib.Path(temporary))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Trains generated networks in PyTorch and in windlass, and compares every number.

  tests/network_fuzz.py --seed 1 --count 100        networks 1 to 100
  tests/network_fuzz.py --replay failure.json       a network that failed, with the strategies in the file

A network is drawn from a grammar (tests/networks/), exported to ONNX and trained for a few steps under every
memory action, in the least memory, in half of it and under random mixtures, each twice. Losses, gradients
and weights must be PyTorch's up to rounding (tests/networks/compare.py says how near that is), both runs
alike to the last bit, and the measured peak the predicted one. What windlass refuses with a message is
counted, and so is what could not be compared, with the reason; the operators that appeared are listed. What
drops something at random is compared with itself. A failing network is made small and printed; `--keep FOLDER`
writes it to a file, too. Ctrl-C ends with the summary.
"""

import argparse
import collections
import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
try:
    import torch

    from networks.catalogue import CATALOGUE, Unsuitable
    from networks.grammar import draw
    from networks.program import Program
    from networks.service import Service
    from networks.shrink import shrink
    from networks.trial import Trial, strategies
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOOL = os.environ.get("WINDLASS_RUN_TRAINING", "build/release/bin/windlass_run_training")


class Campaign:
    """Many networks, what became of them, and the failures by kind."""

    def __init__(self, keep=None, shrinks=True, most_failures=20, threads=1):
        self.service = Service(TOOL, threads)
        self.keep, self.shrinks, self.most_failures = keep, shrinks, most_failures
        self.counts, self.refusals, self.unsuitable, self.operators = (collections.Counter() for _ in range(4))
        self.failures = []
        self.examples = {}  # of refusals: where they came first

    def run(self, description, label, chosen=None):
        try:
            verdict = Trial(self.service, description, chosen).run()
        except Unsuitable as reason:
            self.counts["unsuitable"] += 1
            self.unsuitable[str(reason).splitlines()[0][:100]] += 1
            return
        self.counts["networks"] += 1
        self.counts["runs"] += verdict.runs
        self.refusals.update(set(verdict.refusals))
        for message in verdict.refusals:
            self.examples.setdefault(message, label)
        self.operators.update(verdict.operators)
        for remark in verdict.remarks:
            self.counts[remark] += 1
            self.examples.setdefault(remark, label)
        if verdict.runs == 0 and not verdict.failures:
            self.counts["refused in whole"] += 1
        if verdict.failures:
            self.report(description, label, verdict.failures)

    def report(self, description, label, failures):
        self.counts["failed"] += 1
        first = failures[0]
        print(f"FAILED {label}: " + ", ".join(sorted({f"{f.strategy}: {f.kind}" for f in failures})), flush=True)
        print(f"    {first.text}")
        if self.shrinks and len(self.failures) < self.most_failures:
            description, first = shrink(self.service, description, first)
            print(f"  shrunk, {first.strategy}: {first.kind}: {first.text}")
        self.failures.append(first)
        text = json.dumps({**description, "strategies": [first.strategy]})
        print(f"  replay: {text}", flush=True)
        if self.keep:
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{label.replace(' ', '-')}.json").write_text(text)

    def summary(self):
        print(", ".join(f"{count} {what}" for what, count in self.counts.items()))
        for title, counter in (("refused", self.refusals), ("not tried", self.unsuitable)):
            for message, count in counter.most_common(40):
                example = f" (first: {self.examples[message]})" if message in self.examples else ""
                print(f"  {title} {count}{example}: {message}")
        known = known_operators()
        print(f"  {len(self.operators)} operators: " + ", ".join(f"{name} {n}" for name,
            n in self.operators.most_common()))
        print("  never seen of those that are read: " + ", ".join(sorted(known - set(self.operators))))
        print("  seen, but not read: " + ", ".join(sorted(set(self.operators) - known)))
        sys.stdout.flush()


def known_operators():
    """Those of docs/operators.md that are read."""
    table = (pathlib.Path(__file__).parent.parent / "docs" / "operators.md").read_text().split("## Not read")[0]
    return {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")} - {"operator"}


def limit_threads():
    """Networks are too small for more than one, and exporting forks."""
    torch.set_num_threads(1)


def run(campaign, flags):
    begin = time.monotonic()
    if flags.replay:
        description = json.loads(flags.replay.read_text())
        chosen = [s for s in description.pop("strategies", []) if s != "loading"]
        campaign.shrinks = False
        campaign.run(description, str(flags.replay.name), chosen)
    else:
        for seed in range(flags.seed, flags.seed + flags.count):
            if flags.show:
                print(json.dumps(draw(seed, flags.layer)))
                continue
            if flags.program:
                campaign.run(draw(seed, flags.layer), f"seed {seed}", ["single", "half"])
            else:
                description = draw(seed, flags.layer)
                campaign.run(description, f"seed {seed}", strategies(description, flags.mixtures))
            if (seed - flags.seed) % 50 == 49:
                print(f"{seed}: {time.monotonic() - begin:.0f} s, {dict(campaign.counts)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first network")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for failing networks")
    parser.add_argument("--layer", choices=list(CATALOGUE), help="that every network shall have")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--replay", type=pathlib.Path, help="a description, as it is printed for a failure")
    parser.add_argument("--threads", type=int, default=1, help="that windlass's kernels use")
    parser.add_argument("--mixtures", type=int, default=2, help="random strategies of each network")
    parser.add_argument("--program", help="try strategies \"single\" and \"half\" of this windlass program")
    parser.add_argument("--show", action="store_true", help="print descriptions instead of running them")
    flags = parser.parse_args()
    limit_threads()
    campaign = Campaign(flags.keep, not flags.no_shrink, threads=flags.threads)
    if flags.program:
        campaign.service = Program(flags.program)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(campaign, flags)
    except KeyboardInterrupt:
        print("stopped")
    campaign.service.close()
    campaign.summary()
    sys.exit(1 if campaign.failures else 0)


if __name__ == "__main__":
    main()

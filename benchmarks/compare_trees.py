#!/usr/bin/env python3
"""Compares one benchmark program of two trees: run in turns, so that what else the machine does meets both.

    benchmarks/compare_trees.py OLD/build/release NEW/build/release simulate_benchmark [--rounds 5] [ARGUMENTS]

Prints for each case the least processor time of either, and their ratio: above 1, NEW is slower. All other
arguments go to the programs (--benchmark_filter=...).
"""

import argparse
import json
import pathlib
import subprocess


def times(program, arguments):
    output = subprocess.run([program, "--benchmark_format=json", *arguments], check=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    cases = json.loads(output)["benchmarks"]
    return {case["name"]: (case["cpu_time"], case["time_unit"]) for case in cases if "cpu_time" in case}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old", type=pathlib.Path)
    parser.add_argument("new", type=pathlib.Path)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=5)
    options, arguments = parser.parse_known_args()
    least = {}
    for number in range(options.rounds):
        for tree in ("old", "new") if number % 2 == 0 else ("new", "old"):
            path = getattr(options, tree) / "benchmarks" / options.program
            for name, (time, unit) in times(path, arguments).items():
                case = least.setdefault(name, {"unit": unit})
                case[tree] = min(time, case.get(tree, time))
    width = max(map(len, least), default=4)
    print(f"{'case':{width}}  {'old':>12}  {'new':>12}      ratio")
    for name, case in least.items():
        old, new = case.get("old"), case.get("new")
        ratio = f"{new / old:.3f}" if old and new else "-"
        shown = (f"{time:12.4g}" if time is not None else f"{'-':>12}" for time in (old, new))
        print(f"{name:{width}}  {'  '.join(shown)} {case['unit']:>2}  {ratio:>6}")


if __name__ == "__main__":
    main()

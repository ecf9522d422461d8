#!/usr/bin/python3
"""Predicted beside measured step times of plans of different kinds on two CPU devices, one thread each.

Every plan is priced and then trained in a process of its own, several times in turn; what counts is the median over the
rounds of how far a prediction was off. To be run on a machine where nothing else runs.
"""

import argparse
import statistics

from measured import off, train

GPT = ["gpt2:layers=4,hidden=256,heads=8,vocab=256", "--seq", "128", "--batch", "16"]
RESNET = ["resnet-18:classes=10", "--image", "64", "--batch", "16"]
VIT = ["vit:layers=6,hidden=192,heads=3,patch=8,classes=10", "--image", "64", "--batch", "16"]
PLANS = [
    *((GPT, strategy, None) for strategy in (
        "data-parallel", "zero:stage=1", "zero:stage=3", "megatron:tp=2", "gpipe:pp=2,micro-batches=4",
        "1f1b:pp=2,micro-batches=4", "recompute-all", "offload-all", "harmony")),
    (GPT, "harmony", "14MiB"),
    (RESNET, "data-parallel", None),
    (RESNET, "zero:stage=3", None),
    (VIT, "data-parallel", None),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    errors = [[] for _ in PLANS]
    for round_number in range(arguments.rounds):
        for (model, strategy, memory), seen in zip(PLANS, errors):
            limit = [] if memory is None else ["--memory", memory]
            predicted, measured = train(
                [*model, "--on", "local", "--devices", 2, "--threads", 1, "--strategy", strategy, "--fresh", *limit],
                arguments.steps)
            seen.append(predicted / measured - 1)
            print(f"round {round_number + 1}: {model[0].split(':')[0]:10} {strategy:28} {memory or '':6} "
                  f"predicted {1000 * predicted:7.1f} ms, measured {1000 * measured:7.1f} ms, {off(predicted, measured)}",
                  flush=True)
    medians = [statistics.median(seen) for seen in errors]
    sizes = sorted(map(abs, medians))
    print()
    for (model, strategy, memory), median in zip(PLANS, medians):
        print(f"{model[0].split(':')[0]:10} {strategy:28} {memory or '':6} {100 * median:+.1f}%")
    print(f"\n{len(sizes)} plans: {100 * statistics.median(sizes):.1f}% off in the median, "
          f"{sum(size <= 0.1 for size in sizes)} within 10 %, the worst {100 * sizes[-1]:.1f}%")


if __name__ == "__main__":
    main()

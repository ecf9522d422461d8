#!/usr/bin/env python3
"""Plans models at many limits and says where more memory gives a slower plan.

    scripts/monotone.py [--search auto] [--effort quick] [--limits 20] [WINDLASS]

By hand: it takes minutes to hours. Exit code 1 if there is an exception.
"""
import argparse, sys

from problems import plan

PROBLEMS = [
    "vit-b-16 --on 4xa10g --batch 64", "resnet50 --on 4x1080ti --batch 128",
    "gpt2 --on 1x3090 --batch 16", "bert-large --on 8x1080ti --batch 64",
    "gpt2-xl --on 4x3090 --batch 16", "swin-l --on 8x2080ti --batch 64 --dtype fp16",
    "llama2-7b --on 8xa100-40g --batch 64 --dtype bf16", "mobilenet-v2 --on 1xl4 --batch 128",
    "alexnet --on 4x1080ti --batch 512", "rnnlm --on 4x1080ti --batch 64", "nmt --on 4xv100-16g --batch 128",
    "unet --on 1x1080ti --batch 8", "transformer --on 4x2080ti --batch 64", "vgg-16 --on 4x2080ti --batch 128",
    "squeezenet-1.1 --on 4xl4 --batch 512", "googlenet --on 1x3090 --batch 256",
    "swin-t --on 4x3090 --batch 64 --dtype fp16", "gpt2-medium --on 4xa10g --batch 64 --dtype bf16",
    "bert-base --on 4x1080ti --batch 64", "resnet-152 --on 4x3090 --batch 128",
]
parser = argparse.ArgumentParser()
parser.add_argument("windlass", nargs="?", default="build/release/windlass")
parser.add_argument("--search", default="auto")
parser.add_argument("--effort", default="quick")
parser.add_argument("--limits", type=int, default=20)
parser.add_argument("--problems", type=int, default=len(PROBLEMS))
args = parser.parse_args()
exceptions = 0
for problem in PROBLEMS[: args.problems]:
    before = None
    for i in range(args.limits):
        share = round(5 * 20 ** (i / max(1, args.limits - 1)), 1)
        found = plan(args.windlass, problem, "--memory", f"{share}%", "--search", args.search,
                     "--effort", args.effort, "--time-limit", "3600")
        time = found["step_time_s"] if found is not None else None
        worse = before is not None and (time is None or time > before)
        exceptions += worse
        print(problem, f"{share} %", time, "SLOWER" if worse else "", flush=True)
        before = time if time is not None else before
print(exceptions, "exceptions")
sys.exit(exceptions > 0)

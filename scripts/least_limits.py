#!/usr/bin/env python3
"""Asks for plans in far too little memory, and whether the least limit that is named is true.

    scripts/least_limits.py [--effort quick] [WINDLASS] [WORD...]

At the limit that is named there must be a plan, and 1 % below it none. WORDs: only problems that
contain one of them. By hand: it takes minutes. Exit code 1 if a limit is not true.
"""
import argparse, json, subprocess, sys

PROBLEMS = [
    "vit-b-16 --on 4xa10g --batch 64", "resnet-50 --on 4x1080ti --batch 128", "gpt2 --on 1x3090 --batch 16",
    "bert-large --on 8x1080ti --batch 64", "gpt2-xl --on 4x3090 --batch 16",
    "swin-l --on 8x2080ti --batch 64 --dtype fp16", "llama2-7b --on 8xa100-40g --batch 64 --dtype bf16",
    "llama3-8b --on 8xa100-80g --batch 16 --dtype bf16", "vgg-16 --on 4x2080ti --batch 128",
    "inception-v3 --on 8x1080ti --batch 256", "densenet-121 --on 4x3090 --batch 128",
    "mobilenet-v2 --on 1xl4 --batch 128", "efficientnet-b4 --on 4xa10g --batch 128",
    "convnext-b --on 8xl40s --batch 512 --dtype bf16", "alexnet --on 4x1080ti --batch 512",
    "unet --on 1x1080ti --batch 8", "gpt2-large --on 8xl40s --batch 128 --dtype bf16",
    "transformer --on 4x2080ti --batch 64", "nmt --on 4xv100-16g --batch 128", "rnnlm --on 4x1080ti --batch 64",
]
parser = argparse.ArgumentParser()
parser.add_argument("windlass", nargs="?", default="build/release/windlass")
parser.add_argument("words", nargs="*")
parser.add_argument("--effort", default="quick")
args = parser.parse_args()


def plan(problem, limit):
    run = subprocess.run(
        [args.windlass, "plan", *problem.split(), "--memory", str(limit), "--effort", args.effort,
         "--time-limit", "3600", "--json"], capture_output=True, text=True)
    if run.returncode not in (0, 2):
        sys.exit(f"{problem} in {limit} bytes: {run.stderr}")
    return run.returncode == 0, json.loads(run.stdout)


wrong = 0
for problem in PROBLEMS:
    if args.words and not any(word in problem for word in args.words):
        continue
    _, refusal = plan(problem, 1 << 20)
    least = refusal["minimum_limit_bytes"]
    enough, too_little = plan(problem, least)[0], plan(problem, least * 99 // 100)[0]
    true = enough and not too_little
    wrong += not true
    print(f"{least / 2**20:10.1f} MiB  {problem}", "" if true else "NOT TRUE: " + (
        "there is no plan" if not enough else "there is a plan with less"), flush=True)
print(wrong, "not true")
sys.exit(wrong > 0)

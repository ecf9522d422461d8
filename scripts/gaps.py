#!/usr/bin/env python3
"""Plans 40 networks of the zoo on preset machines and prints how far each step is from its bound.

    scripts/gaps.py [--effort normal] [WINDLASS] [WORD...]

WORDs: only problems that contain one of them. By hand: it takes minutes. The gap is the share of the
step that the bound does not explain; the mean is over all problems that have a plan.
"""
import argparse, resource

from problems import chosen, plan

PROBLEMS = [
    "resnet-50 --on 4x1080ti --batch 128", "resnet-50 --on 8xa100-80g --batch 1024 --dtype bf16",
    "resnet-152 --on 4x3090 --batch 128", "resnet-152 --on 4xv100-16g --batch 512 --dtype fp16",
    "vgg-16 --on 4x2080ti --batch 128", "vgg-16 --on 8xa100-40g --batch 512 --dtype bf16",
    "inception-v3 --on 8x1080ti --batch 256", "inception-v3 --on 8xh100-80g --batch 1024 --dtype bf16",
    "densenet-121 --on 4x3090 --batch 128", "densenet-121 --on 8xa100-80g --batch 512",
    "mobilenet-v2 --on 4xt4 --batch 256", "mobilenet-v2 --on 1xl4 --batch 128",
    "efficientnet-b4 --on 4xa10g --batch 128", "convnext-b --on 8xl40s --batch 512 --dtype bf16",
    "wide-resnet-101-2 --on 8x2080ti --batch 256 --dtype fp16", "resnext-101-32x8d --on 4x4090 --batch 128",
    "alexnet --on 4x1080ti --batch 512", "googlenet --on 1x3090 --batch 256",
    "squeezenet-1.1 --on 4xl4 --batch 512", "unet --on 1x1080ti --batch 8",
    "vit-b-16 --on 4xa10g --batch 256", "vit-l-16 --on 8xa100-80g --batch 512 --dtype bf16",
    "swin-t --on 4x3090 --batch 256 --dtype fp16", "swin-l --on 8x2080ti --batch 64 --dtype fp16",
    "bert-base --on 4x1080ti --batch 64", "bert-base --on 1xt4 --batch 32 --dtype fp16",
    "bert-large --on 8x1080ti --batch 64", "bert-large --on 8xa100-40g --batch 256 --dtype bf16",
    "gpt2 --on 1x3090 --batch 16 --dtype bf16", "gpt2 --on 4x4090 --batch 64 --dtype bf16",
    "gpt2-medium --on 4xa10g --batch 64 --dtype bf16", "gpt2-large --on 8xl40s --batch 128 --dtype bf16",
    "gpt2-xl --on 4x3090 --batch 16", "gpt2-xl --on 8xa100-80g --batch 128 --dtype bf16",
    "llama2-7b --on 8xa100-40g --batch 64 --dtype bf16", "llama2-7b --on 8xh100-80g --batch 64 --dtype bf16",
    "llama3-8b --on 8xmi300x --batch 64 --dtype bf16", "transformer --on 4x2080ti --batch 64",
    "nmt --on 4xv100-16g --batch 128", "rnnlm --on 4x1080ti --batch 64",
]
parser = argparse.ArgumentParser()
parser.add_argument("windlass", nargs="?", default="build/release/windlass")
parser.add_argument("words", nargs="*")
parser.add_argument("--effort", default="normal")
args = parser.parse_args()
gaps = []
for problem in chosen(PROBLEMS, args.words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = plan(args.windlass, problem, "--effort", args.effort)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if found is None:
        print(f"{'no plan':>8} {seconds:6.1f} s  {problem}", flush=True)
        continue
    gaps.append(found["gap"])
    print(f"{100 * found['gap']:6.1f} % {seconds:6.1f} s  {found['step_time_s']:.6g} s a step  {problem}", flush=True)
print(f"mean gap {100 * sum(gaps) / len(gaps):.2f} % of {len(gaps)} plans")

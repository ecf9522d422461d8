#!/usr/bin/env bash
# Shows the program at work. WINDLASS may name another build of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program="${WINDLASS:-build/release/windlass}"
plan="$(mktemp -d)/gpt2-xl.plan.json"
trap 'rm -rf "$(dirname "$plan")"' EXIT

show() {
  echo "\$ windlass ${*//$plan/gpt2-xl.plan.json}"
  "$program" "$@" || [ $? -eq "${expected:-0}" ]
  echo
}

show inspect gpt2-xl
show inspect resnet-50 --batch 32
show inspect llama3-8b --dtype bf16 --optimizer adamw
# Plain data parallelism does not fit four 24 GB cards: exit code 2, and what would be needed.
expected=2 show simulate gpt2-xl --on 4x3090 --strategy data-parallel --dtype fp16 --batch 16 --top 4
show simulate gpt2-xl --on 4x3090 --strategy zero:stage=3 --dtype fp16 --batch 16 --top 4 --save "$plan"
show check "$plan"

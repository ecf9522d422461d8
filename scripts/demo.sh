#!/usr/bin/env bash
# Shows the program at work: plans a small GPT for far less memory than plain training takes, trains
# it on the shipped text inside that limit, and lays what was predicted beside what was measured; the
# same on two devices that are too small for it even together.
# WINDLASS may name another build of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program="${WINDLASS:-build/release/windlass}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

show() {
  echo "\$ windlass ${*//$folder\//}"
  "$program" "$@" || [ $? -eq "${expected:-0}" ]
  echo
}

gpt="gpt2:layers=6,hidden=256,heads=8,vocab=256,dropout=0"
size=(--seq 128 --batch 16)

show inspect "$gpt" "${size[@]}"
# What plain training takes, and what there is at the least: exit code 2 says that 1 MiB is too little.
show plan "$gpt" "${size[@]}" --on local --top 4
expected=2 show plan "$gpt" "${size[@]}" --on local --memory 1MiB
show plan "$gpt" "${size[@]}" --on local --memory 120MiB --top 4 -o "$folder/plan.json"
show check "$folder/plan.json"
show train "$folder/plan.json" --data examples/data/harbour.txt --steps 40 --lr 1e-3 --eval-every 20 \
  --checkpoints "$folder/run" --trace "$folder/trace.json"
# Two devices whose memory together is far below what its weights and optimizer state take: packs of
# layers pass through them, or ops are split; the plan is carried out all the same.
show plan "$gpt" "${size[@]}" --on local --devices 2 --memory 24MiB --link-bandwidth 4GB/s --top 4 \
  -o "$folder/two.json"
show train "$folder/two.json" --data examples/data/harbour.txt --steps 20 --lr 1e-3 --trace "$folder/two.trace.json"
# A machine that nobody here owns: what fits four 24 GB cards, beside what one would have done.
expected=2 show simulate gpt2-xl --on 4x3090 --strategy data-parallel --dtype fp16 --batch 16 --top 3
show compare gpt2-xl --on 4x3090 --dtype fp16 --batch 16
# The plan as a page for a browser, with what was measured beside it.
"$program" train "$folder/plan.json" --data examples/data/harbour.txt --steps 6 --lr 1e-3 --json > "$folder/run.jsonl"
show report "$folder/plan.json" --run "$folder/run.jsonl" -o build/demo_report.html
# Exact search: the optimum of PaSE's cost model for its language model on 64 devices.
show plan pase:rnnlm --search exact --cost pase --devices 64
echo "The plan as a page: build/demo_report.html"

#!/bin/sh
# The figures of docs/when_memory_methods_pay.md, and its table of what methods cost at best and at
# worst: scripts/figures.sh [PROGRAM]
set -eu
cd "$(dirname "$0")/.."
program=${1:-build/release/windlass}
mkdir -p docs/figures
answers=$(mktemp -d)
trap 'rm -rf "$answers"' EXIT
draw() {
  name=$1
  shift
  echo "docs/figures/$name.svg: windlass advise $*"
  "$program" advise "$@" --svg "docs/figures/$name.svg" --json > "$answers/$name.json"
}
draw resnet-50 resnet-50 --on 1xv100-16g --runner pytorch
draw bert-large bert-large --on 1xv100-16g --runner pytorch
draw gpt2-medium gpt2-medium --on 1xt4 --runner pytorch
draw swin-l swin-l --on 1xv100-16g --runner pytorch
python3 - "$answers" <<'PY'
import json, pathlib, sys

costs = {}  # by method: (throughput of plain over its own, model, batch)
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    methods = json.loads(path.read_text())["methods"]
    plain = {p["batch"]: p["samples_per_s"] for p in methods[0]["points"] if p["fits"]}
    for method in methods[1:]:
        for point in method["points"]:
            if point["fits"] and point["batch"] in plain:
                ratio = plain[point["batch"]] / point["samples_per_s"]
                costs.setdefault(method["method"], []).append((ratio, path.stem, point["batch"]))
print("| method | at best | at worst |\n|---|---|---|")
for method, list_ in costs.items():
    ends = [f"{r:.2f}x ({model}, batch {batch})" for r, model, batch in (min(list_), max(list_))]
    print(f"| {method} | {ends[0]} | {ends[1]} |")
PY

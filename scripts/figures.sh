#!/bin/sh
# The figures of docs/when_memory_methods_pay.md: scripts/figures.sh [PROGRAM]
set -eu
cd "$(dirname "$0")/.."
program=${1:-build/release/windlass}
mkdir -p docs/figures
draw() {
  name=$1
  shift
  echo "docs/figures/$name.svg: windlass advise $*"
  "$program" advise "$@" --svg "docs/figures/$name.svg" > /dev/null
}
draw resnet-50 resnet-50 --on 1xv100-16g --runner pytorch
draw bert-large bert-large --on 1xv100-16g --runner pytorch
draw gpt2-medium gpt2-medium --on 1xt4 --runner pytorch
draw swin-l swin-l --on 1xv100-16g --runner pytorch

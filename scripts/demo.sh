#!/usr/bin/env bash
# Shows the program at work. WINDLASS may name another build of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program="${WINDLASS:-build/release/windlass}"

show() {
  echo "\$ windlass $*"
  "$program" "$@"
  echo
}

show inspect gpt2-xl
show inspect resnet-50 --batch 32
show inspect llama3-8b --dtype bf16 --optimizer adamw

#!/usr/bin/env bash
# Runs the fuzz targets of a build from a copy of their seed corpus, with their dictionaries.
# Usage: [JOBS=N] [SEED=N] fuzz.sh BUILD-FOLDER SECONDS [TARGET]
# The same seed tries the same inputs in the same order, as far as the time goes; 0 is another seed each time.
# A failing input is left in BUILD-FOLDER/failures/, the log in BUILD-FOLDER/logs/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="$1" seconds="$2" only="${3:-}" jobs="${JOBS:-$(nproc)}" seed="${SEED:-0}"

scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$build/failures" "$build/logs"

# fuzz NAME: one target. Says how it ended.
fuzz() {
  local name="$1" corpus="$scratch/$1" log="$build/logs/$1.log"
  local options=(-seed="$seed" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=65536)
  mkdir "$corpus"
  if [[ -d "fuzz/corpus/$name" ]]; then cp -r "fuzz/corpus/$name/." "$corpus"; fi
  if [[ -f "fuzz/$name.dict" ]]; then options+=("-dict=fuzz/$name.dict"); fi
  if ! "$build/bin/${name}_fuzz" -max_total_time="$seconds" "${options[@]}" \
    -artifact_prefix="$build/failures/$name-" "$corpus" >"$log" 2>&1; then
    tail -n 100 "$log"
    echo "fuzz $name: FAILED; whole log in $log"
    return 1
  fi
  echo "fuzz $name: $(grep -oE '^Done [0-9]+ runs in [0-9]+ second' "$log" || echo done)(s), no failure"
}

found="" failed="" running=0
for source in fuzz/*_fuzz.cpp; do
  [[ -e "$source" ]] || continue
  name="$(basename "$source" _fuzz.cpp)"
  [[ -z "$only" || "$only" == "$name" ]] || continue
  found=yes
  if ((running == jobs)); then
    wait -n || failed=yes
    running=$((running - 1))
  fi
  fuzz "$name" &
  running=$((running + 1))
done
for ((; running > 0; --running)); do wait -n || failed=yes; done
[[ -z "$failed" ]] || exit 1

if [[ -z "$found" ]]; then
  echo "fuzz: no target${only:+ \"$only\"} in fuzz/"
  [[ -z "$only" ]]
fi

#!/usr/bin/env bash
# clang-tidy over windlass/. Usage: tidy.sh BUILD-FOLDER [JOBS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build="$1" jobs="${2:-$(nproc)}"

# The commands in the database are g++'s: clang does not know all its warnings.
quiet=(-quiet -extra-arg=-Wno-unknown-warning-option -extra-arg=-Wno-error)
if command -v run-clang-tidy >/dev/null; then
  run-clang-tidy -p "$build" -j "$jobs" "${quiet[@]}" "^$PWD/windlass/.*\.cpp$" 2>/dev/null |
    sed -e 's/\x1b\[[0-9;]*m//g' -e '/^clang-tidy.* -p=/d'
else
  find windlass -name '*.cpp' -print0 |
    xargs -0 -n 1 -P "$jobs" clang-tidy -p "$build" "${quiet[@]/#-/--}"
fi

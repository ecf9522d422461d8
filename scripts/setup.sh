#!/usr/bin/env bash
# Installs, on Debian or Ubuntu, the packages that are missing. Usage: setup.sh [build|test]
#   build  what the program needs to be built
#   test   (default) that, and what the tests, the fuzzers and the linters need
set -euo pipefail

build_packages=(
  g++ cmake ninja-build make pkg-config git ccache
  libonnx-dev libprotobuf-dev protobuf-compiler
  libtorch-dev libgloo-dev libopenblas0-pthread
  nlohmann-json3-dev libcli11-dev libfmt-dev libcpp-httplib-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)
test_packages=(clang lld clang-format clang-tidy libomp-dev python3)
# Tests that need these are left out where the distribution does not have them.
optional_packages=(chromium chromium-driver fish zsh groff-base python3-torch python3-torchvision python3-onnx libonnx-testdata toulbar2 openmpi-bin iproute2)

profile="${1:-test}"
case "$profile" in
  build) wanted=("${build_packages[@]}") optional=() ;;
  test) wanted=("${build_packages[@]}" "${test_packages[@]}") optional=("${optional_packages[@]}") ;;
  *) echo "setup.sh: profile \"$profile\": expected build or test" >&2; exit 1 ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup.sh: no apt here; needed by other means: ${wanted[*]} ${optional[*]}" >&2
  exit 0
fi

# Prints those of its arguments that are not installed.
missing() {
  (($#)) || return 0
  local installed
  installed="$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)"
  for package in "$@"; do
    grep -qxF "$package installed" <<<"$installed" || echo "$package"
  done
}

as_root() {
  if ((EUID == 0)); then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "setup.sh: neither root nor sudo; ask an administrator to run: $*" >&2
    return 1
  fi
}

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@"; }

updated=""
install() {
  (($#)) || return 0
  echo "setup.sh: installing $*"
  if [[ -z "$updated" ]]; then
    apt update || echo "setup.sh: apt-get update failed; going on with the lists at hand" >&2
    updated=yes
  fi
  apt install -y --no-install-recommends "$@"
}

mapfile -t packages < <(missing "${wanted[@]}")
install "${packages[@]}"

if [[ "$profile" == test ]]; then
  # The sanitizer and fuzzer runtime of the default clang, where it is a package of its own.
  version="$(dpkg-query -W -f='${Depends}' clang | grep -oE 'clang-[0-9]+' | head -n 1 || true)"
  runtime="libclang-rt-${version#clang-}-dev"
  if [[ -n "$(missing "$runtime")" ]] && apt-cache show "$runtime" >/dev/null 2>&1; then
    install "$runtime"
  fi
  mapfile -t packages < <(missing "${optional[@]}")
  for package in "${packages[@]}"; do
    install "$package" || echo "setup.sh: $package is not to be had; its tests are left out" >&2
  done
fi

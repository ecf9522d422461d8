#!/usr/bin/env bash
# Tries the build as a newcomer would: in a fresh, minimal Debian tree that has nothing but make.
#   try_debian.sh SUITE [TARGET...]   SUITE: bookworm (12), trixie (13); TARGET of make, default: demo
#   try_debian.sh --remove SUITE      removes the tree
# The committed state is tried. Needs root, for debootstrap and chroot. Variables:
#   TREE    where the tree lies (/var/tmp/windlass-SUITE); it is kept, for the next time
#   MIRROR  where packages come from (that of this host's own apt sources)
#   JOBS    as of make
#   CACHE   a folder of ccache whose contents are copied into the tree, e.g. that of an earlier tree of the
#           same suite: TREE/root/.cache/ccache; without it a tree starts with none, and keeps its own
# A tree that is there already is used as it is, whoever bootstrapped it. What make says goes to the
# terminal; the exit code is make's.
#
# Nothing of this host is mounted into the tree: the nodes of /dev are the tree's own, and /proc and
# /dev/shm are mounted in a mount namespace that ends with the command. So removal cannot reach
# anything else; it is refused all the same while something is mounted below the tree.
set -euo pipefail

fail() {
  echo "try_debian.sh: $*" >&2
  exit 1
}

remove=""
if [[ "${1:-}" == --remove ]]; then
  remove=yes
  shift
fi
suite="${1:-}"
[[ "$suite" =~ ^[a-z]+$ ]] || fail "expected a suite, e.g. trixie; found \"$suite\""
shift
((EUID == 0)) || fail "needs root, for debootstrap and chroot"
tree="$(realpath -m "${TREE:-/var/tmp/windlass-$suite}")"
[[ "$tree" == /*/* ]] || fail "TREE=$tree: too near the root; name a folder of its own"
jobs="${JOBS:-$(nproc)}"
cache="${CACHE:-}"
[[ -z "$cache" || -d "$cache" ]] || fail "CACHE=$cache: no such folder"

remove_tree() {
  [[ -e "$1" ]] || return 0
  # The fifth column is where a file system is mounted.
  if awk -v tree="$1" '$5 == tree || index($5, tree "/") == 1 {found = 1} END {exit !found}' \
    /proc/self/mountinfo; then
    fail "$1: something is mounted in it; unmount that first (see /proc/self/mountinfo)"
  fi
  rm -rf --one-file-system "$1"
}

if [[ -n "$remove" ]]; then
  remove_tree "$tree"
  remove_tree "$tree.partial"
  exit 0
fi

if [[ ! -d "$tree" ]]; then
  if ! command -v debootstrap >/dev/null; then
    apt-get -q install -y --no-install-recommends debootstrap
  fi
  codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")"
  mirror="${MIRROR:-$(apt-get indextargets --format '$(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
    awk -v release="$codename" '$1 == release {print $2; exit}')}"
  [[ -n "$mirror" ]] || fail "this host's apt sources name no Debian mirror; set MIRROR"
  remove_tree "$tree.partial"
  # Renamed when it is whole.
  debootstrap --variant=minbase --include=make,ca-certificates "$suite" "$tree.partial" "$mirror"
  mv "$tree.partial" "$tree"
fi

cp /etc/resolv.conf "$tree/etc/resolv.conf"
# Every machine has this; debootstrap leaves it to the installer.
[[ -e "$tree/etc/hosts" ]] || printf '127.0.0.1 localhost\n::1 localhost\n' >"$tree/etc/hosts"
# The sources are always fresh; packages and what ccache knows are kept.
remove_tree "$tree/srv/windlass"
mkdir -p "$tree/srv/windlass"
git -C "$(dirname "${BASH_SOURCE[0]}")/.." archive HEAD | tar -x -C "$tree/srv/windlass"

if [[ -n "$cache" ]]; then
  own="$tree/root/.cache/ccache"
  mkdir -p "$own"
  if [[ "$(realpath "$cache")" != "$(realpath "$own")" ]]; then
    cp -a "$cache/." "$own/"
  fi
fi

targets=("$@")
((${#targets[@]})) || targets=(demo)
inside='
  mount -t proc proc "$0/proc"
  mkdir -p "$0/dev/shm"
  mount -t tmpfs tmpfs "$0/dev/shm"
  exec chroot "$0" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    make -C /srv/windlass "$@"'
exec unshare --mount --propagation private --pid --fork --kill-child -- \
  /bin/bash -euc "$inside" "$tree" "JOBS=$jobs" "${targets[@]}"

#!/usr/bin/env bash
# fresh.sh [--short]: proves that the commands of the README work on a fresh machine.
#
# Makes a bare Debian 12 (debootstrap, minbase) with what the README asks for, rustup's toolchain
# and make, copies the files of this checkout into it, and runs `make demo` and `make test-build`
# there, with an empty build cache. --short runs `make setup` and builds proto, net and raftnode
# against the RocksDB of this machine. Mounts, processes, host name and IPC are in namespaces of
# their own, which end with this script; the network of the machine is shared, for downloads.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# Runs in the new root, started by the end of this script.
if [ "${1:-}" = --inside ]; then
  cd /root/jaco
  part "apt: make" sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends make >/dev/null'
  if [ "$2" = short ]; then
    make setup
    # Without optimisation: this proves that everything is there, and nothing is run.
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_OPT_LEVEL=0
    part "building proto, net and raftnode" \
      scripts/cargo.sh build -p jaco-proto -p jaco-net -p jaco-raftnode --locked
  else
    make demo
    make test-build
  fi
  exit 0
fi

[ "$(id -u)" = 0 ] || die "namespaces and debootstrap need root"
mode=full
[ "${1:-}" != --short ] || mode=short
if [ "$mode" = short ] && [ ! -s "$ROCKSDB_LIB_DIR/librocksdb.a" ]; then
  die "no RocksDB on this machine: run make setup first"
fi

# The mirror and the sources of this machine, Debian's only.
sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
  [ ! -s "$file" ] || sources+=("$file")
done
mirror="$(grep -hoE 'https?://[^ ]+/debian/?( |$)' "${sources[@]}" | head -n 1 | tr -d ' ')"
[ -n "$mirror" ] || die "no Debian mirror in /etc/apt"

base="$JACO_CACHE_DIR/fresh/bookworm"
if [ ! -e "$base/.complete" ]; then
  command -v debootstrap >/dev/null ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }
  say "Making a bare Debian 12, once per machine"
  rm -rf "$base"
  mkdir -p "$base"
  part "debootstrap" debootstrap --variant=minbase bookworm "$base" "$mirror" >"$base.log" 2>&1 ||
    { tail -n 20 "$base.log" >&2; die "debootstrap failed"; }
  touch "$base/.complete"
fi

root="$(mktemp -d "$JACO_CACHE_DIR/fresh/root.XXXXXX")"
# The mounts below are in a namespace that has ended by then.
trap 'rm -rf --one-file-system "$root"' EXIT
cp -a "$base/." "$root/"

# copy PATH...: files and folders of this machine that its package clients need.
copy() {
  local path
  for path in "$@"; do
    [ -e "$path" ] || continue
    mkdir -p "$root$(dirname "$path")"
    cp -aT "$path" "$root$path"
  done
}
rm -f "$root/etc/apt/sources.list"
copy "${sources[@]}" /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs \
  /usr/local/share/ca-certificates /usr/share/ca-certificates
for file in /etc/apt/apt.conf.d/*; do
  if grep -qiE 'proxy|::Verify|CaInfo|Check-' "$file"; then copy "$file"; fi
done

# Rustup's toolchain, and cargo's downloads, but nothing that cargo has unpacked or built.
cargo_home="${CARGO_HOME:-$HOME/.cargo}"
toolchain="$(rustc --print sysroot)"
mkdir -p "$root/root/.cargo/registry" "$root/opt/rust"
for folder in index cache; do
  [ ! -d "$cargo_home/registry/$folder" ] || cp -a "$cargo_home/registry/$folder" "$root/root/.cargo/registry/"
done
[ ! -e "$cargo_home/config.toml" ] || cp "$cargo_home/config.toml" "$root/root/.cargo/"

# Downloaded packages are kept for the next run, as cargo's downloads are.
archives="$JACO_CACHE_DIR/fresh/archives"
mkdir -p "$archives"

mkdir "$root/root/jaco"
git ls-files -z --cached --others --exclude-standard | xargs -0 sh -c 'ls -d "$@" 2>/dev/null' _ |
  tar -cf - --no-recursion -T - | tar -xf - -C "$root/root/jaco"
if [ "$mode" = short ]; then
  mkdir -p "$root/root/.cache/jaco/$(basename "$ROCKSDB_LIB_DIR")"
  cp "$ROCKSDB_LIB_DIR/librocksdb.a" "$root/root/.cache/jaco/$(basename "$ROCKSDB_LIB_DIR")/"
fi

say "Running in a bare Debian 12"
status=0
unshare --mount --pid --uts --ipc --fork --kill-child --propagation private \
  bash -euc '
    root=$1 toolchain=$2 mode=$3
    hostname fresh
    mount --bind "$root" "$root"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount --bind "$4" "$root/var/cache/apt/archives"
    mount --bind "$toolchain" "$root/opt/rust"
    mount -o remount,bind,ro "$root/opt/rust"
    # Not chroot: what the engine starts in a container enters the root of the namespace.
    cd "$root"
    pivot_root . mnt
    umount --lazy mnt
    exec /usr/bin/env -i \
      HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 JACO_PARTS=/root/parts \
      PATH=/opt/rust/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
      bash /root/jaco/scripts/fresh.sh --inside "$mode"
  ' fresh "$root" "$toolchain" "$mode" "$archives" || status=$?
[ -z "${JACO_PARTS:-}" ] || [ ! -s "$root/root/parts" ] || cat "$root/root/parts" >>"$JACO_PARTS"
[ "$status" = 0 ] || die "a fresh machine does not get through this (status $status)"
say "A bare Debian 12 with rustup's toolchain and make gets through all of it"

#!/usr/bin/env bash
# rocksdb.sh: compiles RocksDB into $ROCKSDB_LIB_DIR/librocksdb.a, unless it is there.
#
# The sources, defines and flags are those of the crate librocksdb-sys. Its own build compiles some
# 340 files one by one and reads the same headers for each; here a few translation units include a
# share of the files each, which takes a quarter of the processor time. If a unit does not compile,
# the crate's own build is used instead.
#   ROCKSDB_UNITS=20   number of translation units (default: 10, or 30 if memory is short)
#   ROCKSDB_UNITY=no   use the crate's own build
set -euo pipefail
. "$(dirname "$0")/lib.sh"

archive="$ROCKSDB_LIB_DIR/librocksdb.a"
[ ! -s "$archive" ] || exit 0
exec 9>"$JACO_CACHE_DIR/rocksdb.lock"
flock 9
[ ! -s "$archive" ] || exit 0

version="$(rocksdb_version)"
build="$(mktemp -d "$JACO_CACHE_DIR/rocksdb-build.XXXXXX")"
trap 'rm -rf "$build"' EXIT

# install_archive FILE: renames into place, so that a half-copied archive is never linked.
install_archive() {
  mkdir -p "$ROCKSDB_LIB_DIR"
  cp "$1" "$ROCKSDB_LIB_DIR/.librocksdb.a.new"
  mv "$ROCKSDB_LIB_DIR/.librocksdb.a.new" "$archive"
}

# package_dir NAME: the unpacked source of a locked dependency.
package_dir() {
  python3 -c '
import json, os, sys
name, packages = sys.argv[1], json.load(sys.stdin)["packages"]
print(next(os.path.dirname(p["manifest_path"]) for p in packages if p["name"] == name))
' "$1" <"$build/metadata.json"
}

# write_units DIR COUNT: splits the list of sources into COUNT files of #include lines of about
# equal size in bytes; the crate's version stamp stands in for util/build_version.cc.
write_units() {
  python3 - "$1" "$2" "$build" <<'PYTHON'
import os, sys
crate, count, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(f"{crate}/rocksdb_lib_sources.txt") as listing:
    names = [line.strip() for line in listing if line.strip()]
sources = [f"{crate}/rocksdb/{name}" for name in names if name != "util/build_version.cc"]
sources.append(f"{crate}/build_version.cc")
sizes = [os.path.getsize(source) for source in sources]
units, done, total = [[] for _ in range(count)], 0, sum(sizes)
for source, size in zip(sources, sizes):
    units[min(done * count // total, count - 1)].append(source)
    done += size
for number, unit in enumerate(units, 1):
    with open(f"{out}/unit{number:02}.cc", "w") as file:
        file.writelines(f'#include "{source}"\n' for source in unit)
PYTHON
}

# unity_build: one object a unit, as many at once as processors and memory allow.
unity_build() {
  local crate lz4 units jobs available host started=$SECONDS
  cargo fetch --locked --quiet --manifest-path "$ROOT/Cargo.toml" || return 1
  cargo metadata --locked --format-version 1 --manifest-path "$ROOT/Cargo.toml" >"$build/metadata.json" || return 1
  crate="$(package_dir librocksdb-sys)"
  lz4="$(package_dir lz4-sys)/liblz4/lib"
  # A unit of ten takes up to 1.7 GiB, one of thirty half of it.
  available=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) / 1024))
  units=10
  ((available >= 2048)) || units=30
  units="${ROCKSDB_UNITS:-$units}"
  jobs=$((available / 2048))
  ((jobs <= $(nproc))) || jobs="$(nproc)"
  ((jobs > 0)) || jobs=1
  write_units "$crate" "$units" || return 1

  local -a flags=(
    -std=c++20 -O2 -fPIC -w -include cstdint -ffunction-sections -fdata-sections
    -I"$crate/rocksdb/include" -I"$crate/rocksdb" -I"$crate" -I"$lz4"
    -I"$crate/rocksdb/third-party/gtest-1.8.1/fused-src"
    -DNDEBUG=1 -DLZ4=1 -DHAVE_ALIGNED_NEW -DHAVE_UINT128_EXTENSION
    -DOS_LINUX -DROCKSDB_PLATFORM_POSIX -DROCKSDB_LIB_IO_POSIX -DROCKSDB_SCHED_GETCPU_PRESENT
    -DROCKSDB_AUXV_GETAUXVAL_PRESENT -DROCKSDB_FALLOCATE_PRESENT -DROCKSDB_RANGESYNC_PRESENT
  )
  host="$(uname -m)"
  [ "$host" != x86_64 ] || flags+=(-msse2)

  say "Compiling RocksDB (librocksdb-sys $version) as $units units, $jobs at a time; about 4 minutes on two cores, once per machine"
  printf '%s\n' "$build"/unit*.cc | xargs -P "$jobs" -I{} bash -c '
    started=$SECONDS unit="$1"
    shift
    "${CXX:-g++}" "$@" -c "$unit" -o "${unit%.cc}.o" || exit 255
    printf "    %s: %d s\n" "$(basename "$unit" .cc)" "$((SECONDS - started))"
  ' unit {} "${flags[@]}" || return 1
  ar crs "$build/librocksdb.a" "$build"/unit*.o || return 1
  say "Compiled RocksDB in $((SECONDS - started)) s"
  install_archive "$build/librocksdb.a"
}

# crate_build: what librocksdb-sys does by itself when no archive is given to it.
crate_build() {
  local product
  say "Compiling RocksDB with the crate's own build (librocksdb-sys $version); about 25 minutes on two cores, once per machine"
  mkdir "$build/src"
  cat >"$build/Cargo.toml" <<TOML
[package]
name = "rocksdb-build"
version = "0.0.0"
edition = "2021"

[dependencies]
librocksdb-sys = { version = "=${version%%+*}", default-features = false, features = ["bindgen-runtime", "lz4"] }

[workspace]
TOML
  echo 'fn main() {}' >"$build/src/main.rs"
  (
    cd "$build"
    unset ROCKSDB_LIB_DIR ROCKSDB_STATIC
    CARGO_TARGET_DIR="$build/target" cargo build --release --quiet
  )
  product="$(find "$build/target" -name librocksdb.a | head -n 1)"
  [ -n "$product" ] || die "the RocksDB build left no librocksdb.a"
  install_archive "$product"
}

if [ "${ROCKSDB_UNITY:-yes}" = yes ]; then
  unity_build && exit 0
  say "A unit did not compile"
fi
crate_build

#!/usr/bin/env bash
# Installs what building, testing and the demo need: Debian packages, then RocksDB, compiled
# once. Idempotent: a second run finds everything and changes nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

packages=(
  # Building: a C++ compiler and libclang for RocksDB and its bindings, protoc for the contract.
  clang g++ libclang-dev make pkg-config protobuf-compiler
  # Running: the container engine, a static shell for images built here, an HTTP client.
  busybox-static ca-certificates curl docker.io iproute2
  # Testing: a second engine, a real registry with passwords, clocks that can be set, and a foreign
  # gRPC client, which lives in a virtual environment.
  aardvark-dns apache2-utils docker-registry libfaketime netavark podman
  python3 python3-venv util-linux
)

policy=
build=
cleanup() {
  [ -z "$policy" ] || rm -f "$policy"
  [ -z "$build" ] || rm -rf "$build"
}
trap cleanup EXIT

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
    missing+=("$package")
done
if ((${#missing[@]})); then
  say "Installing Debian packages: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "run as root, or install these packages first"
  apt-get update -qq
  # The engine is started on demand by the demo and the tests, never by its package.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    "${missing[@]}" >/dev/null
fi

command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup"

if [ ! -s "$ROCKSDB_LIB_DIR/librocksdb.a" ]; then
  mkdir -p "$JACO_CACHE_DIR"
  exec 9>"$JACO_CACHE_DIR/rocksdb.lock"
  flock 9
fi
if [ ! -s "$ROCKSDB_LIB_DIR/librocksdb.a" ]; then
  version="$(rocksdb_version)"
  say "Compiling RocksDB (librocksdb-sys $version); about 12 minutes on two cores, once per machine"
  build="$(mktemp -d "$JACO_CACHE_DIR/rocksdb-build.XXXXXX")"
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
  mkdir -p "$ROCKSDB_LIB_DIR"
  archive="$(find "$build/target" -name librocksdb.a | head -n 1)"
  [ -n "$archive" ] || die "the RocksDB build left no librocksdb.a"
  # Renamed into place, so that a half-copied archive is never linked.
  cp "$archive" "$ROCKSDB_LIB_DIR/.librocksdb.a.new"
  mv "$ROCKSDB_LIB_DIR/.librocksdb.a.new" "$ROCKSDB_LIB_DIR/librocksdb.a"
fi
say "Ready: packages installed, RocksDB $(rocksdb_version) in $ROCKSDB_LIB_DIR"

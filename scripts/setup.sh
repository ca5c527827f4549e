#!/usr/bin/env bash
# Installs what building, testing and the demo need: Debian packages, then RocksDB, compiled
# once. Idempotent: a second run finds everything and changes nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/packages.sh"
cd "$ROOT"

packages=(
  # Building: a C++ compiler and libclang for RocksDB and its bindings, the libraries of nf_tables.
  g++ libclang-dev libmnl-dev libnftnl-dev make pkg-config
  # Running: the container engine, a static shell for images built here, an HTTP client.
  busybox-static ca-certificates curl docker.io iproute2 mount util-linux
  # Testing: what the kernel says of rules and tunnels that we wrote, a peer of another make, a second
  # engine, a real registry with passwords, clocks that can be set, a certificate authority, and a
  # foreign gRPC client, which lives in a virtual environment; git lists the files that a check reads.
  aardvark-dns apache2-utils docker-registry iptables libfaketime netavark nftables pebble podman
  tcpdump wireguard-go wireguard-tools
  git python3 python3-venv
)

install_packages "Debian packages" "${packages[@]}"

command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup"

[ -s "$ROCKSDB_LIB_DIR/librocksdb.a" ] || part "RocksDB" scripts/rocksdb.sh
say "Ready: packages installed, RocksDB $(rocksdb_version) in $ROCKSDB_LIB_DIR"

#!/bin/sh
# protoc.sh ARGUMENTS...: the machine's protoc, or the one that the crate protobuf-build ships.
# The build script of raft-proto finds it by the variable PROTOC (.cargo/config.toml).
set -eu
if command -v protoc >/dev/null; then exec protoc "$@"; fi
host="$(uname -m)"
[ "$host" != aarch64 ] || host=aarch_64
for shipped in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/protobuf-build-*/bin/"protoc-linux-$host"; do
  [ ! -x "$shipped" ] || exec "$shipped" "$@"
done
echo "no protoc: install it (Debian: protobuf-compiler), or set PROTOC" >&2
exit 1

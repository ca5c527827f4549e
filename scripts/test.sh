#!/usr/bin/env bash
# Runs every test: unit, property, actor and end-to-end tests against a real engine. Installs what
# is missing first. A failing suite does not keep the others from running; the end says what failed.
#   test.sh --build-only     builds every test program, and runs none
#   test.sh ARGUMENTS...     passes ARGUMENTS to every test program
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

scripts/setup.sh
say "Building all tests"
part "building all tests" cargo build --workspace --all-targets --locked
[ "${1:-}" != --build-only ] || exit 0
# These tests install the packages of their clients once, which they cannot beside a private engine.
if [ ! -e "$JACO_CACHE_DIR/grpcio-venv/bin/python3" ] || [ ! -e "$JACO_CACHE_DIR/aioquic-venv/bin/python3" ]; then
  part "the packages of the foreign clients" cargo test --workspace --locked --test foreign || true
fi
exec scripts/engine.sh scripts/suites.sh "$@"

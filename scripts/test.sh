#!/usr/bin/env bash
# Runs every test: unit, property, actor and end-to-end tests against a real engine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

say "Building all tests"
cargo build --workspace --all-targets --locked
say "Running all tests (engine: $JACO_DOCKER_SOCKET)"
cargo test --workspace --locked -- "$@"
say "All tests passed"

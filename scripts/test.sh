#!/usr/bin/env bash
# Runs every test: unit, property, actor and end-to-end tests against a real engine.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# Many tests wait for a container, or for nothing to happen: more of them at once than there are
# cores cost little, and those that load the machine take turns (chaos/src/turn.rs).
cores="$(nproc)"
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((cores > 4 ? cores : 4))}"
say "Building all tests"
cargo build --workspace --all-targets --locked
say "Running all tests (engine: $JACO_DOCKER_SOCKET)"
cargo test --workspace --locked -- "$@"
say "Running the engine's tests on Podman"
# The same packages as above: another selection would compile everything with other features.
scripts/podman.sh cargo test --workspace --locked --no-fail-fast \
  --test engine_rules --test network_docker --test runtime_docker -- "$@"
say "All tests passed"

#!/usr/bin/env bash
# suites.sh [ARGUMENTS...]: runs every test program, then the engine's tests once more on Podman,
# and sums up. Runs under engine.sh, with what test.sh has built.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# Many tests wait for a container or a timeout, so more of them than there are cores run at once;
# tests that load the machine take permits (jaco-chaos).
cores="$(nproc)"
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((cores > 4 ? cores : 4))}"
log="$(mktemp)"
trap 'rm -f "$log"' EXIT

# suites NAME COMMAND...: runs COMMAND, keeps what it prints, and goes on if it fails.
failed=0
suites() {
  local name=$1
  shift
  say "Running $name"
  part "$name" "$@" 2>&1 | tee -a "$log" || failed=1
}

suites "all tests" cargo test --workspace --locked --no-fail-fast -- "$@"
# The same packages as above: another selection would compile everything with other features.
suites "the engine's tests on Podman" \
  scripts/podman.sh cargo test --workspace --locked --no-fail-fast \
  --test engine_rules --test network_docker --test runtime_docker -- "$@"

scripts/summary.py "$log" || failed=1
exit "$failed"

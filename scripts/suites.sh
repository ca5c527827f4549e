#!/usr/bin/env bash
# suites.sh [ARGUMENTS...]: runs every test program, then the engine's tests once more on Podman,
# and sums up. Runs under engine.sh, with what test.sh has built.
#
# A test of an engine or a namespace that fails is run again, once, alone (rerun.py). If it passes
# then, it is listed as FLAKY and the run passes.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

# Many tests wait for a container or a timeout, so more of them than there are cores run at once;
# tests that load the machine take permits (jaco-chaos).
cores="$(nproc)"
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((cores > 4 ? cores : 4))}"
# No test program runs for longer than 15 minutes.
host="$(rustc -vV | sed -n 's/^host: //p')"
runner="CARGO_TARGET_$(tr a-z- A-Z_ <<<"$host")_RUNNER"
export "$runner=$ROOT/scripts/program.py"

logs="$(mktemp -d)"
trap 'rm -rf "$logs"' EXIT
runs=()

# suites NAME ARGUMENTS...: runs test programs under the command in the array `prefix`, keeps what
# they print, and goes on if one fails.
suites() {
  local name=$1 log="$logs/${#runs[@]}" status=0
  shift
  say "Running $name"
  part "$name" "${prefix[@]}" cargo test --workspace --locked --no-fail-fast "$@" 2>&1 |
    tee "$log" || status=$?
  if [ "$status" != 0 ] && grep -q '^test result: FAILED' "$log"; then
    part "failed tests again" "${prefix[@]}" scripts/rerun.py "$log" "$log.reruns" || true
  fi
  runs+=("$log=$status")
}

prefix=()
suites "all tests" -- "$@"
# The same packages as above: another selection would compile everything with other features.
prefix=(scripts/podman.sh)
suites "the engine's tests on Podman" \
  --test engine_rules --test network_docker --test runtime_docker -- "$@"

scripts/summary.py "${runs[@]}"

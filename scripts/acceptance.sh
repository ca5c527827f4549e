#!/usr/bin/env bash
# What a cluster of several nodes promises, in full. Takes hours; arguments pick tests by name.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

export JACO_KILLS="${JACO_KILLS:-50}" JACO_NODES="${JACO_NODES:-9}"
export JACO_ROUNDS="${JACO_ROUNDS:-20}" JACO_CALM_SECONDS="${JACO_CALM_SECONDS:-600}"
export JACO_HALF_OPEN="${JACO_HALF_OPEN:-10000}" JACO_NOISE="${JACO_NOISE:-100000}"
export JACO_BACKUPS="${JACO_BACKUPS:-20}" JACO_BEHIND="${JACO_BEHIND:-200000}"
say "Building"
cargo build -p jaco-cli -p jaco-chaos --bins --locked
say "Running: kills=$JACO_KILLS nodes=$JACO_NODES rounds=$JACO_ROUNDS calm=${JACO_CALM_SECONDS}s"
cargo test -p jaco-chaos --locked --test cluster -- --nocapture --test-threads=1 "$@"

#!/usr/bin/env bash
# Runs the full form of the cluster tests with the release build: takes hours, on a machine that
# runs nothing else. Arguments select cluster tests by name.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

export JACO_KILLS="${JACO_KILLS:-50}" JACO_NODES="${JACO_NODES:-9}"
export JACO_ROUNDS="${JACO_ROUNDS:-20}" JACO_CALM_SECONDS="${JACO_CALM_SECONDS:-600}"
export JACO_HALF_OPEN="${JACO_HALF_OPEN:-10000}" JACO_NOISE="${JACO_NOISE:-100000}"
export JACO_STEPS="${JACO_STEPS:-1000}" JACO_MEBIBYTES="${JACO_MEBIBYTES:-1024}"
export JACO_BACKUPS="${JACO_BACKUPS:-20}" JACO_BEHIND="${JACO_BEHIND:-200000}"
# The ingress under load (chaos/tests/ingress).
export JACO_REPLICA_KILLS="${JACO_REPLICA_KILLS:-100}" JACO_NODE_KILLS="${JACO_NODE_KILLS:-20}"
export JACO_LOAD_PERCENT="${JACO_LOAD_PERCENT:-80}"
export JACO_SWAPS="${JACO_SWAPS:-100}" JACO_RESTARTS="${JACO_RESTARTS:-20}"
export JACO_WITHDRAWALS="${JACO_WITHDRAWALS:-100}" JACO_ACTOR_KILLS="${JACO_ACTOR_KILLS:-300}"
# Assert limits of times and rates instead of only printing them.
export JACO_LIMITS="${JACO_LIMITS:-1}" JACO_CATCH_UP_SHARE="${JACO_CATCH_UP_SHARE:-80}"
say "Building (release profile)"
cargo build --release -p jaco-cli -p jaco-chaos --bins --locked
export JACO_BIN_DIR="$CARGO_TARGET_DIR/release"
say "Running: kills=$JACO_KILLS nodes=$JACO_NODES rounds=$JACO_ROUNDS calm=${JACO_CALM_SECONDS}s steps=$JACO_STEPS"
in_full() {
  cargo test --release -p jaco-chaos --locked --test "$1" -- --nocapture --test-threads=1 "${@:2}"
}
in_full cluster "$@"
# Isolation and the mesh under random changes, and large transfers over it.
(($#)) || in_full network
# The same amount through the data plane alone, which replaces its keys every two seconds.
(($#)) || cargo test --release -p jaco-net --locked --lib -- --nocapture --exact \
  wireguard::tests::large_transfer_is_intact_while_keys_are_replaced
# Certificates, with leaders killed in the middle of orders; requests under load while replicas, nodes
# and actors are killed, certificates and daemons replaced and replicas withdrawn.
(($#)) || in_full ingress
# A single node, which restarts within its limit after each power cut.
(($#)) || in_full faults daemon_kills

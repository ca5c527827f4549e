#!/usr/bin/env bash
# Runs all benchmarks and prints their figures; asserts nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

say "Building the benchmarks (release profile)"
cargo build --release --locked -p jaco-cli -p jaco-bench --bins
export JACO_BIN_DIR="$CARGO_TARGET_DIR/release"
for bench in manifest cli raft_propose raft_replicate raft_snapshot apply_replicas idle cold_start follow_logs dns_answers \
  mesh_peers mesh_throughput firewall_ruleset idle_network ingress_http port_tcp; do
  say "$bench"
  "$JACO_BIN_DIR/$bench"
done

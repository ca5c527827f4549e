#!/usr/bin/env bash
# Runs all benchmarks and prints their figures; asserts nothing. Installs the Debian packages of the
# servers that are measured beside ours.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/packages.sh"
cd "$ROOT"

# The upstream of the ingress, and its certificate.
install_packages "Debian packages of benchmarks" nginx-light openssl
# Further servers to compare with: proxies, and name servers. A benchmark leaves out those that are missing.
for package in caddy haproxy dnsmasq-base unbound; do
  install_packages "$package" "$package" || say "$package could not be installed: it is left out"
done

say "Building the benchmarks (release profile)"
cargo build --release --locked -p jaco-cli -p jaco-bench --bins
export JACO_BIN_DIR="$CARGO_TARGET_DIR/release"
for bench in manifest cli raft_propose raft_replicate raft_snapshot apply_replicas idle cold_start follow_logs dns_answers \
  mesh_peers mesh_throughput firewall_ruleset idle_network ingress_http tls_handshakes \
  ingress_features ingress_swap ingress_memory tls_certificates port_tcp; do
  say "$bench"
  "$JACO_BIN_DIR/$bench"
done

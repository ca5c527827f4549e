#!/usr/bin/env bash
# The read-only checks: formatting, clippy, documentation, dependency policy.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

say "cargo fmt --check"
cargo fmt --all --check
say "Words of comments, documents and test names"
scripts/prose.py
say "cargo clippy -D warnings"
cargo clippy --workspace --all-targets --locked -- -D warnings
say "Boundaries of the pure crates"
# A build of the whole workspace enables every feature; alone, these crates have no gRPC and no runtime.
cargo check --locked --quiet -p jaco-state -p jaco-policy
# forbid CRATE PATTERN WHY: fails if a normal dependency of CRATE, itself aside, matches PATTERN.
forbid() {
  local tree found
  tree="$(cargo tree --locked -p "$1" -e normal --prefix none)"
  found="$(grep -v "^$1 " <<<"$tree" | grep -E "$2" | sort -u || true)"
  [ -z "$found" ] || die "$1 $3, but depends on: $found"
}
for pure in jaco-state jaco-policy; do
  forbid "$pure" '^(tokio|bollard|rocksdb|hyper|quinn|rustls|ractor) ' "is pure"
done
forbid jaco-supervision '^jaco-' "is for any program"
say "cargo doc -D warnings"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet

deny="$JACO_CACHE_DIR/tools/bin/cargo-deny"
if [ ! -x "$deny" ]; then
  say "Installing cargo-deny, once per machine"
  cargo install cargo-deny --locked --quiet --root "$JACO_CACHE_DIR/tools"
fi
say "cargo deny check"
"$deny" check --hide-inclusion-graph bans licenses sources
# The advisory database is a git repository on the internet; a machine that cannot reach it
# checks everything else.
if ! "$deny" --log-level error fetch db >/dev/null 2>&1; then
  say "The advisory database is out of reach: advisories were not checked"
else
  "$deny" check --hide-inclusion-graph advisories
fi

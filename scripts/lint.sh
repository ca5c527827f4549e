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
# depends_on CRATE PATTERN: CRATE's normal dependencies that match, for a message.
depends_on() { cargo tree --locked -p "$1" -e normal --prefix none | grep -E "$2" | sort -u || true; }
for pure in jaco-state jaco-policy; do
  found="$(depends_on "$pure" '^(tokio|bollard|rocksdb|hyper|quinn|rustls|ractor) ')"
  [ -z "$found" ] || die "$pure is pure, but depends on: $found"
done
found="$(depends_on jaco-supervision '^jaco-' | grep -v '^jaco-supervision ' || true)"
[ -z "$found" ] || die "jaco-supervision is for any program, but depends on: $found"
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

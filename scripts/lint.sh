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

#!/usr/bin/env bash
# Runs simulated clusters from many seeds, or one seed with its trace; fails if one does.
#   SEEDS=1000 FROM=1      how many, and the first
#   SEED=7                 this one, with less and less of what went wrong if it fails
#   NUISANCE=ShortPauses   nothing happens but this (or Loss, Delay), and nothing may move
#   MUTATION=SkipSync      with a bug planted; without SEED it fails unless the bug is found
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

arguments=()
if [[ -n "${SEED:-}" ]]; then
  arguments+=(--seed "$SEED")
else
  arguments+=(--seeds "${SEEDS:-1000}" --from "${FROM:-1}")
fi
[[ -z "${MUTATION:-}" ]] || arguments+=(--mutation "$MUTATION")
[[ -z "${NUISANCE:-}" ]] || arguments+=(--nuisance "$NUISANCE")
cargo build -p jaco-chaos --bin jaco-sim --locked
exec "$CARGO_TARGET_DIR/debug/jaco-sim" "${arguments[@]}"

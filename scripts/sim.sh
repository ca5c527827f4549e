#!/usr/bin/env bash
# Runs simulated clusters from many seeds, or one seed with its trace; fails if a run fails.
#   SEEDS=1000 FROM=1      number of seeds, and the first
#   SEED=7                 only this seed; a failing run is printed, then repeated with fewer and
#                          fewer faults, at most SHRINK_RUNS=300 times and SHRINK_SECONDS=60
#   NUISANCE=ShortPauses   only this benign fault (or Loss, Delay); no replica may move
#   OFTEN=Stalls           much of this, beside all other faults (or Churn, PausedPulls,
#                          PausedCreates, Contention, Issuance)
#   MUTATION=SkipSync      plants a bug; without SEED it fails unless the bug is found
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
[[ -z "${SHRINK_RUNS:-}" ]] || arguments+=(--shrink-runs "$SHRINK_RUNS")
[[ -z "${SHRINK_SECONDS:-}" ]] || arguments+=(--shrink-seconds "$SHRINK_SECONDS")
[[ -z "${OFTEN:-}" ]] || arguments+=(--often "$OFTEN")
cargo build -p jaco-chaos --bin jaco-sim --locked
exec "$CARGO_TARGET_DIR/debug/jaco-sim" "${arguments[@]}"

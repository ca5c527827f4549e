#!/usr/bin/env bash
# Runs cargo with the shared build cache and the machine's RocksDB.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
exec cargo "$@"

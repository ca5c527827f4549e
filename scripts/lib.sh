# Shared by the other scripts: where things are cached, how they say what they do.
# No file is ever created in the checkout.

JACO_CACHE_DIR="${JACO_CACHE_DIR:-${HOME:-/root}/.cache/jaco}"
export JACO_CACHE_DIR
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$JACO_CACHE_DIR/target}"
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# part NAME COMMAND...: runs COMMAND and records its duration for the table of timed.sh.
part() {
  local name=$1 start=$SECONDS status=0
  shift
  "$@" || status=$?
  [ -z "${JACO_PARTS:-}" ] || printf '%d\t%s\n' "$((SECONDS - start))" "$name" >>"$JACO_PARTS"
  return "$status"
}

# RocksDB is compiled once per machine and linked from here by every profile and checkout.
rocksdb_version() {
  awk '/^name = "librocksdb-sys"$/ { getline; gsub(/[^0-9A-Za-z.+-]|version/, ""); print; exit }' "$ROOT/Cargo.lock"
}
ROCKSDB_LIB_DIR="${ROCKSDB_LIB_DIR:-$JACO_CACHE_DIR/rocksdb-$(rocksdb_version)}"
export ROCKSDB_LIB_DIR
export ROCKSDB_STATIC=1

# Cargo tells checkouts of one workspace apart only by the times of their files. With one cache
# for all of them, another checkout's products must not pass for this one's.
if [ -d "$CARGO_TARGET_DIR" ] && [ "$(cat "$CARGO_TARGET_DIR/.checkout" 2>/dev/null)" != "$ROOT" ]; then
  find "$ROOT" \( -name '*.rs' -o -name '*.proto' -o -name '*.tsv' \) -not -path '*/target/*' -exec touch {} +
fi
mkdir -p "$CARGO_TARGET_DIR"
printf '%s\n' "$ROOT" >"$CARGO_TARGET_DIR/.checkout"

#!/usr/bin/env bash
# Fuzzes the parsers of untrusted input: make fuzz [TARGET=name] [SECONDS=n] [MINIMIZE=1].
# Works with the stable toolchain; needs a C++ compiler, which `make setup` installs.
#
# The working corpus is in the cache, seeded from fuzz/corpus. With MINIMIZE=1 the inputs of
# fuzz/corpus that are named by their hash are replaced by a minimal set with the coverage of the
# working corpus, at most KEEP of them.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

seconds="${SECONDS_EACH:-60}"
keep="${KEEP:-80}"
triple="$(rustc -vV | sed -n 's/^host: //p')"
mapfile -t targets < <(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' fuzz/Cargo.toml)
if [ -n "${TARGET:-}" ]; then
  [ -f "fuzz/fuzz_targets/$TARGET.rs" ] || die "no such target; there are: ${targets[*]}"
  targets=("$TARGET")
fi

say "Building the fuzz targets, with coverage counters in every crate"
flags=(
  -Cpasses=sancov-module
  -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
  -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
)
# With --target the flags apply to the targets only, not to build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --profile fuzz --target "$triple" --locked \
  -p jaco-fuzz --bins --features libfuzzer

work="$JACO_CACHE_DIR/fuzz"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
status=0
for target in "${targets[@]}"; do
  program="$CARGO_TARGET_DIR/$triple/fuzz/$target"
  corpus="$work/corpus/$target" found="$work/found/$target"
  mkdir -p "$corpus" "$found"
  words="$scratch/$target.dict"
  cat fuzz/dict/*.dict >"$words"
  if [ "$seconds" != 0 ]; then
    say "Fuzzing $target for $seconds s"
    nice "$program" "$corpus" "fuzz/corpus/$target" -dict="$words" -max_len=8192 \
      -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -use_value_profile=1 \
      -artifact_prefix="$found/" -print_final_stats=1 -verbosity=1 2>"$work/$target.log" || {
      status=1
      tail -n 40 "$work/$target.log"
      printf 'error: %s found something, see %s and %s\n' "$target" "$found" "$work/$target.log" >&2
    }
    grep -E '^(Done|stat::)|^#[0-9]+.*DONE' "$work/$target.log" || true
  fi
  if [ -n "${MINIMIZE:-}" ]; then
    mkdir "$scratch/$target"
    nice "$program" -set_cover_merge=1 -use_counters=0 -max_len=4096 -timeout=10 \
      "$scratch/$target" "fuzz/corpus/$target" "$corpus" >/dev/null 2>&1
    find "fuzz/corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
    find "$scratch/$target" -type f -printf '%s %p\n' | sort -n | head -n "$keep" |
      cut -d' ' -f2- | xargs -r cp -n -t "fuzz/corpus/$target"
    say "$target: $(find "fuzz/corpus/$target" -type f | wc -l) inputs kept of $(find "$corpus" -type f | wc -l)"
  fi
done
exit "$status"

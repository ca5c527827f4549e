#!/usr/bin/env bash
# timed.sh NAME COMMAND...: runs COMMAND, then prints how long it and each of its parts took.
# A part is what a script runs by `part` (lib.sh).
set -uo pipefail
name=$1
shift
outer="${JACO_PARTS:-}"
parts="$(mktemp)"
trap 'rm -f "$parts"' EXIT
# An interrupt ends COMMAND, which cleans up; the times are printed all the same.
trap : INT TERM
status=0
JACO_PARTS="$parts" "$@" || status=$?
printf '\033[1m==> %s: %d min %d s\033[0m\n' "$name" "$((SECONDS / 60))" "$((SECONDS % 60))"
awk -F '\t' '{ printf "    %3d min %2d s  %s\n", $1 / 60, $1 % 60, $2 }' "$parts"
if [ -n "$outer" ]; then
  printf '%d\t%s\n' "$SECONDS" "$name" >>"$outer"
  awk -F '\t' -v OFS='\t' '{ print $1, "  " $2 }' "$parts" >>"$outer"
fi
exit "$status"

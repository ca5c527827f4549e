#!/usr/bin/env bash
# lab.sh up [N] [OPTIONS]: several machines on this one, left running; lab.sh down: away with them.
# Anything else goes to jaco-lab as it is.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

lab="$CARGO_TARGET_DIR/debug/jaco-lab"
[ -x "$lab" ] || die "jaco-lab is not built: make lab"
if [ "${1:-}" != down ]; then
  exec "$lab" "$@"
fi
# Only those that answer are somebody's to play with; a test's lab has no control socket.
for name in $("$lab" list | awk '{ print $1 }'); do
  [ ! -S "/tmp/$name/control" ] || "$lab" --lab "$name" down
done
"$lab" clean

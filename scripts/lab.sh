#!/usr/bin/env bash
# lab.sh up [N] [OPTIONS] builds several machines on this one and leaves them running; lab.sh down
# removes them. All other arguments are passed to jaco-lab unchanged.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

lab="$CARGO_TARGET_DIR/debug/jaco-lab"
[ -x "$lab" ] || die "jaco-lab is not built: make lab"
if [ "${1:-}" != down ]; then
  exec "$lab" "$@"
fi
# Only labs with a control socket were started by `up`; labs of tests have none.
for name in $("$lab" list | awk '{ print $1 }'); do
  [ ! -S "/tmp/$name/control" ] || "$lab" --lab "$name" down
done
"$lab" clean

#!/usr/bin/env bash
# engine.sh COMMAND...: runs COMMAND with a container engine, whose socket is in JACO_DOCKER_SOCKET.
# Uses the engine of the machine if one answers; otherwise starts a private dockerd, and removes it
# with all its objects when COMMAND ends.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

socket="${JACO_DOCKER_SOCKET:-/var/run/docker.sock}"
answers() { curl -fsS --max-time 5 --unix-socket "$1" http://localhost/_ping >/dev/null 2>&1; }

if answers "$socket"; then
  JACO_DOCKER_SOCKET="$socket" exec "$@"
fi

[ "$(id -u)" = 0 ] || die "no container engine answers at $socket, and starting one needs root"
work="$(mktemp -d /tmp/jaco-engine.XXXXXX)"
socket="$work/docker.sock"
say "Starting a private container engine in $work"
# In a session of its own: an interrupt ends this script, which then ends the engine. A truncated
# layer is retried once, not five times in 75 s: tests check the retries of the daemon.
setsid dockerd \
  --host "unix://$socket" --data-root "$work/data" --exec-root "$work/exec" \
  --pidfile "$work/dockerd.pid" --bridge none --log-level warn \
  --max-download-attempts 1 >"$work/dockerd.log" 2>&1 &
engine=$!
stop() {
  if kill -0 "$engine" 2>/dev/null; then
    docker -H "unix://$socket" ps -aq 2>/dev/null |
      xargs -r docker -H "unix://$socket" rm -f >/dev/null 2>&1 || true
    docker -H "unix://$socket" network ls -q --filter type=custom 2>/dev/null |
      xargs -r docker -H "unix://$socket" network rm >/dev/null 2>&1 || true
    kill "$engine"
    wait "$engine" 2>/dev/null || true
  fi
  # Overlay mounts may outlive a container by a moment.
  for mount in $(awk -v dir="$work/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r); do
    umount -l "$mount" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap stop EXIT
for _ in $(seq 1 150); do
  answers "$socket" && break
  kill -0 "$engine" 2>/dev/null || { cat "$work/dockerd.log" >&2; die "dockerd did not start"; }
  sleep 0.2
done
answers "$socket" || { cat "$work/dockerd.log" >&2; die "dockerd did not answer in 30 s"; }

status=0
JACO_DOCKER_SOCKET="$socket" "$@" || status=$?
exit "$status"

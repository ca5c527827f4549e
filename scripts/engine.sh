#!/usr/bin/env bash
# engine.sh COMMAND...: runs COMMAND with a container engine, whose socket is in JACO_DOCKER_SOCKET.
# Uses the engine of the machine if one answers; otherwise starts a private dockerd, and removes it
# with all its objects when COMMAND ends.
#
# A dockerd sets the forwarding policy of its network namespace to DROP, which cuts off the bridges
# of everything else there. So the private one and COMMAND, which talks to its containers, run in a
# network namespace of their own, without a way out: COMMAND can download nothing.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

socket="${JACO_DOCKER_SOCKET:-/var/run/docker.sock}"
answers() { curl -fsS --max-time 5 --unix-socket "$1" http://localhost/_ping >/dev/null 2>&1; }

if answers "$socket"; then
  JACO_DOCKER_SOCKET="$socket" exec "$@"
fi

[ "$(id -u)" = 0 ] || die "no container engine answers at $socket, and starting one needs root"
# For builds in COMMAND.
(cd "$ROOT" && cargo fetch --locked --quiet --target "$(rustc -vV | sed -n 's/^host: //p')")

work="$(mktemp -d /tmp/jaco-engine.XXXXXX)"
socket="$work/docker.sock"
namespace="$(basename "$work" | tr . -)"
engine=
stop() {
  if [ -n "$engine" ] && kill -0 "$engine" 2>/dev/null; then
    docker -H "unix://$socket" ps -aq 2>/dev/null |
      xargs -r docker -H "unix://$socket" rm -f >/dev/null 2>&1 || true
    docker -H "unix://$socket" network ls -q --filter type=custom 2>/dev/null |
      xargs -r docker -H "unix://$socket" network rm >/dev/null 2>&1 || true
    kill "$engine"
    wait "$engine" 2>/dev/null || true
  fi
  # Its interfaces and rules end with the last process in it.
  ip netns delete "$namespace" 2>/dev/null || true
  # Overlay mounts may outlive a container by a moment.
  for mount in $(awk -v dir="$work/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r); do
    umount -l "$mount" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap stop EXIT

# Enters the namespace with the mounts of this machine: `ip netns exec` would hide the control
# groups, which the engine needs.
inside=(nsenter --net="/run/netns/$namespace" --)
ip netns add "$namespace"
ip -n "$namespace" link set lo up
# Like a machine, the namespace has a private address and a default route; packets to other
# machines are lost.
ip -n "$namespace" link add eth0 type veth peer name eth0-peer
ip -n "$namespace" address add 192.168.254.1/24 dev eth0
ip -n "$namespace" link set eth0 arp off up
ip -n "$namespace" link set eth0-peer arp off up
ip -n "$namespace" route add default dev eth0

say "Starting a private container engine in $work, network namespace $namespace"
# In a session of its own: an interrupt ends this script, which then ends the engine. A truncated
# layer is retried once, not five times in 75 s: tests check the retries of the daemon.
setsid "${inside[@]}" dockerd \
  --host "unix://$socket" --data-root "$work/data" --exec-root "$work/exec" \
  --pidfile "$work/dockerd.pid" --bridge none --log-level warn \
  --max-download-attempts 1 >"$work/dockerd.log" 2>&1 &
engine=$!
for _ in $(seq 1 150); do
  answers "$socket" && break
  kill -0 "$engine" 2>/dev/null || { cat "$work/dockerd.log" >&2; die "dockerd did not start"; }
  sleep 0.2
done
answers "$socket" || { cat "$work/dockerd.log" >&2; die "dockerd did not answer in 30 s"; }

status=0
JACO_DOCKER_SOCKET="$socket" "${inside[@]}" "$@" || status=$?
exit "$status"

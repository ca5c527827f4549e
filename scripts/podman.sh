#!/usr/bin/env bash
# podman.sh COMMAND...: runs COMMAND with a private Podman as the container engine. Its
# Docker-compatible socket is in JACO_DOCKER_SOCKET; all its objects are removed when COMMAND ends.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

[ "$(id -u)" = 0 ] || die "starting Podman needs root"
work="$(mktemp -d /tmp/jaco-podman.XXXXXX)"
socket="$work/podman.sock"

# Podman raises limits to values that not every machine permits; use those of the machine.
least() { [ "$1" != unlimited ] && [ "$1" -lt "$2" ] && echo "$1" || echo "$2"; }
files="$(ulimit -Hn)"
processes="$(least "$(ulimit -Hu)" "$(cat /proc/sys/kernel/pid_max)")"
cat >"$work/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$processes:$processes"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
init_path = "$(command -v tini-static)"
runtime = "runc"
[network]
network_backend = "netavark"
CONF
export CONTAINERS_CONF="$work/containers.conf"
podman=(podman --root "$work/root" --runroot "$work/run" --tmpdir "$work/tmp"
  --network-config-dir "$work/networks")

say "Starting a private Podman in $work"
# In a session of its own: an interrupt ends this script, which then ends the engine. In its own
# directory: container monitors (conmon) write files into their working directory.
(cd "$work" && exec setsid "${podman[@]}" system service --time=0 "unix://$socket") \
  >"$work/podman.log" 2>&1 &
engine=$!
stop() {
  "${podman[@]}" rm -af -t 0 >/dev/null 2>&1 || true
  "${podman[@]}" network prune -f >/dev/null 2>&1 || true
  kill "$engine" 2>/dev/null || true
  wait "$engine" 2>/dev/null || true
  # Container monitors and the name server may outlive their containers and networks.
  for process in $(grep -lz -F "CONTAINERS_CONF=$work/" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do
    kill -9 "$process" 2>/dev/null || true
  done
  for mount in $(awk -v dir="$work/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r); do
    umount -l "$mount" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap stop EXIT
answers() { curl -fsS --max-time 5 --unix-socket "$socket" http://localhost/_ping >/dev/null 2>&1; }
for _ in $(seq 1 150); do
  answers && break
  kill -0 "$engine" 2>/dev/null || { cat "$work/podman.log" >&2; die "Podman did not start"; }
  sleep 0.2
done
answers || { cat "$work/podman.log" >&2; die "Podman did not answer in 30 s"; }

status=0
JACO_DOCKER_SOCKET="$socket" "$@" || status=$?
exit "$status"

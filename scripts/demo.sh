#!/usr/bin/env bash
# Brings JACO up in a temporary directory on unprivileged ports, runs examples/hello on it, hurts
# it, shows it heal, and takes everything down again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

export DOCKER_HOST="unix://$JACO_DOCKER_SOCKET"
PATH="$CARGO_TARGET_DIR/debug:$PATH"
# Short, because a socket path has at most 107 characters.
work="$(mktemp -d /tmp/jaco-demo.XXXXXX)"
export JACO_SOCKET="$work/jaco.sock"
daemon=

cleanup() {
  status=$?
  say "Cleaning up"
  if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
    jaco delete hello >/dev/null 2>&1 || true
    for _ in $(seq 1 100); do
      [ -n "$(ours ps -aq)" ] || break
      sleep 0.1
    done
    kill "$daemon" && wait "$daemon" 2>/dev/null || true
  elif [ -n "$daemon" ]; then
    wait "$daemon" 2>/dev/null || true
  fi
  # By label of this very cluster: whatever a failed run left, and nothing else.
  ours ps -aq | xargs -r docker rm -f >/dev/null 2>&1 || true
  ours network ls -q | xargs -r docker network rm >/dev/null 2>&1 || true
  if [ "$status" != 0 ] && [ -s "$work/jacod.log" ]; then
    say "The daemon's log"
    tail -n 50 "$work/jacod.log"
  fi
  [ -n "$had_image" ] || docker image rm "$image" >/dev/null 2>&1 || true
  rm -rf "$work"
}
image=jaco-example/hello:1
had_image="$(docker image ls -q "$image" 2>/dev/null)"
cluster_id=none
ours() { docker "$@" --filter "label=jaco.cluster_id=$cluster_id" 2>/dev/null; }
trap cleanup EXIT

# until_true SECONDS WHAT COMMAND...: waits until COMMAND succeeds, or fails saying WHAT.
until_true() {
  local limit=$1 what=$2 i
  shift 2
  for ((i = 0; i < limit * 10; i++)); do
    "$@" >/dev/null 2>&1 && return 0
    sleep 0.1
  done
  die "$what did not happen within $limit s"
}
run() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
# free_port: a TCP port nobody listens on right now.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

api_port="$(free_port)" peer_port="$(free_port)" http_port="$(free_port)"
cat >"$work/jacod.yaml" <<YAML
data_dir: $work/data
unix_socket: $JACO_SOCKET
docker_socket: unix://$JACO_DOCKER_SOCKET
listen_addr: 127.0.0.1:$api_port
cluster_addr: 127.0.0.1:$peer_port
http_port: $http_port
hostname: demo
YAML

say "Building the example's image from this machine's busybox"
run examples/hello/build-image.sh

say "Starting jacod in $work"
setsid jacod --config "$work/jacod.yaml" --enable-fault-injection >"$work/jacod.log" 2>&1 &
daemon=$!
until_true 10 "the API socket" test -S "$JACO_SOCKET"

say "Creating a cluster of this one machine"
run jaco cluster init --name demo --no-systemd-enable | sed 's/\(operator_token: *[0-9a-f]\{8\}\)[0-9a-f]*/\1…/'
cluster_id="$(cat "$work/data/node/join.json" | python3 -c 'import json, sys; print(json.load(sys.stdin)["cluster_id"])')"
run jaco cluster status

say "Applying a compose stack: two services, three replicas, a route, health checks, depends_on"
run jaco apply examples/hello/jaco.yaml
run jaco status hello
say "Every part of it is a supervised actor"
run jaco actors

page() { curl -fsS --max-time 5 -H 'Host: hello.localhost' "http://127.0.0.1:$http_port/cgi-bin/greet"; }
say "Fetching the page through the route"
until_true 10 "an answer over HTTP" page
run page

state_of() { jaco get replica "$1" -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["state"])'; }
container_of() { docker ps -aq --no-trunc --filter "label=jaco.cluster_id=$cluster_id" --filter "label=jaco.replica_id=$1"; }
is_running() { [ "$(state_of "$1")" = running ]; }
has_new_container() { [ -n "$(container_of "$1")" ] && [ "$(container_of "$1")" != "$2" ] && is_running "$1"; }

say "Killing a container"
before="$(container_of hello-web-0)"
run docker kill "$before"
until_true 30 "a new container for hello-web-0" has_new_container hello-web-0 "$before"
echo "hello-web-0 runs again, as container $(container_of hello-web-0 | cut -c1-12) instead of ${before:0:12}"

say "Killing an actor: a panic in the ReplicaActor of hello-web-1"
actor=node/runtime/replica:hello-web-1
before="$(container_of hello-web-1)"
run jaco actors kill "$actor" --mode panic
restarted() { jaco actors -o json | python3 -c "
import json, sys
tree = json.load(sys.stdin)
found = [a for a in tree['actors'] if a['path'] == '$actor']
sys.exit(not (found and found[0]['state'] == 'running' and found[0]['restarts'] >= 1))"; }
until_true 10 "the restart of $actor" restarted
jaco actors | grep -e ACTOR -e hello-web-1
[ "$(container_of hello-web-1)" = "$before" ] || die "the container was touched"
is_running hello-web-1 || die "hello-web-1 is not running"
echo "the actor is back and adopted container ${before:0:12}, which never noticed"
run page

say "What happened, from the audit trail"
run jaco audit

say "Deleting the deployment"
run jaco delete hello
nothing_left() { [ -z "$(ours ps -aq)" ]; }
until_true 30 "the end of the containers" nothing_left
say "Done: the stack ran, answered, was hurt twice, healed twice, and is gone"

#!/usr/bin/env bash
# Builds three machines on this one (a network namespace and a container engine each), joins them
# to one cluster, shows on examples/east-west which containers reach each other, runs examples/three-nodes on it, kills a container, cuts the power of a machine,
# shows the failover and the return of the machine, and removes everything again. Before that it updates the
# service under load, once with a change that does not run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

[ "$(id -u)" = 0 ] || die "network namespaces need root"
scripts/setup.sh
say "Building jaco, jacod and the lab"
part "building jaco, jacod and the lab" \
  cargo build -p jaco-cli -p jaco-chaos --bins --locked

PATH="$CARGO_TARGET_DIR/debug:$PATH"
up= name=

# name_of TEXT: the name of the lab in the output of `jaco-lab up`.
name_of() { awk '$1 == "lab" { print $2; exit }' <<<"$1"; }

started=$SECONDS
cleanup() {
  status=$?
  trap - EXIT
  [ -z "${JACO_PARTS:-}" ] || printf '%d\tthe demonstration\n' "$((SECONDS - started))" >>"$JACO_PARTS"
  # A signal may have arrived before the name was read.
  [ -n "$name" ] || name="$(name_of "$up")"
  if [ "$status" != 0 ] && [ -n "$name" ]; then
    for log in "/tmp/$name"/n*/jacod.log; do
      say "The end of $log"
      tail -n 30 "$log" || true
    done
  fi
  say "Cleaning up"
  [ -z "$name" ] || jaco-lab --lab "$name" down || status=1
  jaco-lab clean
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# until_true SECONDS WHAT COMMAND...: waits until COMMAND succeeds; if not in time, names WHAT.
until_true() {
  local limit=$1 what=$2 start=$SECONDS
  shift 2
  until "$@" >/dev/null 2>&1; do
    ((SECONDS - start < limit)) || die "$what did not happen within $limit s"
    sleep 0.1
  done
}
run() { printf '\n\033[1m$ %s\033[0m\n' "$*"; "$@"; }
# on NODE COMMAND...: runs a command with the sockets of the node's daemon and engine.
on() { local at="/tmp/$name/$1"; shift; JACO_SOCKET="$at/s" DOCKER_HOST="unix://$at/d" "$@"; }
at() { printf '\n\033[1m%s$ %s\033[0m\n' "$1" "${*:2}"; on "$@"; }
lab() { jaco-lab --lab "$name" "$@"; }

say "Building three machines: a network namespace, a container engine and a jacod each"
up="$(jaco-lab up 3)"
name="$(name_of "$up")"
echo "$up" | grep -e ^lab -e ^n
hub="/run/netns/$name-hub"

say "Building the example's image on each, from this machine's busybox"
for node in n1 n2 n3; do on "$node" examples/hello/build-image.sh; done

say "Founding a cluster on n1, joining n2 and n3 with a single-use token each"
at n1 jaco cluster init --name demo --no-systemd-enable |
  sed 's/\(operator_token: *[0-9a-f]\{8\}\)[0-9a-f]*/\1…/'
for node in n2 n3; do
  line="$(on n1 jaco node issue-join-token -o json)"
  token="$(python3 -c 'import json, sys; print(json.load(sys.stdin)["token"])' <<<"$line")"
  printf '\n\033[1m%s$ jaco node join --peer 172.31.99.1:7000 --token %s…\033[0m\n' "$node" "${token:0:12}"
  on "$node" jaco node join --peer 172.31.99.1:7000 --token "$token" --no-systemd-enable
done
# nodes_ready COUNT: n1 lists COUNT ready nodes.
nodes_ready() {
  [ "$(on n1 jaco node list -o json | grep -c '"status": "ready"')" = "$1" ]
}
three_vote() { [ "$(on "$1" jaco cluster status | grep -c 'VOTER\]')" = 3 ]; }
until_true 60 "three nodes that are ready" nodes_ready 3
until_true 60 "three voters" three_vote n1
at n1 jaco cluster status

say "Who reaches whom: a page asks a service on another machine by name, and a neighbor may not"
at n1 jaco apply examples/east-west/jaco.yaml
at n2 jaco apply examples/east-west/neighbor/jaco.yaml
# replica DEPLOYMENT SERVICE CONDITION: host and engine's id of a replica of which CONDITION on its
# host `h` holds.
replica() {
  local hosts
  hosts="$(on n1 jaco get replicas --deployment "$1" -o json | python3 -c "
import json, sys
for r in json.load(sys.stdin):
    h = r['host']
    if r['service'] == '$2' and ($3): print(h)")"
  for host in $hosts; do
    echo "$host $(on "$host" docker ps -q --filter "label=jaco.deployment=$1" --filter "label=jaco.service=$2" | head -n 1)"
    return
  done
}
read -r quote_host quote <<<"$(replica east quote True)"
read -r web_host web <<<"$(replica east web "h != '$quote_host'")"
read -r idle_host idle <<<"$(replica west idle "h != '$quote_host'")"
address="$(on "$quote_host" docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$quote")"
echo "quote runs on $quote_host at $address, this replica of web on $web_host, the neighbor on $idle_host"
# inside HOST CONTAINER COMMAND...: runs a command in a container.
inside() {
  local host=$1 container=$2
  shift 2
  printf '\n\033[1m%s$ docker exec %s %s\033[0m\n' "$host" "$container" "$*"
  # busybox's wget has no working time limit of its own.
  on "$host" timeout 5 docker exec "$container" "$@"
}
by_name() { on "$web_host" docker exec "$web" wget -q -O - http://quote:8081/; }
until_true 30 "an answer of quote by its name" by_name
capture="/tmp/$name/east-west.pcap"
nsenter --net="$hub" tcpdump -i br0 -U -Z root -w "$capture" udp port 51820 2>/dev/null &
dump=$!
sleep 1 # until it listens
inside "$web_host" "$web" wget -q -O - http://quote:8081/
sleep 1 # until it has written
kill "$dump"; wait "$dump" 2>/dev/null || true
refused() {
  if inside "$idle_host" "$idle" "$@"; then die "the neighbor got an answer"; fi
}
refused nslookup quote.east
refused wget -q -O - "http://$address:8081/"
packets="$(tcpdump -nn -r "$capture" 2>/dev/null | wc -l)"
[ "$packets" -gt 0 ] || die "nothing crossed the network between the machines"
if grep -q outgrown "$capture"; then die "the quote is readable on the network"; fi
echo "$packets packets crossed the network meanwhile; the quote is readable in none of them:"
tcpdump -nn -X -c 1 -r "$capture" 2>/dev/null | head -n 5
at n1 jaco delete east
at n1 jaco delete west
nothing_left() { for node in n1 n2 n3; do [ -z "$(on "$node" docker ps -aq)" ] || return 1; done; }
until_true 60 "the end of the containers" nothing_left

say "Applying a compose stack through n3: six replicas, spread over the machines"
at n3 jaco apply examples/three-nodes/jaco.yaml
at n2 jaco get replicas --deployment hello

page() {
  nsenter --net="$hub" curl -fsS --max-time 5 -H 'Host: hello.localhost' \
    "http://172.31.99.${1#n}/cgi-bin/hello"
}
say "Fetching the page from each machine"
for node in n1 n2 n3; do
  until_true 30 "an answer of $node over HTTP" page "$node"
  printf '%s: ' "$node"
  page "$node"
done

say "Changing the service while each machine gets requests: replica after replica"
mkdir "/tmp/$name/load"
for node in n1 n2 n3; do
  while [ -d "/tmp/$name/load" ]; do
    if page "$node" >/dev/null 2>>"/tmp/$name/load/$node.errors"; then echo good; else echo lost; fi
    sleep 0.02
  done >"/tmp/$name/$node.requests" 2>/dev/null &
done
hello=(examples/three-nodes/jaco.yaml -f examples/three-nodes/compose.yml -f)
echo 'services: {web: {environment: {EDITION: two}, deploy: {update_config: {parallelism: 2}}}}' >"/tmp/$name/change.yml"
echo 'services: {web: {command: ["sh", "-c", "sleep 2; exit 1"]}}' >"/tmp/$name/mistake.yml"
at n3 jaco apply "${hello[@]}" "/tmp/$name/change.yml"
say "A change that does not run is rolled back, and apply says so"
status=0
at n3 jaco apply "${hello[@]}" "/tmp/$name/mistake.yml" || status=$?
[ "$status" = 3 ] || die "apply ended with $status and not with 3"
six_run() {
  on n1 jaco get replicas --deployment hello -o json | python3 -c '
import json, sys
seen = json.load(sys.stdin)
sys.exit(not (len(seen) == 6 and all(r["state"] == "running" for r in seen)))'
}
until_true 60 "six replicas of the revision before" six_run
errors="$(cat "/tmp/$name/load/"*.errors)"
rm -r "/tmp/$name/load"
sleep 1 # until the last requests have ended
for node in n1 n2 n3; do
  lost="$(grep -c lost "/tmp/$name/$node.requests" || true)"
  echo "$node: $(grep -c good "/tmp/$name/$node.requests") requests answered, $lost lost"
  [ "$lost" = 0 ] || die "$errors"
done

say "Killing a container on n1"
before="$(on n1 docker ps -q | head -n 1)"
on n1 docker kill "$before" >/dev/null
two_run() { [ "$(on n1 docker ps -q | wc -l)" = 2 ] && ! on n1 docker ps -q | grep -q "$before"; }
until_true 30 "a new container" two_run
echo "$before is gone, and another one runs in its place"

# running_on_others: six replicas run, none of them on n2.
running_on_others() {
  on n1 jaco get replicas --deployment hello -o json | python3 -c '
import json, sys
seen = json.load(sys.stdin)
sys.exit(not (len(seen) == 6 and all(r["state"] == "running" and r["host"] != "n2" for r in seen)))'
}
say "Pulling the plug of n2: its daemon, its engine and its containers end at once"
plug=$SECONDS
run lab crash n2
until_true 60 "six replicas on the others" running_on_others
echo "$((SECONDS - plug)) s later all six run on n1 and n3"
at n1 jaco get replicas --deployment hello
at n3 jaco cluster status
for node in n1 n3; do printf '%s: ' "$node"; page "$node"; done

say "Turning n2 on again: it catches up, and stops what has moved away"
run lab boot n2
until_true 60 "three nodes that are ready" nodes_ready 3
nothing_on_n2() { [ -z "$(on n2 docker ps -q)" ] && running_on_others; }
until_true 60 "the end of its old containers" nothing_on_n2
at n2 jaco cluster status
say "All three hold the same state"
at n2 jaco cluster digest

say "What happened, from the audit trail"
at n3 jaco audit

say "Deleting the deployment"
at n2 jaco delete hello
until_true 60 "the end of the containers" nothing_left
say "Done: a cluster of three machines lost one, ran on without it, and got it back"

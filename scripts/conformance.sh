#!/usr/bin/env bash
# Runs conformance suites that others wrote against the HTTP data plane and prints their results:
#   h2spec  HTTP/2 (RFC 9113, RFC 7541) over TLS, with nginx as the replica
#   kosoku  the cases of the Autobahn suite for WebSocket (RFC 6455, RFC 7692), with a Node server
#           as the replica; LONG=1 adds the long ones, large messages and compression
# and then a browser, Chromium, over HTTP/2 and HTTP/3: requests, uploads, streams, WebSockets.
# Installs the Debian packages that are missing, but go and node with npm only if there is none of
# another source. The suites are kept in the cache.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/packages.sh"
cd "$ROOT"

packages=(chromium nginx-light openssl python3 python3-venv)
command -v go >/dev/null || packages+=(golang-go)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
install_packages "Debian packages of conformance" "${packages[@]}"
for tool in go node npm python3 nginx openssl chromium; do
  command -v "$tool" >/dev/null || die "$tool is not installed"
done
tools="$JACO_CACHE_DIR/conformance"
mkdir -p "$tools"
[ -x "$tools/bin/h2spec" ] || {
  say "Building h2spec"
  GOBIN="$tools/bin" GOPATH="$tools/go" GOFLAGS=-modcacherw \
    go install github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible
}
[ -x "$tools/venv/bin/kosoku" ] || {
  say "Installing kosoku"
  python3 -m venv "$tools/venv"
  "$tools/venv/bin/pip" install --quiet kosoku==0.1.0
}
[ -d "$tools/node_modules/ws" ] || {
  say "Installing ws"
  npm install --silent --no-audit --no-fund --prefix "$tools" ws@8
}
say "Building the data plane"
cargo build --locked -p jaco-bench --bin ingress_http

dir="$(mktemp -d)"
pids=()
clean() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  rm -rf "$dir"
}
trap clean EXIT

# free_port: a port that nothing listens on.
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# listening PORT: waits until something accepts connections.
listening() {
  local _
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
    sleep 0.1
  done
  die "nothing listens on port $1"
}

# proxy UPSTREAM_PORT: starts the data plane; sets http and https to its ports.
proxy() {
  http=$(free_port) https=$(free_port)
  "$CARGO_TARGET_DIR/debug/ingress_http" serve --threads 2 --http "127.0.0.1:$http" --https "127.0.0.1:$https" \
    --http3 --upstream "127.0.0.1:$1" --cert "$dir/cert.pem" --key "$dir/key.pem" &
  pids+=($!)
  listening "$https"
}

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost -keyout "$dir/key.pem" -out "$dir/cert.pem" 2>/dev/null
failed=0

say "h2spec"
head -c 1024 /dev/zero | tr '\0' x >"$dir/1k"
replica=$(free_port)
cat >"$dir/nginx.conf" <<EOF
user root; daemon off; pid $dir/nginx.pid; error_log $dir/nginx.log; events {}
http {
  access_log off;
  client_body_temp_path $dir/body; proxy_temp_path $dir/proxy; fastcgi_temp_path $dir/fastcgi;
  uwsgi_temp_path $dir/uwsgi; scgi_temp_path $dir/scgi;
  server { listen 127.0.0.1:$replica; root $dir; error_page 405 =200 \$uri; }
}
EOF
nginx -c "$dir/nginx.conf" 2>/dev/null &
pids+=($!)
listening "$replica"
proxy "$replica"
"$tools/bin/h2spec" --host localhost --port "$https" --tls --insecure --path /1k --timeout 5 >"$dir/h2spec" || failed=1
grep -E '✖|tests,' "$dir/h2spec" || cat "$dir/h2spec"

say "kosoku"
replica=$(free_port)
NODE_PATH="$tools/node_modules" node -e '
  const { WebSocketServer } = require("ws");
  const options = { host: "127.0.0.1", port: Number(process.argv[1]), perMessageDeflate: true, maxPayload: 0 };
  new WebSocketServer(options).on("connection", (client) => {
    client.on("message", (data, binary) => client.send(data, { binary }));
    client.on("error", () => {});
  });' "$replica" &
pids+=($!)
listening "$replica"
proxy "$replica"
short=(-x '9.*' -x '12.*' -x '13.*')
[ -z "${LONG:-}" ] || short=()
(cd "$dir" && "$tools/venv/bin/kosoku" "ws://localhost:$http" "${short[@]}" --parallelism 4 --outdir "$dir/kosoku") || failed=1

say "Chromium"
key_hash=$(openssl x509 -in "$dir/cert.pem" -pubkey -noout | openssl pkey -pubin -outform der |
  openssl dgst -sha256 -binary | base64)
for protocol in h2 h3; do
  replica=$(free_port)
  proxy "$replica"
  NODE_PATH="$tools/node_modules" timeout 90 node scripts/browser.js \
    "$replica" "https://localhost:$https/" "$protocol" "$key_hash" "$dir/chromium-$protocol" || failed=1
done

exit "$failed"

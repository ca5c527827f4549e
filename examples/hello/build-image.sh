#!/bin/sh
# Builds jaco-example/hello:1 from the static busybox of this machine; no registry is needed.
# DOCKER is the engine's command line; default `docker`.
set -eu
DOCKER="${DOCKER:-docker}"
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT

mkdir -p "$root/bin" "$root/tmp" "$root/www/web/cgi-bin" "$root/www/quote"
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in sh httpd wget cat echo hostname nslookup; do
  ln -s busybox "$root/bin/$applet"
done

cat >"$root/www/web/cgi-bin/greet" <<'CGI'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
echo "hello from $(hostname)"
wget -q -O - http://quote:8081/ || echo "(nobody has anything to say)"
CGI
cat >"$root/www/web/cgi-bin/hello" <<'CGI'
#!/bin/sh
printf 'Content-Type: text/plain\r\n\r\n'
echo "hello from $(hostname)"
CGI
chmod 755 "$root"/www/web/cgi-bin/*
echo ok >"$root/www/web/health"
echo ok >"$root/www/quote/health"
echo "what has outgrown one machine may stay as simple as it was" >"$root/www/quote/index.html"

tar -C "$root" -c . |
  $DOCKER import --change 'ENV PATH=/bin' - jaco-example/hello:1 >/dev/null
echo "built jaco-example/hello:1"

# Sourced after lib.sh by scripts that need Debian packages.

# install_packages WHAT PACKAGE...: installs the packages that are missing, and starts no service of
# theirs; WHAT names them in the table of timed.sh.
install_packages() {
  local what=$1 package missing=()
  shift
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  ((${#missing[@]} == 0)) || part "$what" install_missing "${missing[@]}"
}

# In a subshell, whose trap leaves that of the caller alone.
install_missing() (
  say "Installing Debian packages: $*"
  [ "$(id -u)" = 0 ] || die "run as root, or install these packages first"
  policy=
  trap '[ -z "$policy" ] || rm -f "$policy"' EXIT
  apt-get update -qq || exit
  # Tests and benchmarks start the services they need.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
)

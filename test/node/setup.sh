#!/bin/sh
# Installs the Debian packages that the tests and the demo need, those given as
# arguments too, and this machine lacks. Without root it names them and fails.
set -eu

packages="ca-certificates containernetworking-plugins gcc iproute2 libc6-dev
libseccomp-dev make pkg-config procps redis-server util-linux $*"

missing=""
for package in $packages; do
	dpkg-query --show --showformat='${db:Status-Status}\n' "$package" 2>/dev/null |
		grep -qx installed || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "these packages are missing; run as root: apt-get install$missing" >&2
	exit 1
fi
echo "installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # the names are words
apt-get install -q -y --no-install-recommends $missing

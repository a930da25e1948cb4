#!/bin/sh
# Puts promtool into build/tools/ of the source tree, unless it is there or on PATH. Only the program
# is taken out of Debian's package: installing the package would start a service. Needs apt-get and
# dpkg-deb, no root. Prints the program's path; exit status 1 if it cannot be had.
set -eu
if command -v promtool; then exit 0; fi
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/build/tools
if [ -x "$tools/promtool" ]; then
  echo "$tools/promtool"
  exit 0
fi
mkdir -p "$tools"
scratch=$(mktemp -d "$tools/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# apt's own sandbox user may not be able to write here.
(cd "$scratch" && apt-get -o APT::Sandbox::User=root download prometheus >&2) || {
  echo "fetch_promtool: apt-get cannot download the package prometheus" >&2
  exit 1
}
dpkg-deb -x "$scratch"/prometheus_*.deb "$scratch/root"
mv "$scratch/root/usr/bin/promtool" "$tools/promtool"
echo "$tools/promtool"

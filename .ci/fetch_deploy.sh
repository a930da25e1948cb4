#!/usr/bin/env bash
# Puts into build/ what the checks of deploy/ need: prometheus and promtool out of Debian's package
# (installing it would start a service), a Python environment with kubectl and the schemas of Kubernetes,
# one with gRPC's client, and a Debian root with the packages of the container image. Quiet and fast when
# all is there; else needs the network, and root for debootstrap.
set -euo pipefail
exec >&2
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=$PWD/build/tools
mkdir -p "$tools"

if [ ! -x "$tools/prometheus" ]; then
  scratch=$(mktemp -d "$tools/fetch.XXXXXX")
  trap 'rm -rf "$scratch"' EXIT
  # apt's own sandbox user may not be able to write here.
  (cd "$scratch" && apt-get -qq -o APT::Sandbox::User=root download prometheus)
  dpkg-deb -x "$scratch"/prometheus_*.deb "$scratch/root"
  mv "$scratch/root/usr/bin/promtool" "$scratch/root/usr/bin/prometheus" "$tools/"
fi

wanted=$(sha256sum .ci/deploy_requirements.txt)
if [ "$(cat "$tools/deploy/wanted" 2>/dev/null)" != "$wanted" ]; then
  /usr/bin/python3 -m venv --clear "$tools/deploy"
  "$tools/deploy/bin/pip" install --quiet --disable-pip-version-check -r .ci/deploy_requirements.txt
  echo "$wanted" >"$tools/deploy/wanted"
fi

deploy/k8s/live.py --install

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
if .ci/may_mount.sh; then "${as_root[@]}" deploy/docker/replay.py --install; fi

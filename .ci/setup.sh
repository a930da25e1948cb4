#!/usr/bin/env bash
# Installs the Debian packages of .ci/packages.txt that are missing. Quiet and fast when none is.
# Everything it prints goes to standard error.
set -euo pipefail
exec >&2
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mapfile -t wanted < <(grep -v '^#' .ci/packages.txt)
missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "installing ${#missing[@]} packages: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "need root, or sudo, to install packages"; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

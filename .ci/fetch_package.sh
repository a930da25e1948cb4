#!/usr/bin/env bash
# Puts into build/tools/package-root what .ci/check_package.sh needs: a Debian 12 with systemd, and, not
# installed, the packages that those of eddy depend on. Quiet and fast when all is there; needs
# root, for debootstrap and chroot, and the network else.
#
# usage: fetch_package.sh BUILD_DIR     a build of eddy-server and eddy
set -euo pipefail
exec >&2
build=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(id -u)" -eq 0 ] || exec sudo "$PWD/.ci/fetch_package.sh" "$build"
root=$PWD/build/tools/package-root

if [ ! -d "$root" ]; then
  mkdir -p "$(dirname "$root")"
  part=$(mktemp -d "$root.XXXXXX")
  # Where this machine's own packages come from.
  mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' |
    awk '!/-security/ && !found++')
  debootstrap --variant=minbase --include=systemd bookworm "$part" "$mirror" \
    >"$part.log" 2>&1 || { tail -n 20 "$part.log"; exit 1; }
  chmod 755 "$part"
  mv "$part" "$root"
  rm "$part.log"
fi

rm -f "$build"/packages/*.deb
cpack --config "$build/CPackConfig.cmake" >/dev/null
mkdir -p "$root/packages"
trap 'rm -rf "$root/packages"' EXIT
# Those for GPUs depend on NVIDIA's packages, which are not Debian's.
for package in server client model; do
  cp "$build"/packages/eddy-"$package"*.deb "$root/packages"
done
inside() { # line for a shell in the root
  unshare --mount sh -c 'mount -t proc proc "$1/proc" && exec chroot "$1" sh -c "$2"' sh "$root" \
    "export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive; $1"
}
uris=$(inside 'apt-get -qq install --print-uris --no-install-recommends /packages/*.deb')
missing=$(grep -c "^'http" <<<"$uris" || true)
if [ "$missing" -gt 0 ]; then
  echo "fetching $missing packages"
  # apt's own sandbox user may not be able to write here.
  inside 'apt-get -qq -o APT::Sandbox::User=root update &&
    apt-get -qq -y -o APT::Sandbox::User=root install --download-only --no-install-recommends \
      /packages/*.deb'
fi

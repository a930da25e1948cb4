#!/usr/bin/env bash
# Makes eddy's Debian packages and proves them in a Debian 12 that systemd runs: what they hold and
# declare, that they install, serve, drain, come back, keep settings and go away without a trace; see
# deploy/debian/check_installed.sh for what is asked there. The system is a copy in memory of
# build/tools/package-root, in namespaces of its own: no network, no processes and no files of this
# machine. Needs what .ci/fetch_package.sh gets, root that may mount, and no network.
#
# usage: check_package.sh BUILD_DIR [--contents]     a build of eddy-server and eddy
#   --contents: only what needs no system of its own: what the packages hold and declare, and what
#   cmake --install puts where
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(id -u)" -eq 0 ] || [ "${2:-}" = --contents ] ||
  exec sudo "$PWD/.ci/check_package.sh" "$build"
root=$PWD/build/tools/package-root
limit_s=300

fail() { echo "package: $*" >&2; exit 1; }
[ -d "$root" ] || [ "${2:-}" = --contents ] ||
  fail "there is no $root; .ci/fetch_package.sh makes it"
scratch=$(mktemp -d)
group=
cleanup() {
  if [ -n "$group" ]; then
    echo $$ >"$(dirname "$group")/cgroup.procs"
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT

make_packages() {
  rm -f "$build"/packages/*.deb
  cpack --config "$build/CPackConfig.cmake" >"$scratch/cpack.log" 2>&1 ||
    { cat "$scratch/cpack.log" >&2; fail "cpack failed"; }
}

has() { # package file, line of its control file
  grep -qE "^$2" <<<"$(dpkg-deb --field "$1")" || fail "$(basename "$1") does not say: $2"
}
holds() { # package file, path
  grep -qE " \.$2\$" <<<"$(dpkg-deb --contents "$1")" || fail "$(basename "$1") does not hold $2"
}

check_contents() {
  local version=$1-1 all=("$build"/packages/*.deb) package server cuda
  for package in "${all[@]}"; do
    has "$package" "Version: $version\$"
    holds "$package" "/usr/share/doc/$(dpkg-deb --field "$package" Package)/copyright"
    if dpkg-deb --contents "$package" | awk '{print $2}' | grep -v '^root/root$'; then
      fail "$(basename "$package") holds files that are not root's"
    fi
  done
  server=$build/packages/eddy-server_${version}_$(dpkg --print-architecture).deb
  has "$server" "Depends: .*libgrpc\+\+1\.51"
  holds "$server" /etc/eddy/eddy-server.env
  holds "$server" /usr/share/doc/eddy-server/CHANGELOG.md
  grep -q "^## $1" CHANGELOG.md || fail "CHANGELOG.md has no section on $1"
  holds "${server/server/client}" /usr/share/eddy/proto/eddy/v1/generation.proto
  dpkg-deb -x "$server" "$scratch/server"
  grep -q 'RUNPATH.*\[$ORIGIN/../lib/eddy\]$' <<<"$(readelf -d "$scratch/server/usr/bin/eddy-server")" ||
    fail "the installed server looks for its plugin elsewhere than in ../lib/eddy"
  # In a build with EDDY_CUDA=ON.
  cuda=${server/server/cuda}
  [ -e "$cuda" ] || return 0
  has "$cuda" "Depends: .*eddy-server \(= $version\).*"
  has "$cuda" "Depends: .*libcublas-13-0"
  holds "$cuda" /usr/lib/eddy/libeddy_cuda.so
  holds "$cuda" /usr/lib/systemd/system/eddy-server.service.d/cuda.conf
}

# `cmake --install` alone: programs, protocol, model and documents, and a server that runs from there.
check_install() {
  local prefix=$scratch/prefix file
  cmake --install "$build" --prefix "$prefix" >/dev/null
  for file in bin/eddy-server bin/eddy share/eddy/proto/eddy/v1/generation.proto \
    share/eddy/models/kaczmarz-tales/config.json share/doc/eddy-server/README.md; do
    [ -e "$prefix/$file" ] || fail "cmake --install puts no $file"
  done
  # A stand-in for the plugin, to see that it is found and that half a plugin is refused.
  mkdir -p "$prefix/lib/eddy"
  echo 'int eddy_stand_in;' | cc -shared -x c -o "$prefix/lib/eddy/libeddy_cuda.so" -
  local said
  said=$("$prefix/bin/eddy-server" --model_dir="$prefix/share/eddy/models/kaczmarz-tales" \
    --device=cuda --listen=127.0.0.1:0 --metrics_listen= 2>&1 || true)
  grep -q "libeddy_cuda.so has no EddyOpenDevice" <<<"$said" ||
    fail "an installed server does not find ../lib/eddy/libeddy_cuda.so: $said"
  echo "package: cmake --install is complete; the server finds its plugin"
}

# Runs as process 1 of new namespaces; becomes systemd of the scratch system.
boot() {
  local scratch=$1 root=$2 device
  mount --make-rprivate /
  mkdir "$scratch/memory"
  mount -t tmpfs tmpfs "$scratch/memory"
  mkdir "$scratch/memory"/{upper,work,system}
  cd "$scratch/memory/system"
  mount -t overlay overlay -o "lowerdir=$root,upperdir=../upper,workdir=../work" .
  cd "$scratch/memory/system"
  # Settings of the kernel are all machines': not to be written.
  mount -t proc proc proc
  mount --bind proc/sys proc/sys
  mount -o remount,bind,ro proc/sys
  mount -t sysfs -o ro sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount -t tmpfs tmpfs run
  mount -t tmpfs -o mode=755 tmpfs dev
  for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
  done
  mkdir dev/pts dev/shm check
  mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  mount -t tmpfs -o mode=1777 tmpfs dev/shm
  mount --bind "$scratch/check" check
  cp check/check.service etc/systemd/system/
  # As Debian's installer leaves it.
  echo "127.0.0.1 localhost" >etc/hosts
  pivot_root . mnt
  umount -l /mnt
  exec env -i container=eddy-check PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=check.service --log-target=null --show-status=no
}
if [ "${2:-}" = --boot ]; then
  trap - EXIT
  boot "$3" "$root"
fi

check_installed() {
  mkdir "$scratch/check"
  cp deploy/debian/check_installed.sh deploy/debian/check.service "$scratch/check"
  cp "$build"/packages/*.deb "$scratch/check"
  local hierarchy
  hierarchy=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
  [ -n "$hierarchy" ] || fail "systemd needs a cgroup2 hierarchy, and none is mounted"
  group=$hierarchy/eddy-package.$$
  mkdir "$group"
  echo $$ >"$group/cgroup.procs"
  local status=0
  timeout --kill-after=10 "$limit_s" \
    unshare --mount --net --uts --ipc --pid --cgroup --fork --kill-child \
    "$PWD/.ci/check_package.sh" "$build" --boot "$scratch" || status=$?
  cat "$scratch/check/output" 2>/dev/null || true
  [ "$status" -eq 0 ] || fail "the check in the installed system ended with $status"
}

version=$("$build/bin/eddy-server" --version | awk '{print $2}')
[ "$version" = "$("$build/bin/eddy" --version | awk '{print $2}')" ] || fail "two versions in $build/bin"
make_packages
check_contents "$version"
check_install
if [ "${2:-}" = --contents ]; then
  echo "package: those of eddy $version hold and declare what they should"
  exit 0
fi
check_installed
echo "package: eddy $version installs, serves and goes"

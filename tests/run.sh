#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. Safe to run twice and from anywhere. With an
# argument, only that part: checks, locks, dev, cuda, deploy; or what takes as long again and is run apart:
# sanitizers (tsan and asan, which can be asked for by name), and package, which needs a release build.
# EDDY_BIN: for deploy, a folder with eddy-server and eddy, instead of building them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
part=${1:-all}

say() { printf '\n== %s\n' "$*"; }
case $part in
  all) parts="checks locks dev cuda deploy" ;;
  sanitizers) parts="tsan asan" ;;
  checks | locks | dev | cuda | deploy | package | tsan | asan) parts=$part ;;
  *)
    echo "tests/run.sh: no part \"$part\": it is checks, locks, dev, cuda, deploy, package, sanitizers," \
      "tsan or asan" >&2
    exit 2
    ;;
esac
wants() { [[ " $parts " == *" $1 "* ]]; }
build_and_test() { # preset
  cmake --preset "$1" >/dev/null
  cmake --build --preset "$1"
  ctest --preset "$1" --no-tests=error
}

say "packages"
.ci/setup.sh
if wants checks; then
  say "format, tree, protocol"
  .ci/format.sh
  .ci/check_tree.py
  .ci/check_proto.py
fi
if wants locks; then
  say "lock checker"
  cmake --preset dev >/dev/null
  cmake --build --preset dev --target eddy_proto
  .ci/lint.sh threads
fi
if wants dev; then
  say "all tests"
  .ci/fetch_promtool.sh
  build_and_test dev
fi
if wants cuda; then
  say "CUDA code: compiles, and spills nothing where it counts"
  .ci/check_cuda.sh
fi
if wants deploy; then
  say "containers, manifests, dashboard, alerts, packages"
  .ci/fetch_deploy.sh
  if [ -z "${EDDY_BIN:-}" ]; then
    cmake --preset dev >/dev/null
    cmake --build --preset dev --target eddy-server eddy
  fi
  .ci/check_deploy.sh "${EDDY_BIN:-build/dev/bin}"
  [ -n "${EDDY_BIN:-}" ] || .ci/check_package.sh build/dev --contents
fi
if wants package; then
  say "Debian packages and their service"
  cmake --preset release >/dev/null
  cmake --build --preset release --target eddy-server eddy
  .ci/fetch_package.sh build/release
  .ci/check_package.sh build/release
fi
if wants tsan; then
  say "thread sanitizer: all that does not link gRPC"
  build_and_test tsan
fi
if wants asan; then
  say "address and undefined-behaviour sanitizers"
  build_and_test asan
fi

#!/usr/bin/env bash
# Builds for release and measures what a token costs by type of layer; see
# tests/bench/layers_bench.cc.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.ci/setup.sh
cmake --preset release >&2
cmake --build --preset release --target layers_bench >&2
# Ahead of other work on the machine, where that is allowed.
renice -n -10 -p $$ >/dev/null 2>&1 || true
exec build/release/bin/layers_bench

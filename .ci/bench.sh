#!/usr/bin/env bash
# Builds for release and measures the served bundled model; see tests/bench/serve_figures.py. With
# an argument, so many repeats. EDDY_MODEL_DIR: another model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.ci/setup.sh
cmake --preset release >&2
cmake --build --preset release --target eddy-server serve_bench >&2
# Ahead of other work on the machine, where that is allowed.
renice -n -10 -p $$ >/dev/null 2>&1 || true
exec tests/bench/serve_figures.py build/release/bin "${EDDY_MODEL_DIR:-models/kaczmarz-tales}" \
  "${1:-5}"

#!/usr/bin/env bash
# Checks the format of all C++ files; with --fix, corrects it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run --Werror)
[ "${1:-}" = --fix ] && mode=(-i)
git ls-files -z --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh' |
  xargs -0 -r clang-format "${mode[@]}"

#!/usr/bin/env bash
# clang's lock checker over everything that does not need generated code, and clang-tidy over the
# given files, or over all sources of the dev build when none is given.
#   .ci/lint.sh threads         the lock checker alone (part of tests/run.sh)
#   .ci/lint.sh [file.cc ...]   clang-tidy
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

flags_of() { # the compile flags of one file in the dev build
  /usr/bin/python3 - "$1" <<'PY'
import json, shlex, sys
for entry in json.load(open("build/dev/compile_commands.json")):
    if entry["file"].endswith("/" + sys.argv[1]):
        words = shlex.split(entry["command"])
        keep = [w for i, w in enumerate(words)
                if w.startswith(("-I", "-D", "-std")) or words[i - 1] == "-isystem" or w == "-isystem"]
        print(" ".join(keep))
        break
PY
}
export -f flags_of

if [ "${1:-}" = threads ]; then
  mapfile -t files < <(grep -lE 'ABSL_GUARDED_BY|MutexLock|\bMutex\b' $(git ls-files '*.h' '*.cc') |
    sed 's/\.h$/.cc/' | sort -u | while read -r f; do [ -f "$f" ] && echo "$f"; done)
  printf '%s\n' "${files[@]}" | xargs -P2 -I{} bash -c \
    'clang++ $(flags_of {}) -Wthread-safety -Wall -Wextra -Werror -fsyntax-only {}'
  echo "lock checker: ${#files[@]} files"
  exit 0
fi
files=("$@")
[ $# -gt 0 ] || mapfile -t files < <(git ls-files '*.cc' | grep -v '^tests/')
printf '%s\n' "${files[@]}" | xargs -P2 -n4 clang-tidy --quiet -p build/dev

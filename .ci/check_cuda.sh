#!/usr/bin/env bash
# Compiles the CUDA back end for the oldest and for the newest architecture that it is made for, for
# which no GPU is needed, and fails if a kernel spills registers on the newest that is not on the
# list of those that may: kernels of rare shapes, off the hot path. Without a CUDA compiler it says
# so and does nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
  echo "skipped: no nvcc on the PATH or in /usr/local/cuda/bin"
  exit 0
fi
compile() { # architecture, flags
  cmake -S . -B "build/cuda-check/$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=g++ \
    -DEDDY_CUDA=ON -DEDDY_SERVER=OFF -DEDDY_CUDA_ARCHITECTURES="$1-real" -DCMAKE_CUDA_FLAGS="$2" \
    >/dev/null
  cmake --build "build/cuda-check/$1" --target eddy_cuda
}
log=build/cuda-check/compile.log
mkdir -p build/cuda-check
# A warning is told only when its file is compiled.
find build/cuda-check -name '*.cu.o' -delete
compile 80 ""
compile 90a "-Xptxas=--warn-on-spills" 2>&1 | tee "$log" | { grep -v 'spilled' || true; }
spilling=$({ grep -oE "in function '[^']+', [0-9]+ bytes" "$log" || true; } |
  sed -E "s/in function '([^']+)', .*/\\1/" | sort -u | c++filt | { grep -vEf .ci/may_spill.txt || true; })
if [ -n "$spilling" ]; then
  printf 'these kernels spill registers:\n%s\n' "$spilling" >&2
  exit 1
fi
echo "compiled, and no kernel spills that must not"

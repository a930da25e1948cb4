#!/usr/bin/env bash
# Builds what is to be tested and measured on a GPU, and packs it with the shared libraries that it
# needs (all but those of the C library and of CUDA) into one file: a machine with a GPU and a
# driver, but without compilers and packages, then needs only this repository and
#
#   tests/gpu.sh build/gpu.tar.xz
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.ci/setup.sh
cmake --preset cuda >&2
cmake --build --preset cuda >&2
cmake --build --preset cuda --target model_bench serve_bench cuda_benches >&2

folder=build/gpu
rm -rf "$folder"
mkdir -p "$folder"
bin=build/cuda/bin
for program in eddy-server eddy kernels_test engine_test model_bench serve_bench "$bin"/cuda_*; do
  program=$(basename "$program")
  cp "$bin/$program" "$folder/"
done
cp "$bin/libeddy_cuda.so" "$folder/"
strip "$folder"/*
# What the loader would look for here and cannot find there.
for program in "$folder"/*; do ldd "$program"; done |
  awk '$3 ~ "^/" { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcublas[^/]*|libcuda[^/]*)\.so' |
  xargs -I{} cp -L {} "$folder/"
tar -C build -cJf build/gpu.tar.xz gpu
ls -l build/gpu.tar.xz

#!/usr/bin/env bash
# Builds what is to be tested and measured on a GPU, and packs it, with what the tests read and with
# the shared libraries that the programs need (all but those of the C library and of CUDA), into one
# file. A machine with a GPU and a driver, but without compilers and packages, then needs only
#
#   tests/gpu.sh build/gpu.tar.xz
#
# EDDY_CUDA_ARCHITECTURES=90a-real makes it for one architecture, and so quicker and smaller;
# 80-virtual makes it of PTX alone: whatever the card, it then runs what its driver compiles for it
# from the code of the oldest, as cards do that are newer than all of our machine code. Compiling
# takes the driver minutes, the first time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

.ci/setup.sh
architectures=-UEDDY_CUDA_ARCHITECTURES # the default, whatever was asked for before
[ -z "${EDDY_CUDA_ARCHITECTURES:-}" ] ||
  architectures=-DEDDY_CUDA_ARCHITECTURES=$EDDY_CUDA_ARCHITECTURES
cmake --preset cuda "$architectures" >&2
programs=(eddy-server eddy binary_test e2e_test real_models_test kernels_test engine_test
  model_bench serve_bench)
cmake --build --preset cuda --target "${programs[@]}" eddy_cuda cuda_tests cuda_benches >&2

folder=build/gpu
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/tests"
built=build/cuda/bin
for program in "${programs[@]}" "$built"/cuda_*; do
  cp "$built/$(basename "$program")" "$folder/bin/"
done
cp "$built/libeddy_cuda.so" "$folder/bin/"
mkdir "$folder/faulty"
cp build/cuda/faulty/libeddy_cuda.so "$folder/faulty/"
cp -R tests/golden "$folder/tests/"
# What the loader would look for here and cannot find there.
for program in "$folder"/bin/*; do ldd "$program"; done |
  awk '$3 ~ "^/" { print $3 }' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcublas[^/]*|libcuda[^/]*)\.so' |
  xargs -I{} cp -L {} "$folder/bin/"
strip "$folder"/bin/* "$folder"/faulty/*
# The programs hold the same kernels many times over: with a window over all of them, once.
tar -C build -c gpu | xz --lzma2=preset=3,dict=256MiB -T1 >build/gpu.tar.xz
ls -l build/gpu.tar.xz

#!/usr/bin/env bash
# Runs the tests that need a GPU, on a machine that has one, from what .ci/gpu_pack.sh packed:
#
#   tests/gpu.sh build/gpu.tar.xz [tests|sanitizers|bench]
#
# tests: every kernel against its twin and float64, the laws of every layer, and every golden set
# through the executor. sanitizers: the kernel tests under compute-sanitizer. bench: the tables of
# BENCHMARKS.md. Prints a summary; ends with 1 if anything failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pack=$1
part=${2:-tests}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -C "$folder" -xJf "$pack"
bin=$folder/gpu
cublas=$(dirname "$(find /usr /opt -name 'libcublasLt.so.13' -print -quit 2>/dev/null)")
export LD_LIBRARY_PATH=$bin:$cublas EDDY_TEST_DEVICE=cuda OPENBLAS_CORETYPE=${OPENBLAS_CORETYPE:-}
[ -n "$OPENBLAS_CORETYPE" ] || unset OPENBLAS_CORETYPE
failed=()

try() { # name, command...
  local name=$1 began=$SECONDS
  shift
  if "$@" >"$folder/$name.log" 2>&1; then
    echo "ok      $name ($((SECONDS - began)) s): $(grep -E 'PASSED|ERROR SUMMARY' "$folder/$name.log" | tail -1)"
  else
    echo "FAILED  $name ($((SECONDS - began)) s)"
    grep -vE '^\[ (RUN|      OK)' "$folder/$name.log" | tail -40
    failed+=("$name")
  fi
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
case $part in
  tests)
    for test in "$bin"/cuda_*_test; do try "$(basename "$test")" "$test"; done
    try kernels "$bin/kernels_test" --gtest_filter='*Layer*:*Ends*'
    try engine "$bin/engine_test" \
      --gtest_filter='*Golden*:*Hybrid*:*Mixed*:*KalmanModel*:*Recorded*:*Readouts*:OpenDevice*'
    ;;
  sanitizers)
    for tool in memcheck racecheck initcheck; do
      for test in "$bin"/cuda_*_test; do
        try "$(basename "$test")_$tool" timeout 1800 \
          compute-sanitizer --tool "$tool" --error-exitcode 9 "$test"
      done
    done
    ;;
  bench)
    for bench in "$bin"/cuda_*_bench; do
      echo "== $(basename "$bench")"
      "$bench" || failed+=("$(basename "$bench")")
    done
    ;;
esac
[ ${#failed[@]} -eq 0 ] && echo "all passed" && exit 0
echo "failed: ${failed[*]}"
exit 1

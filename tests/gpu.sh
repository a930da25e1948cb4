#!/usr/bin/env bash
# Runs what needs a GPU, on a machine that has one, from what .ci/gpu_pack.sh packed. The machine
# needs a driver, CUDA's run-time libraries and, for the sanitizers, compute-sanitizer; no compiler,
# no packages, and of the repository this script alone:
#
#   tests/gpu.sh build/gpu.tar.xz [tests|sanitizers|steps|bench]...
#
# (or the unpacked folder in place of the file). tests: every kernel against its twin and float64, the
# laws of every layer, every golden set through the executor, in both number modes, and the server
# with real models on the GPU. sanitizers: every kernel under memcheck, racecheck and initcheck, at
# shapes that are small enough for them. steps: random requests come and go with the
# CPU checking every layer, for EDDY_TEST_MINUTES (10) in EDDY_GPU_STEPS (4) programs with seeds of
# their own. bench: the tables of BENCHMARKS.md.
#
# Parts that are named together run side by side, EDDY_GPU_JOBS programs at once (as many as there
# are processors), benches last and alone. Programs that still run after EDDY_GPU_TIMEOUT (3600)
# seconds have failed. Prints a summary; ends with 1 if anything failed. Logs stay in the folder
# EDDY_GPU_LOGS, if that is set.
set -uo pipefail
pack=$1
shift
[ $# -gt 0 ] || set -- tests
at_once=${EDDY_GPU_JOBS:-$(nproc)}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
logs=${EDDY_GPU_LOGS:-$folder/logs}
mkdir -p "$logs"
if [ -d "$pack" ]; then
  cd "$pack" || exit 1
else
  tar -C "$folder" -xJf "$pack" || exit 1
  cd "$folder/gpu" || exit 1 # tests find tests/golden here
fi
cublas=$(dirname "$(find /usr /opt -name 'libcublasLt.so.13' -print -quit 2>/dev/null)")
export LD_LIBRARY_PATH=$PWD/bin:$cublas EDDY_TEST_DEVICE=cuda OPENBLAS_NUM_THREADS=1
export EDDY_TEST_SERVER_BINARY=$PWD/bin/eddy-server EDDY_TEST_REAL_PLUGIN=$PWD/bin/libeddy_cuda.so
names=()

start() { # name, command...
  local name=$1
  shift
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n || true; done
  names+=("$name")
  {
    local began=$SECONDS left=$((${EDDY_GPU_TIMEOUT:-3600} - SECONDS))
    timeout -k 2 $((left > 0 ? left : 1)) "$@" >"$logs/$name.log" 2>&1
    echo "$? $((SECONDS - began))" >"$logs/$name.end"
  } &
}

start_shards() { # how many, name, command...
  local shards=$1 name=$2 shard
  shift 2
  for ((shard = 0; shard < shards; ++shard)); do
    start "${name}_$shard" env GTEST_TOTAL_SHARDS="$shards" GTEST_SHARD_INDEX="$shard" "$@"
  done
}

run_tests() {
  # The longest first.
  start_shards 6 attention bin/cuda_attention_test
  start_shards 6 scans bin/cuda_scans_test
  start_shards 6 engine bin/engine_test --gtest_filter="$engine_tests"
  start_shards 6 kernels bin/kernels_test --gtest_filter='*Layer*:*Ends*'
  start_shards 4 delta_layer bin/cuda_delta_layer_test
  start_shards 3 delta_rule_chunk bin/cuda_delta_rule_chunk_test
  start_shards 3 delta_rule_step bin/cuda_delta_rule_step_test
  start_shards 3 products bin/cuda_products_test
  start_shards 3 ends bin/cuda_ends_test
  start lost_device bin/engine_test --gtest_filter='LostDevice*'
  start lost_server env LD_LIBRARY_PATH="$PWD/faulty:$LD_LIBRARY_PATH" \
    bin/binary_test --gtest_filter='DeviceFaults*'
  start server_program bin/binary_test --gtest_filter='-DeviceFaults*'
  start_shards 2 real_models bin/real_models_test --gtest_filter='-BundledModel*' # not in the pack
  start_shards 2 server bin/e2e_test
}
engine_tests='*Golden*:*HalfStates*:*Hybrid*:*Mixed*:*KalmanModel*:*Recorded*:*Readouts*:OpenDevice*:CheckedDevice*'
engine_tests+=':*Spoilt*'

# What gives the same bits in other company, or keeps lost numbers apart, is done by the same kernels,
# and slots of gigabytes are no business of theirs. racecheck does not see that a barrier which some
# warps only arrive at (bar.arrive) orders what they did before: the chunk forms' Scan and WalkSegments,
# OSDN's ScaleKernel and the selective scan's rows hand stages of shared memory from warp to warp and
# back by such pairs. Each report names what one side wrote before it arrived and what the other read
# after it had waited. And what cuBLASLt is tried with before a head of 1,024 channels takes it minutes.
run_sanitizers() {
  local tool test shards filter more kernel
  for tool in racecheck memcheck initcheck; do
    more=()
    filter='-*SameBits*:*BitsOf*:*Keeps*:*RowsAreLong*:*LaunchesOverlap*:*FourGigabytes*'
    if [ $tool = racecheck ]; then
      for kernel in 4ScanILi '::Scan<' WalkSegments ScaleKernel 4WalkENS_21SelectiveScanCudaArgs \
        'Walk, eddy::SelectiveScanCudaArgs'; do
        more+=(--kernel-name-exclude "kernel_substring=$kernel")
      done
      filter=$filter:Shapes/EndsCudaTest.*/2
    fi
    for test in scans:8 ends:8 attention:4 delta_layer:4 delta_rule_chunk:3 delta_rule_step:3 products:6; do
      shards=${test#*:} test=${test%:*}
      start_shards "$shards" "${test}_$tool" env EDDY_TEST_SECONDS="${EDDY_TEST_SECONDS:-3}" \
        compute-sanitizer --tool "$tool" "${more[@]}" --error-exitcode 9 "bin/cuda_${test}_test" \
        --gtest_filter="$filter"
    done
  done
}

run_steps() {
  local i
  for ((i = 0; i < ${EDDY_GPU_STEPS:-4}; ++i)); do
    start "steps_$i" env EDDY_TEST_MINUTES="${EDDY_TEST_MINUTES:-10}" \
      bin/engine_test --gtest_filter='CheckedDevice.FindsNothing*'
  done
}

run_bench() {
  wait
  local bench
  for bench in bin/cuda_*_bench; do
    names+=("$(basename "$bench")")
    local began=$SECONDS
    echo "== $(basename "$bench")"
    "$bench" 2>&1 | tee "$logs/$(basename "$bench").log"
    echo "${PIPESTATUS[0]} $((SECONDS - began))" >"$logs/$(basename "$bench").end"
  done
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || exit 1
wanted=" $* "
for part in steps sanitizers tests bench; do
  case $wanted in *" $part "*) "run_$part" ;; esac
done
wait

count() { grep -c "$2" "$logs/$1.log" || true; }
failed=()
for name in "${names[@]}"; do
  read -r code seconds <"$logs/$name.end"
  # A program in which every test was skipped has proven nothing.
  if [ "$(count "$name" '^\[ RUN ')" -gt 0 ] && [ "$(count "$name" '^\[       OK ')" -eq 0 ]; then
    code="$code, and ran no test"
  fi
  if [ "$code" = 0 ]; then
    echo "ok      $name ($seconds s): $(count "$name" '^\[       OK ') tests passed," \
      "$(count "$name" '^\[  SKIPPED .* ms)') skipped $(grep -E 'SUMMARY' "$logs/$name.log")"
  else
    echo "FAILED  $name ($seconds s), ended with $code"
    grep -vE '^\[ (RUN|      OK)' "$logs/$name.log" | cut -c1-300 | tail -40
    failed+=("$name")
  fi
done
[ ${#failed[@]} -eq 0 ] && echo "all ${#names[@]} passed, $SECONDS s" && exit 0
echo "failed after $SECONDS s: ${failed[*]}"
exit 1

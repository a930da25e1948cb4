#!/usr/bin/env bash
# Three local replicas of a model, one processor thread each, behind gRPC's own round_robin: compares
# their throughput with that of one, then drains one under load and kills another, and checks that no
# call failed that the retry policy may repeat: none at all when draining; when killing, only calls
# that had sent tokens already, which gRPC never repeats. Takes about a minute. Exits with 1 if a
# check fails.
#
#   loadtest/three_replicas.sh [folder of programs] [folder of results]
#
# EDDY_MODEL_DIR: another model. EDDY_RUN_SECONDS: of each of the four runs (default 10).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bin=${1:-build/release/bin}
results=${2:-}
model=${EDDY_MODEL_DIR:-models/kaczmarz-tales}
seconds=${EDDY_RUN_SECONDS:-10}

run_dir=$(mktemp -d)
[ -n "$results" ] || results=$run_dir
servers=()
stop() {
  for pid in "${servers[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$run_dir"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

port_of() { # replica, which port
  sed -n "s/.*\"$2\": *\([0-9]*\).*/\1/p" "$run_dir/$1.json"
}
for i in 0 1 2; do
  OPENBLAS_NUM_THREADS=1 "$bin/eddy-server" --model_dir="$model" --cpu_threads=1 \
    --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 --port_file="$run_dir/$i.json" \
    --max_sequences=16 --drain_delay=1s --drain_timeout=30s 2>"$run_dir/$i.log" &
  servers+=($!)
done
for i in 0 1 2; do
  for _ in $(seq 600); do
    [ ! -s "$run_dir/$i.json" ] || break
    kill -0 "${servers[$i]}" 2>/dev/null || break
    sleep 0.05
  done
  if [ ! -s "$run_dir/$i.json" ]; then
    echo "replica $i did not start:" >&2
    tail -n 5 "$run_dir/$i.log" >&2
    exit 1
  fi
done
one=127.0.0.1:$(port_of 0 listen)
all=ipv4:$one,127.0.0.1:$(port_of 1 listen),127.0.0.1:$(port_of 2 listen)
metrics=
for i in 0 1 2; do metrics+=${metrics:+,}http://127.0.0.1:$(port_of $i metrics_listen)/metrics; done

load() { # name of the run, flags
  local name=$1
  shift
  echo "== $name" >&2
  "$bin/eddy-loadtest" --flagfile=loadtest/scenarios/three_replicas.flags --duration="${seconds}s" \
    --noprogress --save-result --save-detailed --label="$name" \
    --result-filename="$results/$name.jsonl" "$@" >"$results/$name.txt"
}
load one --target="$one" --max-concurrency=16 --metrics-url="${metrics%%,*}"
load three --target="$all" --max-concurrency=48 --metrics-url="$metrics"

# Half of what three replicas can answer, so that two keep up with it.
rate=$(/usr/bin/env python3 -c '
import json, sys
print(max(1, round(json.loads(open(sys.argv[1]).readline())["request_throughput"] / 2, 2)))
' "$results/three.jsonl")
hurt() { # name of the run, replica, signal
  load "$1" --target="$all" --request-rate="$rate" &
  local loading=$!
  sleep "$((seconds / 3))"
  kill -"$3" "${servers[$2]}"
  wait "$loading"
}
hurt drained 1 TERM
hurt killed 2 KILL

/usr/bin/env python3 - "$results" <<'JUDGE'
import json
import sys

runs = {}
for name in ("one", "three", "drained", "killed"):
    with open(f"{sys.argv[1]}/{name}.jsonl") as file:
        runs[name] = json.loads(file.readline())
one, three = runs["one"], runs["three"]
print(f"one replica     {one['output_throughput']:8.0f} tokens/s")
print(f"three replicas  {three['output_throughput']:8.0f} tokens/s, "
      f"{three['output_throughput'] / one['output_throughput']:.2f} times as many; of each replica "
      + ", ".join(f"{s['generation_tokens_per_s']:.0f}" for s in three["servers"]))
wrong = []
for name in ("one", "three"):
    if set(runs[name]["codes"]) != {"OK"}:
        wrong.append(f"{name}: calls failed: {runs[name]['failures']}")
for name in ("drained", "killed"):
    run = runs[name]
    failed = [i for i, code in enumerate(run["codes"]) if code != "OK"]
    started = [i for i in failed if run["output_lens"][i] > 0]
    print(f"{name:15} {len(run['codes']):5} calls at {run['request_rate']} a second: "
          f"{len(failed)} failed, of which {len(started)} had sent tokens already; "
          f"TTFT p50 {run['p50_ttft_ms']:.1f}, p99 {run['p99_ttft_ms']:.1f} ms")
    if len(failed) > len(started):
        wrong.append(f"{name}: {len(failed) - len(started)} calls failed that could be repeated: "
                     + "; ".join(sorted({run["errors"][i] for i in failed if i not in started})))
    if name == "drained" and failed:
        wrong.append(f"drained: {len(failed)} calls failed")
for fault in wrong:
    print(f"WRONG: {fault}")
sys.exit(1 if wrong else 0)
JUDGE

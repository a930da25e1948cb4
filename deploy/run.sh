#!/usr/bin/env bash
# Builds eddy, starts a server with the bundled model on a free port of this machine, and streams a
# story to standard output; progress goes to standard error. Safe to run twice and from anywhere.
#
#   deploy/run.sh "Once upon a time"      one story, then the server is stopped
#   deploy/run.sh --serve                 keeps it running on 127.0.0.1:50051, with example calls
#
# The story begins with the prompt. EDDY_MODEL_DIR picks another model; further arguments go to
# `eddy generate` after a prompt, to `eddy-server` after --serve.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
usage() { sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; }

serve=false
case "${1:-}" in
  --serve) serve=true; shift ;;
  -h|--help|"") usage; [ -n "${1:-}" ] && exit 0 || exit 2 ;;
esac
model=${EDDY_MODEL_DIR:-$root/models/kaczmarz-tales}
bin=$root/build/release/bin

"$root/.ci/setup.sh"
{
  echo "building ..."
  cd "$root"
  cmake --preset release
  cmake --build --preset release --target eddy-server eddy
  cd - >/dev/null
} >&2

run_dir=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
    kill -TERM "$server"
    wait "$server" || true
  fi
  rm -rf "$run_dir"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

listen=127.0.0.1:0
metrics=127.0.0.1:0
flags=()
if $serve; then
  listen=127.0.0.1:50051 metrics=127.0.0.1:9464
  flags=("$@")
fi
log=$run_dir/server.log
# In a session of its own: Ctrl-C reaches this script alone, which then lets the server drain.
setsid "$bin/eddy-server" --model_dir="$model" --listen="$listen" --metrics_listen="$metrics" \
  --port_file="$run_dir/ports.json" --drain_delay=0s --drain_timeout=5s \
  ${flags[@]+"${flags[@]}"} 2>"$log" &
server=$!
while [ ! -s "$run_dir/ports.json" ]; do
  if ! kill -0 "$server" 2>/dev/null; then
    echo "the server did not start:" >&2
    cat "$log" >&2
    exit 1
  fi
  sleep 0.05
done
port=$(sed -n 's/.*"listen": *\([0-9]*\).*/\1/p' "$run_dir/ports.json")
metrics_port=$(sed -n 's/.*"metrics_listen": *\([0-9]*\).*/\1/p' "$run_dir/ports.json")
echo "serving $(basename "$model") on 127.0.0.1:$port" >&2

if $serve; then
  cat >&2 <<EOF

Try, in another terminal:
  $bin/eddy --target=127.0.0.1:$port generate --prompt="Once upon a time" --max_new_tokens=200
  $bin/eddy --target=127.0.0.1:$port score --prompt="The wolf knocked at the door."
  $bin/eddy --target=127.0.0.1:$port status
  grpcurl -plaintext -d '{"text":"Once upon a time"}' 127.0.0.1:$port eddy.v1.GenerationService/GenerateStream
  curl -s http://127.0.0.1:$metrics_port/metrics | grep eddy_

Stop with Ctrl-C.
EOF
  tail -n +1 -f --pid="$server" "$log" >&2 &
  wait "$server"
  exit
fi
prompt=$1
shift
printf '%s' "$prompt"
"$bin/eddy" --target="127.0.0.1:$port" generate --prompt="$prompt" \
  --max_new_tokens=300 --temperature=0.8 --top_p=0.95 --timeout=120s "$@"

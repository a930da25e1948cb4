#!/usr/bin/env bash
# Everything under deploy/ against the sources and against a running server. Needs what
# .ci/fetch_deploy.sh gets, root that may mount (else the images are not replayed), and no network.
#
# usage: check_deploy.sh BIN_DIR     the folder with eddy-server and eddy
set -euo pipefail
bin=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=build/tools/deploy/bin/python
model=models/kaczmarz-tales

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
status=0
$python deploy/docker/check.py || status=1
$python deploy/k8s/check.py || status=1
deploy/k8s/live.py "$bin" $model || status=1
$python deploy/monitoring/check.py || status=1
if .ci/may_mount.sh; then
  "${as_root[@]}" $python deploy/docker/replay.py "$bin" $model || status=1
else
  echo "docker replay: skipped, nobody may mount here"
fi
$python deploy/monitoring/live.py "$bin" $model || status=1
exit $status

#!/bin/bash
# Runs inside the system that .ci/check_package.sh boots, as root: installs the packages of /check and
# proves the service from its first start to its removal. Ends with status 1 at the first thing that
# is not as it should be, and then shows the service's log.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
unit=eddy-server.service

fail() {
  echo "installed: $*"
  journalctl --no-pager --unit=$unit --lines=20 || true
  exit 1
}
quietly() { # runs, and shows what it said only if it failed
  "$@" >/tmp/said 2>&1 || { cat /tmp/said; fail "this failed: $*"; }
}
is() { # value, expected, what it is
  [ "$1" = "$2" ] || fail "$3 is \"$1\", not \"$2\""
}
property() { systemctl show --property="$1" --value $unit; }
process() { awk -v key="$1:" '$1 == key {print $2}' "/proc/$(property MainPID)/status"; }
state() { systemctl is-active $unit || true; }
serves() { quietly eddy health --wait=30s; }

quietly apt-get -y install --no-install-recommends /check/eddy-{server,client,model}*.deb
is "$(state)" inactive "the service after installation"
is "$(systemctl is-enabled $unit || true)" disabled "the service after installation"
for program in eddy eddy-server; do
  ! grep "not found" <<<"$(ldd "/usr/bin/$program")" || fail "$program lacks libraries"
done
is "$(eddy --version | cut -d' ' -f2)-1" "$(dpkg-query -W -f '${Version}' eddy-client)" "the version"

quietly systemd-analyze verify --man=no $unit
[ ! -s /tmp/said ] || { cat /tmp/said; fail "systemd-analyze has something to say about the unit"; }
# The exposure times ten. What is left is mostly TCP, which the service is for.
quietly systemd-analyze security --offline=true --threshold=12 --no-pager $unit
tail -n 1 /tmp/said

# TimeoutStopSec covers the drain and ten seconds to leave.
seconds() { # flag, from the settings or else the default
  local name=EDDY_${1^^} value
  value=$(sed -n "s/^$name=//p" /etc/eddy/eddy-server.env)
  [ -n "$value" ] || value=$(eddy-server --help | sed -n "s/^ *--$1=\([^ ]*\).*/\1/p")
  case $value in
    *ms | *h) fail "$1 is $value, which this check does not read" ;;
    *m) echo $((${value%m} * 60)) ;;
    *s) echo "${value%s}" ;;
  esac
}
drain_s=$(($(seconds drain_delay) + $(seconds drain_timeout)))
stop_s=$(($(systemctl show --property=TimeoutStopUSec --value $unit |
  sed 's/min */*60+/; s/s$//; s/+$//')))
[ "$stop_s" -ge $((drain_s + 10)) ] || fail "TimeoutStopSec is $stop_s s, draining takes $drain_s s"

quietly systemctl enable --now $unit
serves
[ "$(process Uid)" -ge 61184 ] || fail "the server runs as user $(process Uid), not a dynamic one"
is "$(process NoNewPrivs)" 1 "NoNewPrivs"
is "$(process Seccomp)" 2 "Seccomp"
is "$(process CapBnd)" 0000000000000000 "CapBnd"
[ -n "$(eddy generate --prompt="Once upon a time" --max_new_tokens=16)" ] || fail "no text came"
exec 3<>/dev/tcp/127.0.0.1/9464
printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
grep -q '^eddy_state_slots' <&3 || fail "/metrics has no eddy_state_slots"
exec 3>&-
echo "installed: serves"

kill -9 "$(property MainPID)"
serves
is "$(property NRestarts)" 1 "the number of restarts after a crash"

# A call that runs when the service stops, longer than the drain's delay, ends well.
eddy generate --prompt="Once upon a time" --max_new_tokens=8192 --ignore_eos --time_limit=8s >/tmp/story &
call=$!
until [ -s /tmp/story ]; do kill -0 $call || fail "a long call ended at once"; sleep 0.05; done
quietly systemctl stop $unit
wait $call || fail "a call that ran when the service stopped ended with $?"
is "$(property Result)" success "the result of the stop"
echo "installed: comes back after a crash, drains when stopped"

# Settings that were changed outlive an upgrade, and the service uses them.
quietly systemctl start $unit
echo EDDY_MODEL_NAME=kept >>/etc/eddy/eddy-server.env
serves
before=$(property MainPID)
quietly apt-get -y -o Dpkg::Options::=--force-confold install --reinstall /check/eddy-server*.deb
serves
[ "$(property MainPID)" != "$before" ] || fail "an upgrade left the old program running"
grep -q kept <<<"$(eddy models)" || fail "an upgrade lost a setting"

# A setting that is wrong ends in a failure that says what it is.
echo EDDY_MAX_SEQUENCES=many >>/etc/eddy/eddy-server.env
systemctl restart $unit || true
until [ "$(property NRestarts)" -ge 1 ]; do sleep 0.1; done
grep -q max_sequences <<<"$(journalctl --no-pager --unit=$unit)" || fail "a wrong setting is not in the log"
echo "installed: keeps settings, tells of wrong ones"

# With the plugin of a build with EDDY_CUDA=ON. NVIDIA's package is not in Debian: an empty one stands
# in, so that the server finds its plugin and the plugin lacks cuBLASLt, and nothing else.
if compgen -G "/check/eddy-cuda*.deb" >/dev/null; then
  sed -i /EDDY_MAX_SEQUENCES/d /etc/eddy/eddy-server.env
  mkdir -p /tmp/stand-in/DEBIAN
  printf '%s\n' "Package: libcublas-13-0" "Version: 13.0" "Architecture: all" "Maintainer: nobody" \
    "Description: stand-in" >/tmp/stand-in/DEBIAN/control
  quietly dpkg-deb --build /tmp/stand-in /tmp/libcublas.deb
  quietly apt-get -y install --no-install-recommends /tmp/libcublas.deb /check/eddy-cuda*.deb
  quietly systemd-analyze verify --man=no $unit
  [ ! -s /tmp/said ] || { cat /tmp/said; fail "systemd-analyze has something to say with eddy-cuda"; }
  quietly systemctl restart $unit
  serves
  is "$(property PrivateDevices)" no "PrivateDevices with eddy-cuda"
  missing=$(journalctl --no-pager --unit=$unit _PID="$(property MainPID)" | grep '"no_gpu"')
  grep -q 'libcublasLt.so.13: cannot open' <<<"$missing" || fail "with eddy-cuda: $missing"
  echo "installed: finds its plugin, which lacks cuBLASLt alone"
fi

quietly apt-get -y purge eddy-server
is "$(state)" inactive "the service after removal"
for left in /usr/bin/eddy-server /etc/eddy /etc/systemd/system/multi-user.target.wants/$unit; do
  [ ! -e "$left" ] && [ ! -L "$left" ] || fail "$left is left after the package was purged"
done
echo "installed: goes without a trace"

#!/usr/bin/env bash
# A Docker engine for workers: the host's where one answers, else a private one of Patchlight's.
#
#   deploy/docker-engine.sh start    prints the DOCKER_HOST to use
#   deploy/docker-engine.sh status   the same, if one answers; exit code 1 if none does
#   deploy/docker-engine.sh stop     stops the private one; never the host's
#
# The private engine touches no iptables rule, bridge or sysctl: workers get no Docker network.
# Its images stay in /var/lib/patchlight/docker between runs.
set -euo pipefail

RUN=/run/patchlight-docker
DATA=/var/lib/patchlight/docker
SHARES=/sys/fs/cgroup/cpu
SOCKET=$RUN/docker.sock
CONTAINERD=$RUN/containerd.sock
ASK=$(dirname "${BASH_SOURCE[0]}")/../testbed/linux/docker_engine.py

fail() { printf 'docker-engine: %s\n' "$*" >&2; exit 1; }

# Whether the engine at $1 answers. Needs no docker command: Debian has that apart.
answers() { python3 -I "$ASK" answers "$1" 2>/dev/null; }

engine() {
    local url
    for url in ${DOCKER_HOST:-} unix:///var/run/docker.sock unix://$SOCKET; do
        if answers "$url"; then echo "$url"; return; fi
    done
    return 1
}

# Whether the process in pid file $1 still is the program $2.
runs() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] &&
        [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$(readlink -f "$(command -v "$2")")" ]
}

end() {
    local pid
    if runs "$1" "$2"; then
        pid=$(cat "$1")
        kill "$pid"
        for _ in $(seq 150); do
            runs "$1" "$2" || break
            sleep 0.1
        done
        if runs "$1" "$2"; then kill -9 "$pid"; fi
    fi
    rm -f "$1"
}

start() {
    if engine; then return; fi
    [ "$(id -u)" = 0 ] || fail "starting an engine needs root: sudo bash $0 start"
    local program
    for program in dockerd containerd runc; do
        command -v $program >/dev/null || fail "$program is not installed: apt-get install docker.io"
    done
    stop # what a killed run left
    mkdir -p "$RUN" "$DATA"
    chmod 700 "$RUN"
    cat >"$RUN/containerd.toml" <<TOML
version = 2
root = "$DATA/containerd"
state = "$RUN/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "$CONTAINERD"
TOML
    setsid containerd --config "$RUN/containerd.toml" </dev/null >"$RUN/containerd.log" 2>&1 &
    echo $! >"$RUN/containerd.pid"
    wait_for "$RUN/containerd.pid" containerd "$RUN/containerd.log" test -S "$CONTAINERD"
    # Where containers cannot run real-time (the kernel wants a budget for that, which throttles
    # them), the group of all of them counts like four processes with a niceness of -10: for more
    # than what else runs here, but the agents that end them get their part.
    local group=()
    if [ -e "$SHARES/cpu.rt_runtime_us" ] && mkdir -p "$SHARES/patchlight" 2>/dev/null &&
        echo 38192 2>/dev/null >"$SHARES/patchlight/cpu.shares"; then
        group=(--cgroup-parent=/patchlight)
    fi
    setsid dockerd --host "unix://$SOCKET" --containerd "$CONTAINERD" --group root \
        --data-root "$DATA/engine" --exec-root "$RUN/exec" --pidfile "$RUN/dockerd.pid" \
        "${group[@]}" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none \
        </dev/null >"$RUN/dockerd.log" 2>&1 &
    wait_for "$RUN/dockerd.pid" dockerd "$RUN/dockerd.log" answers "unix://$SOCKET"
    echo "unix://$SOCKET"
}

# Until the command from $4 on succeeds; the program's last words if it ends instead.
wait_for() {
    local pid_file=$1 program=$2 log=$3 job=$!
    shift 3
    for _ in $(seq 300); do
        if "$@"; then return; fi
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    printf '%s\n' "--- the end of $log" >&2
    tail -n 15 "$log" >&2
    end "$pid_file" "$program"
    end "$RUN/containerd.pid" containerd
    fail "$program did not start; its log is $log"
}

stop() {
    [ -d "$RUN" ] || return 0
    [ "$(id -u)" = 0 ] || fail "stopping the engine needs root: sudo bash $0 stop"
    end "$RUN/dockerd.pid" dockerd
    end "$RUN/containerd.pid" containerd
    local mount
    # Deepest first; a killed engine leaves mounts behind.
    while read -r mount; do umount "$mount" || true; done \
        < <(awk -v run="$RUN/" -v data="$DATA/" \
            'index($2, run) == 1 || index($2, data) == 1 { print $2 }' /proc/self/mounts | sort -r)
    rm -rf "$RUN"
    for group in "$SHARES/patchlight/docker" "$SHARES/patchlight"; do
        if [ -d "$group" ]; then rmdir "$group" 2>/dev/null || true; fi
    done
}

case ${1:-} in
    start) start ;;
    status) engine || { echo "no Docker engine answers" >&2; exit 1; } ;;
    stop) stop ;;
    *) fail "usage: $0 start|stop|status" ;;
esac

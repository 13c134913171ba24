#!/usr/bin/env bash
# Runs the commands of "A lab of your own" in README.md as they stand there, with a training program
# and a regroup of a running job, and prints how long each took. Needs root and Open vSwitch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ "$(id -u)" = 0 ] || { echo "first-hour: run it as root: sudo $0" >&2; exit 1; }
export PATH=$PWD/.venv/bin:$PATH PATCHLIGHT_LAB=my-lab
readme=$PWD/README.md work=$(mktemp -d) programs=$(mktemp -d /srv/first-hour.XXXX)
[ ! -e /run/patchlight/my-lab ] || { echo "first-hour: a lab my-lab is up: take it down first" >&2; exit 1; }
trap '[ ! -e /run/patchlight/my-lab ] || patchlight emulate down my-lab; rm -rf "$work" "$programs"' EXIT
chmod 755 "$programs"
cd "$work"

# Each worker sends 1 MB to the next one, ten times.
cat >"$programs/train.py" <<'PROGRAM'
import os, socket, threading, time
rank, peers = int(os.environ["RANK"]), os.environ["PATCHLIGHT_PEERS"].split(",")
server = socket.create_server((peers[rank], 29600))
for attempt in range(100):
    try:
        following = socket.create_connection((peers[(rank + 1) % len(peers)], 29600))
        break
    except OSError:
        time.sleep(0.1)  # the pause between two attempts
before = server.accept()[0]
for step in range(10):
    began = time.monotonic()
    sender = threading.Thread(target=following.sendall, args=(bytes(1_000_000),))
    sender.start()
    received = 0
    while received < 1_000_000:
        received += len(before.recv(min(1 << 16, 1_000_000 - received)))
    sender.join()
    gpu = os.environ["PATCHLIGHT_GPU"]
    print(f"rank {rank} on {gpu}: step {step} in {time.monotonic() - began:.2f} s", flush=True)
PROGRAM

timed() {
    local began=$EPOCHREALTIME
    printf '\n$ %s\n' "$*"
    "$@"
    awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "(%.1f s)\n", b - a }'
}

page() {
    patchlight dashboard --listen 127.0.0.1:8489 &
    local pid=$!
    local answers=false
    for _ in {1..60}; do
        python -c 'import urllib.request as u; u.urlopen("http://127.0.0.1:8489/")' 2>/dev/null &&
            answers=true && break
        sleep 0.5
    done
    kill -INT $pid
    wait $pid || true
    $answers || { echo "first-hour: the page does not answer" >&2; return 1; }
    echo "the page answers"
}

began=$SECONDS
sed -n '/^## A lab of your own/,/^```python/p' "$readme" | sed -n '/^```sh/,/^```/p' | grep -v '```' |
    sed "s/ *#.*//; s/^sudo //; s|/srv/train.py|$programs/train.py|" >commands
while read -ra command <&3; do
    case ${command[*]} in
        "patchlight dashboard") timed page ;;
        "patchlight status")
            timed patchlight ocs rollback 1 --yes
            timed patchlight job submit live --hosts server1.gpu0,server3.gpu0 --iterations 20
            sleep 5
            timed patchlight job regroup live | tee regrouped
            ! grep -q "nothing to change" regrouped
            timed patchlight status
            timed patchlight job stop live ;;
        *) timed "${command[@]}" ;;
    esac
done 3<commands
[ ! -e /run/patchlight/my-lab ] || { echo "first-hour: something of the lab is left" >&2; exit 1; }
echo "all of it in $((SECONDS - began)) s"

#!/usr/bin/env bash
# What a new lab goes through, on servers that this machine rehearses: look at them, deploy, train over
# them, rewire the job while it runs, and take it all away again. Needs root.
#
#   deploy/lab-demo.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LAB=lab-demo
AGENTS_WAIT_S=60

patchlight() { .venv/bin/patchlight "$@"; }
bold='' plain=''
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { printf 'lab-demo: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "rehearsing servers needs root: sudo bash ${BASH_SOURCE[0]}"
began=$(date +%s)
trap 'patchlight emulate down $LAB' EXIT

step "The OFC 2022 lab: four servers with an sshd each, two ToRs, an optical switch"
patchlight emulate up ofc2022 --name $LAB --scale 1000 --servers ssh --replace

step "What the servers lack"
patchlight deploy check $LAB

step "Patchlight on all of them"
patchlight deploy push $LAB --workers process
patchlight deploy status $LAB

step "The controller finds their agents"
for ((second = 0; ; second++)); do
    silent=$(patchlight controller status --lab $LAB --json | python3 -c '
import json, sys
agents = json.load(sys.stdin)["agents"]
print(", ".join(a["server"] for a in agents if not a["reachable"]))')
    [ -n "$silent" ] || break
    [ $second -lt $AGENTS_WAIT_S ] || fail "silent after $AGENTS_WAIT_S s: the agents of $silent"
    sleep 1
done
patchlight controller status --lab $LAB

step "A job over both ToRs, regrouped under one of them while it trains"
patchlight job submit demo --lab $LAB --hosts gpu0,gpu2,gpu4,gpu5 --iterations 14
for ((second = 0; ; second++)); do
    patchlight job list --lab $LAB --json | grep -q '"state": "running"' && break
    [ $second -lt $AGENTS_WAIT_S ] || fail "the job does not run after $AGENTS_WAIT_S s"
    sleep 1
done
sleep 4 # some iterations over the link between the ToRs
patchlight job regroup demo --lab $LAB
patchlight job follow demo --lab $LAB
patchlight ocs history --lab $LAB

step "Nothing is left on the servers"
patchlight deploy remove $LAB
patchlight deploy status $LAB || true

step "And nothing here"
patchlight emulate down $LAB
trap - EXIT
echo "lab-demo: done in $(($(date +%s) - began)) s"

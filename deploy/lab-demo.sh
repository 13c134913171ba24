#!/usr/bin/env bash
# What a new lab goes through, on servers that this machine rehearses: look at them, deploy, train over
# them, rewire the job while it runs, and take it all away again. Needs root.
#
#   deploy/lab-demo.sh               PyTorch in containers: the servers have a Docker engine each
#   deploy/lab-demo.sh --processes   made-up gradients in processes: neither Docker nor PyTorch is needed
#
# The servers' root file system and the workers' image are made once, which needs a network.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

LAB=lab-demo

patchlight() { .venv/bin/patchlight "$@"; }
bold='' plain=''
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { printf 'lab-demo: %s\n' "$*" >&2; exit 1; }

# Waits until an expression in Python is true of `it`, the JSON of a command: SECONDS WHAT EXPRESSION COMMAND...
until_true() {
    local patience=$1 what=$2 expression=$3 second
    shift 3
    for ((second = 0; second < patience; second++)); do
        if patchlight "$@" --lab $LAB --json |
            python3 -c "import json, sys; it = json.load(sys.stdin); sys.exit(not ($expression))"; then
            return
        fi
        sleep 1
    done
    fail "not after $patience s: $what"
}

[ "$(id -u)" = 0 ] || fail "rehearsing servers needs root: sudo bash ${BASH_SOURCE[0]}"
case $* in
    '')
        step "Made once: the root file system of servers with Docker, and the image of workers"
        deploy/server-base.sh --docker
        image=$(deploy/worker-image.sh --torch --save)
        echo "$image"
        kind=docker
        workers=(--worker-kind docker --image patchlight-worker-torch:latest --image-file "$image")
        trains=(--model tiny-transformer --batch 8) ;;
    --processes)
        step "Made once: the root file system of servers"
        deploy/server-base.sh
        kind=ssh workers=(--worker-kind process) trains=() ;;
    *) fail "unknown arguments $*: expected --processes or none" ;;
esac
began=$(date +%s)
trap 'patchlight emulate down $LAB' EXIT

step "The OFC 2022 lab: four servers with an sshd each, two ToRs, an optical switch"
patchlight emulate up ofc2022 --name $LAB --scale 1000 --server-kind $kind --replace

step "What the servers lack"
patchlight deploy push $LAB --dry-run "${workers[@]}"

step "Patchlight on all of them"
patchlight deploy push $LAB "${workers[@]}"
patchlight deploy status $LAB

step "The controller finds their agents"
until_true 60 "every agent answers" 'all(agent["reachable"] for agent in it["agents"])' status
patchlight status --wide --lab $LAB

step "A job over both ToRs, regrouped under one of them while it trains"
patchlight job submit demo --lab $LAB --hosts gpu0,gpu2,gpu4,gpu5 --iterations 14 "${trains[@]}"
until_true 120 "the job trains over the link between the ToRs" 'it["iterations_done"] >= 2' job show demo
patchlight job regroup demo --lab $LAB
patchlight job show demo --follow --lab $LAB
patchlight ocs history --lab $LAB

step "Nothing is left on the servers"
patchlight deploy remove $LAB
patchlight deploy status $LAB || true

step "And nothing here"
patchlight emulate down $LAB
trap - EXIT
echo "lab-demo: done in $(($(date +%s) - began)) s"

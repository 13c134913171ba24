"""The shell that a worker's program runs under: it keeps its output, sees that there is one GPU
alone, waits for the start, and leaves the exit code where an agent that is not its parent finds it.

Nothing but a POSIX ``sh`` and its built-in commands, because that is all that every image has.
The worker's folder has, while there is a use for them: ``output.log``; ``start``, a pipe that a
gated program waits at; ``started``, once it was let go; ``exit``, its exit code (128 + number
if a signal ended it).
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from patchlight.agents.gpus.contract import PhysicalGpu
from patchlight.testbed.linux.files import open_plain

START, STARTED, EXIT, OUTPUT = "start", "started", "exit", "output.log"

# SIGTERM is passed on to the whole process group. A shell's ``wait`` is interrupted by it and
# has to be called again; 127 then means that the first call had the true exit code already.
_KEEPER = r"""
folder=$1 mode=$2 gpu=$3 minor=$4 root=$5
shift 5
exec </dev/null >>"$folder/output.log" 2>&1

refuse() {
    echo "patchlight: $1"
    set -- '"state": "failed", "iterations_done": 0, "message"' "$1"
    echo "{$1: \"$2\"}" >"$folder/state.json"
    echo 126 >"$folder/exit"
    exit 126
}

# The UUID of the GPU whose device node has that number: what the driver says, else its tool.
uuid_of_node() {
    for card in "$root"/proc/driver/nvidia/gpus/*/information; do
        [ -r "$card" ] || continue
        uuid='' number=''
        while read -r first second third _; do
            case "$first $second" in
                "GPU UUID:") uuid=$third ;;
                "Device Minor:") number=$third ;;
            esac
        done <"$card"
        if [ "$number" = "$1" ]; then
            echo "$uuid"
            return
        fi
    done
    command -v nvidia-smi >/dev/null || return 0
    nvidia-smi -L | while read -r line; do
        line=${line##*UUID: }
        echo "${line%)*}"
    done
}

if [ -n "$gpu" ]; then
    nodes=''
    for node in "$root"/dev/nvidia[0-9]*; do
        if [ -e "$node" ]; then nodes="$nodes ${node##*/}"; fi
    done
    case $nodes in
        '') refuse "this worker is to have the GPU $gpu, and sees none" ;;
        ' '*' '*) refuse "this worker is to have the GPU $gpu alone, and sees$nodes" ;;
    esac
    uuid=$(echo $(uuid_of_node "${nodes# nvidia}"))
    if [ -z "$uuid" ] && [ "$nodes" = " nvidia$minor" ]; then uuid=$gpu; fi
    [ "$uuid" = "$gpu" ] ||
        refuse "this worker is to have the GPU $gpu, but$nodes is ${uuid:-of unknown UUID}"
fi
if [ "$mode" = direct ]; then exec "$@"; fi
if [ "$mode" = gated ]; then
    trap 'exit 143' TERM
    read -r go <"$folder/start" || exit 125
    true >"$folder/started" || exit 125
fi
told=
trap 'trap "" TERM; told=yes; kill -TERM 0' TERM
"$@" &
program=$! code=
while :; do
    told=
    wait "$program"
    next=$?
    if [ "$next" = 127 ] && [ -n "$code" ]; then break; fi
    code=$next
    [ -n "$told" ] || break
done
echo "$code" >"$folder/exit"
exit "$code"
"""


def kept(
    program: Sequence[str],
    folder: str,
    *,
    gated: bool,
    waited_for: bool,
    gpu: PhysicalGpu | None = None,
    root: str = "",
) -> list[str]:
    """The command that runs ``program`` under the keeper; ``folder`` as the worker sees it.

    ``gated``: not before the start. ``waited_for``: somebody else learns the exit code, so that
    a program without a gate may take the keeper's place. Where the worker does not see the ``gpu``,
    or sees another one beside it, nothing is run; ``root`` is before ``/dev`` and ``/proc`` then.
    """
    mode = "gated" if gated else "direct" if waited_for else "kept"
    only = ("", "") if gpu is None else (gpu.uuid, "" if gpu.minor is None else str(gpu.minor))
    return ["sh", "-c", _KEEPER, "patchlight-keeper", folder, mode, *only, root, *program]


def make_gate(folder: Path) -> None:
    """The pipe that a gated program waits at."""
    os.mkfifo(folder / START, 0o600)


def open_gate(folder: Path) -> bool:
    """Let the program go; whether it has gone already, or anybody was there to be let go."""
    if (folder / STARTED).exists():
        return True
    try:
        pipe = os.open(folder / START, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # nobody waits there yet, or any more
        return False
    with os.fdopen(pipe, "wb") as opened:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):  # the worker has put something else there
            return False
        opened.write(b"go\n")
    return True


def exit_code(folder: Path) -> int:
    """What the program ended with; 137 (killed) if its keeper could not say any more."""
    try:
        with open_plain(folder / EXIT) as file:
            text = file.read(16).decode("ascii")
        return int(text) if text.endswith("\n") else 137
    except (OSError, ValueError):
        return 137

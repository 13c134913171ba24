"""The shell that a worker's program runs under, and the files that it leaves: output, exit code.

It checks that the worker sees its own GPU alone, waits for the start, and writes the exit code
where an agent that is not its parent finds it.

Nothing but a POSIX ``sh`` and its built-in commands, because that is all that every image has.
The worker's folder has, while there is a use for them: ``output.log``; ``start``, a pipe that a
gated program waits at; ``started``, once it was let go; ``exit``, its exit code (128 + number
if a signal ended it).
"""

import codecs
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from patchlight.agents.errors import AgentError
from patchlight.agents.gpus.contract import PhysicalGpu
from patchlight.testbed.linux import files
from patchlight.testbed.linux.files import open_plain
from patchlight.testbed.wire.worker_api import LogPart

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


MOST_KEPT_BYTES = 64 * 2**20
"""Of a longer output the beginning is dropped, down to half of this."""

_TAIL_BYTES = 16 * 1024


def bound_output(path: Path) -> None:
    """Drop the beginning of an output that has become too long. Harmless if there is none."""
    try:
        if path.lstat().st_size <= MOST_KEPT_BYTES:
            return
        with open_plain(path, change=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size - files.first_kept(file.fileno()) > MOST_KEPT_BYTES:
                files.give_back(file.fileno(), size - MOST_KEPT_BYTES // 2)
    except FileNotFoundError:
        return


def read_output(path: Path, after: int, limit: int) -> LogPart:
    """At most ``limit`` bytes after the first ``after``, as text; nothing before it began.

    A character at the end that is only half there comes with the next part.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            offset = min(max(after, files.first_kept(file.fileno())), size)
            data = os.pread(file.fileno(), limit, offset)
    except FileNotFoundError:
        return LogPart(offset=after, text="", next=after)
    except OSError as exc:
        raise AgentError(f"reading the output {path}: {exc.strerror}") from exc
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    begun, _ = decoder.getstate()
    if offset + len(data) == size and begun == data:  # nothing will complete it
        text, begun = data.decode(errors="replace"), b""
    if offset > after:
        text = f"[{offset - after} bytes of output are not kept any more]\n{text}"
    return LogPart(offset=offset, text=text, next=offset + len(data) - len(begun))


def last_lines(path: Path, count: int = 20) -> tuple[str, ...]:
    """The last lines of the output; none if it cannot be read."""
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = os.pread(file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    except OSError:
        return ()
    return tuple(line.rstrip() for line in data.decode(errors="replace").splitlines()[-count:])

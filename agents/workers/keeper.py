"""Manages a worker's folder and the keeper, the shell under which its program runs.

The keeper checks that the worker sees only its own GPU, waits for the start, and writes the exit
code for agents that are not its parent. It is plain POSIX ``sh``, which every image has.

The folder may contain ``output.log``; ``start``, a pipe that a gated program waits at; ``started``,
made at the start; ``exit``, the exit code (128 + number if a signal ended it); ``state.json``,
``reports.jsonl`` and ``control.sock`` of the worker itself. Do not trust any of these files: the
worker may be any program.
"""

import asyncio
import codecs
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from patchlight.agents.errors import AgentError, Conflict, log
from patchlight.agents.gpus import PhysicalGpu
from patchlight.agents.workers.contract import ExitInfo
from patchlight.testbed.errors import mistakes_in_words, reason, short
from patchlight.testbed.linux import files
from patchlight.testbed.units import format_size
from patchlight.testbed.wire.worker_api import LogPart, Report, WorkerState

START = "start"
STARTED = "started"
EXIT = "exit"
OUTPUT = "output.log"

# ``exit`` is opened before the program runs, which could put a pipe there that blocks the keeper.
# SIGTERM is passed on to the whole process group. A shell's ``wait`` is interrupted by it and
# has to be called again; 127 then means that the first call had the true exit code already.
_KEEPER = r"""
folder=$1 mode=$2 gpu=$3 minor=$4 root=$5
shift 5
exec </dev/null >>"$folder/output.log" 2>&1 3>"$folder/exit"

refuse() {
    echo "patchlight: $1"
    set -- '"state": "failed", "iterations_done": 0, "message"' "$1"
    echo "{$1: \"$2\"}" >"$folder/state.json"
    echo 126 >&3
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
        '') refuse "this worker needs the GPU $gpu but sees no GPU" ;;
        ' '*' '*) refuse "this worker may only have the GPU $gpu but sees$nodes" ;;
    esac
    uuid=$(echo $(uuid_of_node "${nodes# nvidia}"))
    if [ -z "$uuid" ] && [ "$nodes" = " nvidia$minor" ]; then uuid=$gpu; fi
    [ "$uuid" = "$gpu" ] ||
        refuse "this worker needs the GPU $gpu, but$nodes is ${uuid:-of unknown UUID}"
fi
if [ "$mode" = direct ]; then exec "$@" 3>&-; fi
if [ "$mode" = gated ]; then
    trap 'exit 143' TERM
    read -r go <"$folder/start" || exit 125
    true >"$folder/started" || exit 125
fi
told=
trap 'trap "" TERM; told=yes; kill -TERM 0' TERM
"$@" 3>&- &
program=$! code=
while :; do
    told=
    wait "$program"
    next=$?
    if [ "$next" = 127 ] && [ -n "$code" ]; then break; fi
    code=$next
    [ -n "$told" ] || break
done
echo "$code" >&3
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
    """The command that runs ``program`` under the keeper. ``folder`` is the worker's view of its
    folder; ``gated``: wait for the start; ``waited_for``: another process reads the exit code. The
    program does not run if the worker sees another GPU than ``gpu``; ``root`` is the prefix of
    ``/dev`` and ``/proc`` for that check."""
    mode = "gated" if gated else "direct" if waited_for else "kept"
    only = (
        ("", "")
        if gpu is None
        else (gpu.uuid, "" if gpu.minor is None else str(gpu.minor))
    )
    return [
        "sh",
        "-c",
        _KEEPER,
        "patchlight-keeper",
        folder,
        mode,
        *only,
        root,
        *program,
    ]


_LONGEST_EXIT_BYTES = 16
_EXIT_CODE = re.compile(rb"([0-9]{1,3})\n")


def make_gate(folder: Path) -> None:
    """The pipe at which a gated program waits."""
    os.mkfifo(folder / START, 0o600)


def open_gate(folder: Path) -> bool:
    """Start the program; returns whether it was waiting or has already started."""
    if (folder / STARTED).exists():
        return True
    try:
        pipe = os.open(
            folder / START, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        )
    except OSError:  # nobody is waiting
        return False
    with os.fdopen(pipe, "wb") as opened:
        if not stat.S_ISFIFO(
            os.fstat(pipe).st_mode
        ):  # the worker has put something else there
            return False
        opened.write(b"go\n")
    return True


def exit_code(folder: Path) -> tuple[int, str]:
    """The program's exit code, 137 (killed) if its keeper could not write it; or 255, and why what
    the worker has made of the file is not one."""
    path = folder / EXIT
    try:
        with files.open_plain(path) as file:
            text = file.read(_LONGEST_EXIT_BYTES)
    except OSError as exc:
        return 255, f"{path}: {exc.strerror}"
    if not text.endswith(b"\n") and len(text) < _LONGEST_EXIT_BYTES:
        return 137, ""
    if (found := _EXIT_CODE.fullmatch(text)) and int(found[1]) <= 255:
        return int(found[1]), ""
    return 255, f"{path} contains {short(repr(text))}"


MOST_KEPT_BYTES = 64 * 2**20
"""A longer output is cut to the last half of this."""

_TAIL_BYTES = 16 * 1024


def bound_output(path: Path) -> None:
    """Drop the beginning of an output that is too long. Harmless if it does not exist."""
    try:
        if path.lstat().st_size <= MOST_KEPT_BYTES:
            return
        with files.open_plain(path, change=True) as file:
            size = os.fstat(file.fileno()).st_size
            if size - files.first_kept(file.fileno()) > MOST_KEPT_BYTES:
                files.give_back(file.fileno(), size - MOST_KEPT_BYTES // 2)
    except FileNotFoundError:
        return


def read_output(
    path: Path,
    after: int,
    limit: int,
) -> LogPart:
    """At most ``limit`` bytes after the first ``after``, as text, without incomplete characters."""
    try:
        with files.open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            offset = min(max(after, files.first_kept(file.fileno())), size)
            data = os.pread(file.fileno(), limit, offset)
    except FileNotFoundError:
        return LogPart(
            offset=after,
            text="",
            next=after,
        )
    except OSError as exc:
        raise AgentError(f"reading the output {path}: {exc.strerror}") from exc
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    text = decoder.decode(data)
    begun, _ = decoder.getstate()
    if (
        offset + len(data) == size and begun == data
    ):  # it will never be completed
        text = data.decode(errors="replace")
        begun = b""
    if offset > after:
        text = f"[{offset - after} bytes of output were dropped]\n{text}"
    return LogPart(
        offset=offset,
        text=text,
        next=offset + len(data) - len(begun),
    )


def last_lines(path: Path, count: int = 20) -> tuple[str, ...]:
    """The last lines of the output; empty if it cannot be read."""
    try:
        with files.open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = os.pread(
                file.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES)
            )
    except OSError:
        return ()
    return tuple(
        line.rstrip()
        for line in data.decode(errors="replace").splitlines()[-count:]
    )


_LARGEST_STATE_BYTES = 64 * 1024
_LONGEST_REPORT_BYTES = 16 * 1024
_READ_AT_ONCE_BYTES = 2**20
_MOST_UNASKED = 1_000
_MOST_READS = 20
_ALWAYS_ITS_OWN_BYTES = 256 * 2**20
_LONGEST_MESSAGE = 4096


@checked_dataclass(
    frozen=True,
    slots=True,
)
class LastReport:
    """A worker's latest ``state.json``. ``starts``: how often it began."""

    state: WorkerState = WorkerState.STARTING
    # One more than the largest index of a report.
    iterations_done: Annotated[
        int,
        Field(
            ge=0,
            le=2**53 + 1,
        ),
    ] = 0
    message: Annotated[
        str, AfterValidator(lambda text: text[:_LONGEST_MESSAGE])
    ] = ""
    starts: Annotated[
        int,
        Field(
            ge=1,
            le=2**31,
        ),
    ] = 1
    lost_rank: Annotated[int, Field(ge=0)] | None = None


_STATE = TypeAdapter(LastReport)


class Ending(NamedTuple):
    """Why the agent ended a worker, and the resulting state."""

    state: WorkerState
    message: str


ON_REQUEST = Ending(WorkerState.STOPPED, "stopped on request")


def read_state(directory: Path) -> LastReport:
    """The worker's last state report; "starting" before the first."""
    try:
        with files.open_plain(directory / "state.json") as file:
            return _STATE.validate_json(file.read(_LARGEST_STATE_BYTES))
    except FileNotFoundError:
        return LastReport()
    except (OSError, ValidationError) as exc:
        why = (
            mistakes_in_words(exc) if isinstance(exc, ValidationError) else exc
        )
        return LastReport(message=f"the worker's state cannot be read: {why}")


def final_report(
    last: LastReport,
    exit_info: ExitInfo,
    ending: Ending | None = None,
    *,
    foreign: bool = False,
) -> LastReport:
    """The result of a worker: its last report, unless its exit code contradicts it. A ``foreign``
    program need not report: exit code 0 is success, unless its end was requested and it saved."""
    unsaid = last.state is not WorkerState.STOPPED and ending is None
    if foreign and exit_info.exit_code == 0 and unsaid:
        last = replace(last, state=WorkerState.DONE)
    if exit_info.exit_code == 0 and last.state is WorkerState.DONE:
        return last
    if ending is not None:
        return replace(
            last,
            state=ending.state,
            message=ending.message,
            lost_rank=None,
        )
    if exit_info.exit_code == 0 and last.state is WorkerState.STOPPED:
        return last
    if last.state is WorkerState.FAILED and last.message:
        return last
    while_what = "" if foreign else f" while {last.state}"
    message = f"the worker {exit_info.in_words}{while_what}"
    if foreign and exit_info.exit_code in _NO_PROGRAM:
        message += f": {_WHERE_PROGRAMS_ARE}"
    return replace(
        last,
        state=WorkerState.FAILED,
        message=message,
        lost_rank=None,
    )


# A shell's exit codes for a program that may not be run, or is not there.
_NO_PROGRAM = (126, 127)
_WHERE_PROGRAMS_ARE = (
    "its program is not on this server, or workers may not read it; 'job submit --workdir DIR' "
    "ships your files, and what all jobs need belongs in /srv or /opt"
)


class ReportReader:
    """Reads a worker's reports, each line once, and drops those that were fetched. Reading stops
    while too many are unfetched. A ``foreign`` program's other lines are skipped."""

    def __init__(self, directory: Path, *, foreign: bool = False) -> None:
        self._path = directory / "reports.jsonl"
        self._foreign = foreign
        self._warned = False
        self._offset = self._forgotten = 0
        self._reports: list[Report] = []
        self.iterations_done = 0
        """One more than the last iteration that was read."""

    def after(self, count: int) -> list[Report]:
        """The reports after the first ``count``, as far as they have been read."""
        if count < self._forgotten:
            self._offset = self._forgotten = 0
            self._reports = []
        for _ in range(_MOST_READS):
            told = min(count - self._forgotten, len(self._reports))
            del self._reports[:told]
            self._forgotten += told
            self.read()
            if self._forgotten == count or not self._reports:
                break
        return self._reports[count - self._forgotten :]

    def read(self) -> None:
        """Read new reports: at most a thousand lines, whatever is in them."""
        try:
            with files.open_plain(self._path) as file:
                end = file.seek(self._offset) + _READ_AT_ONCE_BYTES
                for _ in range(_MOST_UNASKED - len(self._reports)):
                    if self._offset >= end:
                        break
                    line = file.readline(_LONGEST_REPORT_BYTES)
                    if (
                        not line.endswith(b"\n")
                        and len(line) < _LONGEST_REPORT_BYTES
                    ):
                        break  # still being written
                    self._offset += len(line)
                    try:
                        self._reports.append(
                            report := Report.model_validate_json(line)
                        )
                        self.iterations_done = report.index + 1
                    except ValidationError as exc:
                        if not self._foreign:
                            raise
                        self._warn(exc)
        except FileNotFoundError:
            pass
        except (OSError, ValidationError) as exc:
            if not self._foreign:
                why = (
                    mistakes_in_words(exc)
                    if isinstance(exc, ValidationError)
                    else exc
                )
                raise AgentError(
                    f"reading the reports {self._path}: {why}"
                ) from exc
            self._warn(exc)

    def _warn(self, exc: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s: some lines are not reports: %s", self._path, exc)


def fills_disk(directory: Path) -> str:
    """Why a worker must be ended because of its folder's size, or an empty string. The limit is the
    free space of that disk, which leaves room for other workers."""
    used = files.used_bytes(directory)
    try:
        disk = os.statvfs(directory)
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    if used <= max(free, _ALWAYS_ITS_OWN_BYTES):
        return ""
    return (
        f"its folder has {format_size(used)}, more than the "
        f"{format_size(free)} free on that disk"
    )


def has_control(directory: Path) -> bool:
    """Whether the worker has opened its control socket."""
    try:
        return stat.S_ISSOCK((directory / "control.sock").lstat().st_mode)
    except OSError:
        return False


# The errors that a program's reply can cause, such as "[[[[…" and an iteration of 1e999.
_NO_REPLY = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)


async def tell(
    directory: Path,
    request: Mapping[str, Any],
    deadline_s: float = 5.0,
) -> int:
    """Send a running worker a request; returns its iteration. ``Conflict`` if it is not up yet or
    refuses, ``AgentError`` if it does not answer."""
    not_up = Conflict(
        "the worker is not up yet", hint="wait until it is ready"
    )
    try:
        # Open without following links that the worker may have put there.
        found = os.open(directory / "control.sock", os.O_PATH | os.O_NOFOLLOW)
    except FileNotFoundError as exc:
        raise not_up from exc
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise not_up
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_unix_connection(
                f"/proc/self/fd/{found}"
            )
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                reply = json.loads(await reader.readline())
            finally:
                writer.close()
        if not reply.get("ok"):
            raise Conflict(
                str(reply.get("error")), iteration=reply.get("iteration")
            )
        return int(reply["iteration"])
    except ConnectionRefusedError as exc:
        raise not_up from exc
    except _NO_REPLY as exc:
        is_late = isinstance(exc, TimeoutError)
        why = f"no answer after {deadline_s:g} s" if is_late else reason(exc)
        raise AgentError(
            f"sending {request.get('op')} to the worker: {why}"
        ) from exc
    finally:
        os.close(found)

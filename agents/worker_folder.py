"""A worker's folder: the state and reports that it writes, and its control socket.

The worker may be anybody's program: what it puts there may be anything, and of any kind.
"""

import asyncio
import itertools
import json
import logging
import os
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from patchlight.agents.errors import AgentError, Conflict
from patchlight.agents.workers.contract import ExitInfo
from patchlight.testbed.io.issues import mistakes_in_words
from patchlight.testbed.linux.files import open_plain
from patchlight.testbed.units import format_size
from patchlight.testbed.wire.worker_api import Report, WorkerState

_LARGEST_STATE_BYTES = 64 * 1024
_LONGEST_REPORT_BYTES = 16 * 1024
_READ_AT_ONCE_BYTES, _MOST_UNASKED = 2**20, 10_000
_ALWAYS_ITS_OWN_BYTES = 256 * 2**20
_MOST_FOLDERS, _MOST_FILES = 100, 10_000
_LONGEST_MESSAGE = 4096
_log = logging.getLogger("patchlight.agent")


@checked_dataclass(frozen=True, slots=True)
class LastReport:
    """What a worker last wrote of itself: its ``state.json``. ``starts``: how often it began."""

    state: WorkerState = WorkerState.STARTING
    iterations_done: Annotated[int, Field(ge=0, le=2**53)] = 0
    message: Annotated[str, AfterValidator(lambda text: text[:_LONGEST_MESSAGE])] = ""
    starts: Annotated[int, Field(ge=1, le=2**31)] = 1
    lost_rank: Annotated[int, Field(ge=0)] | None = None


_STATE = TypeAdapter(LastReport)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the agent ended a worker, and what state that leaves it in."""

    state: WorkerState
    message: str


ON_REQUEST = Ending(WorkerState.STOPPED, "stopped on request")


def read_state(directory: Path) -> LastReport:
    """The worker's last report of itself; "starting" before there is any."""
    try:
        with open_plain(directory / "state.json") as file:
            return _STATE.validate_json(file.read(_LARGEST_STATE_BYTES))
    except FileNotFoundError:
        return LastReport()
    except (OSError, ValidationError) as exc:
        why = mistakes_in_words(exc) if isinstance(exc, ValidationError) else exc
        return LastReport(message=f"the worker's state cannot be read: {why}")


def final_report(
    last: LastReport, exit_info: ExitInfo, ending: Ending | None = None, *, foreign: bool = False
) -> LastReport:
    """What became of a worker that has ended: its last report, unless its exit contradicts it.

    A worker that ends without having reported how it failed is known by its exit code. Of a
    ``foreign`` program no reports are expected: exit code 0 is success.
    """
    if foreign and exit_info.exit_code == 0 and last.state is not WorkerState.STOPPED:
        last = replace(last, state=WorkerState.DONE)
    if exit_info.exit_code == 0 and last.state is WorkerState.DONE:
        return last
    if ending is not None:
        return replace(last, state=ending.state, message=ending.message, lost_rank=None)
    if exit_info.exit_code == 0 and last.state is WorkerState.STOPPED:
        return last
    if last.state is WorkerState.FAILED and last.message:
        return last
    while_what = "" if foreign else f" while {last.state}"
    message = f"the worker {exit_info.in_words}{while_what}"
    return replace(last, state=WorkerState.FAILED, message=message, lost_rank=None)


class ReportReader:
    """Reads a worker's reports as they are written, each line once, and so many bytes at a time.

    Those that were asked for are forgotten, and while too many were not, no more are read. Lines of
    a ``foreign`` program that are no reports are passed over, and the log says so once.
    """

    def __init__(self, directory: Path, *, foreign: bool = False) -> None:
        self._path = directory / "reports.jsonl"
        self._foreign = foreign
        self._warned = False
        self._offset = self._forgotten = 0
        self._reports: list[Report] = []
        self.iterations_done = 0
        """One more than the last iteration that was read."""

    def after(self, count: int) -> list[Report]:
        """The reports after the first ``count``, as far as they are read by now."""
        if count < self._forgotten:
            self._offset = self._forgotten = 0
            self._reports = []
        told = min(count - self._forgotten, len(self._reports))
        del self._reports[:told]
        self._forgotten += told
        self.read()
        return self._reports[count - self._forgotten :]

    def read(self) -> None:
        """Read on."""
        try:
            with open_plain(self._path) as file:
                end = file.seek(self._offset) + _READ_AT_ONCE_BYTES
                while self._offset < end and len(self._reports) < _MOST_UNASKED:
                    line = file.readline(_LONGEST_REPORT_BYTES)
                    if not line.endswith(b"\n") and len(line) < _LONGEST_REPORT_BYTES:
                        break  # still being written
                    self._offset += len(line)
                    self._take(line)
        except FileNotFoundError:
            pass
        except (OSError, ValidationError) as exc:
            if not self._foreign:
                why = mistakes_in_words(exc) if isinstance(exc, ValidationError) else exc
                raise AgentError(f"reading the reports {self._path}: {why}") from exc
            self._warn(exc)

    def _take(self, line: bytes) -> None:
        try:
            self._reports.append(report := Report.model_validate_json(line))
            self.iterations_done = report.index + 1
        except ValidationError as exc:
            if not self._foreign:
                raise
            self._warn(exc)

    def _warn(self, exc: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s: not all of it are reports: %s", self._path, exc)


def fills_disk(directory: Path) -> str:
    """Why a worker is to end for what it has written to its folder, in words; empty if it is not.

    It may have as much as it leaves free on that disk, and a little in any case: so the server has
    room for its other workers whatever one of them does.
    """
    used = _used_bytes(directory)
    if used <= _ALWAYS_ITS_OWN_BYTES:
        return ""
    try:
        disk = os.statvfs(directory)
    except OSError:
        return ""
    free = disk.f_bavail * disk.f_frsize
    if used <= free:
        return ""
    return (
        f"its folder has {format_size(used)}, more than the {format_size(free)} that are still "
        "free on that disk"
    )


def _used_bytes(directory: Path) -> int:
    """What the files of a folder take on the disk; of very many, the first alone count."""
    used, folders = 0, deque([str(directory)])
    for _ in range(_MOST_FOLDERS):
        if not folders:
            break
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in itertools.islice(entries, _MOST_FILES):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        used += 512 * entry.stat(follow_symlinks=False).st_blocks
        except OSError:  # it may be removing just these
            continue
    return used


def has_control(directory: Path) -> bool:
    """Whether the worker has opened its control socket."""
    try:
        return stat.S_ISSOCK((directory / "control.sock").lstat().st_mode)
    except OSError:
        return False


def _not_up() -> Conflict:
    return Conflict("the worker is not up yet", hint="wait until it is ready")


async def tell(directory: Path, request: Mapping[str, Any], deadline_s: float = 5.0) -> int:
    """Tell a running worker something; gives the iteration it is at.

    ``Conflict`` if the worker is not up yet or refuses, ``AgentError`` if it does not answer.
    """
    try:
        # What has that name now, and no link that the worker puts there instead.
        found = os.open(directory / "control.sock", os.O_PATH | os.O_NOFOLLOW)
    except FileNotFoundError as exc:
        raise _not_up() from exc
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise _not_up()
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{found}")
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                reply = json.loads(await reader.readline())
            finally:
                writer.close()
        if not reply.get("ok"):
            raise Conflict(str(reply.get("error")), iteration=reply.get("iteration"))
        return int(reply["iteration"])
    except ConnectionRefusedError as exc:
        raise _not_up() from exc
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise AgentError(
            f"telling the worker {request.get('op')}: {exc or 'it did not answer'}"
        ) from exc
    finally:
        os.close(found)

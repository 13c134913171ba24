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
from typing import Any

from pydantic import ValidationError

from patchlight.agents.errors import AgentError, Conflict
from patchlight.agents.training.control import socket_in
from patchlight.agents.workers.contract import ExitInfo
from patchlight.testbed.io.mistakes import mistakes_in_words
from patchlight.testbed.linux.files import open_plain
from patchlight.testbed.units import format_size
from patchlight.testbed.wire.worker_api import Report, WorkerState

_LARGEST_STATE_BYTES = 64 * 1024
_LONGEST_REPORT_BYTES = 16 * 1024
_ALWAYS_ITS_OWN_BYTES = 256 * 2**20
_MOST_FOLDERS, _MOST_FILES = 100, 10_000
_log = logging.getLogger("patchlight.agent")


@dataclass(frozen=True, slots=True)
class LastReport:
    """What a worker last wrote of itself: its ``state.json``. ``starts``: how often it began."""

    state: WorkerState = WorkerState.STARTING
    iterations_done: int = 0
    message: str = ""
    starts: int = 1
    lost_rank: int | None = None


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
            data = json.loads(file.read(_LARGEST_STATE_BYTES))
        lost = data.get("lost_rank")
        return LastReport(
            WorkerState(data["state"]),
            int(data["iterations_done"]),
            str(data["message"]),
            int(data.get("starts", 1)),
            lost if isinstance(lost, int) and lost >= 0 else None,
        )
    except FileNotFoundError:
        return LastReport()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        return LastReport(message=f"the worker's state cannot be read: {exc}")


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
    """Reads a worker's reports as they are written, each line once.

    Lines of a ``foreign`` program that are no reports are passed over, and the log says so once.
    """

    def __init__(self, directory: Path, *, foreign: bool = False) -> None:
        self._path = directory / "reports.jsonl"
        self._foreign = foreign
        self._warned = False
        self._offset = 0
        self._reports: list[Report] = []

    @property
    def iterations_done(self) -> int:
        """One more than the last iteration that was read."""
        return self._reports[-1].index + 1 if self._reports else 0

    def after(self, count: int) -> list[Report]:
        """The reports after the first ``count``."""
        try:
            with open_plain(self._path) as file:
                file.seek(self._offset)
                while line := file.readline(_LONGEST_REPORT_BYTES):
                    if not line.endswith(b"\n") and len(line) < _LONGEST_REPORT_BYTES:
                        break  # still being written
                    self._take(line)
                    self._offset += len(line)
        except FileNotFoundError:
            pass
        except (OSError, ValidationError) as exc:
            if not self._foreign:
                why = mistakes_in_words(exc) if isinstance(exc, ValidationError) else exc
                raise AgentError(f"reading the reports {self._path}: {why}") from exc
            self._warn(exc)
        return self._reports[count:]

    def _take(self, line: bytes) -> None:
        try:
            self._reports.append(Report.model_validate_json(line))
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


async def tell(directory: Path, request: Mapping[str, Any], deadline_s: float = 5.0) -> int:
    """Tell a running worker something; gives the iteration it is at.

    ``Conflict`` if the worker is not up yet or refuses, ``AgentError`` if it does not answer.
    """
    if not has_control(directory):
        raise Conflict("the worker is not up yet", hint="wait until it is ready")
    try:
        async with asyncio.timeout(deadline_s):
            with socket_in(directory, "control.sock") as path:
                reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                reply = json.loads(await reader.readline())
            finally:
                writer.close()
        if not reply.get("ok"):
            raise Conflict(str(reply.get("error")), iteration=reply.get("iteration"))
        return int(reply["iteration"])
    except (FileNotFoundError, ConnectionRefusedError) as exc:
        raise Conflict("the worker is not up yet", hint="wait until it is ready") from exc
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise AgentError(
            f"telling the worker {request.get('op')}: {exc or 'it did not answer'}"
        ) from exc

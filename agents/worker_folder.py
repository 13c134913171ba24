"""A worker's folder: the state and reports that it writes, and its control socket."""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from patchlight.agents.errors import AgentError, Conflict
from patchlight.agents.workers.contract import ExitInfo
from patchlight.testbed.mistakes import mistakes_in_words
from patchlight.testbed.worker_api import Report, WorkerState


@dataclass(frozen=True, slots=True)
class LastReport:
    """What a worker last wrote of itself: its ``state.json``. ``starts``: how often it began."""

    state: WorkerState = WorkerState.STARTING
    iterations_done: int = 0
    message: str = ""
    starts: int = 1


def read_state(directory: Path) -> LastReport:
    """The worker's last report of itself; "starting" before there is any."""
    try:
        data = json.loads((directory / "state.json").read_text(encoding="utf-8"))
        return LastReport(
            WorkerState(data["state"]),
            int(data["iterations_done"]),
            str(data["message"]),
            int(data.get("starts", 1)),
        )
    except FileNotFoundError:
        return LastReport()
    except (OSError, ValueError, KeyError, TypeError) as exc:
        return LastReport(message=f"the worker's state cannot be read: {exc}")


def final_report(last: LastReport, exit_info: ExitInfo, stopping: bool) -> LastReport:
    """What became of a worker that has ended: its last report, unless its exit contradicts it.

    A worker that ends without having reported how it failed is known by its exit code.
    """
    if stopping and last.state is not WorkerState.DONE:
        return replace(last, state=WorkerState.STOPPED, message="stopped on request")
    if exit_info.exit_code == 0 and last.state in (WorkerState.DONE, WorkerState.STOPPED):
        return last
    if last.state is WorkerState.FAILED:
        return last
    code = exit_info.exit_code
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return replace(last, state=WorkerState.FAILED, message=f"the worker {how} while {last.state}")


class ReportReader:
    """Reads a worker's reports as they are written, each line once."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reports.jsonl"
        self._offset = 0
        self._reports: list[Report] = []

    def after(self, count: int) -> list[Report]:
        """The reports after the first ``count``."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # still being written
                    self._reports.append(Report.model_validate_json(line))
                    self._offset += len(line)
        except FileNotFoundError:
            pass
        except (OSError, ValidationError) as exc:
            why = mistakes_in_words(exc) if isinstance(exc, ValidationError) else exc
            raise AgentError(f"reading the reports {self._path}: {why}") from exc
        return self._reports[count:]


async def tell(directory: Path, request: Mapping[str, Any], deadline_s: float = 5.0) -> int:
    """Tell a running worker something; gives the iteration it is at.

    ``Conflict`` if the worker is not up yet or refuses, ``AgentError`` if it does not answer.
    """
    # Through /proc, because a Unix socket's path may have only 107 characters.
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_unix_connection(
                f"/proc/self/fd/{folder}/control.sock"
            )
            try:
                writer.write(json.dumps(request).encode() + b"\n")
                reply = json.loads(await reader.readline())
            finally:
                writer.close()
    except (FileNotFoundError, ConnectionRefusedError) as exc:
        raise Conflict("the worker is not up yet", hint="wait until it is ready") from exc
    except (OSError, TimeoutError, ValueError) as exc:
        raise AgentError(
            f"telling the worker {request.get('op')}: {exc or 'it did not answer'}"
        ) from exc
    finally:
        os.close(folder)
    if not reply.get("ok"):
        raise Conflict(str(reply.get("error")), iteration=reply.get("iteration"))
    return int(reply["iteration"])

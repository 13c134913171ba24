"""``patchlight job`` commands that stay with jobs: their iterations, their output, their end."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from patchlight.cli.job.find import find_job, job_argument, jobs_argument
from patchlight.cli.job.flags import reads
from patchlight.cli.job.words import elapsed, outcome
from patchlight.client.client import ControllerClient, ControllerError, NoAnswer
from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import json_option, print_json, say
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.values import TIME

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import Job

T = TypeVar("T")

_POLL_S = 0.5
_FAILED, _TIMED_OUT = 1, 2


def patiently(call: Callable[[], T]) -> T:
    """What it answers, however long the controller is away meanwhile."""
    away = False
    while True:
        try:
            answer = call()
        except NoAnswer as error:
            if not away:
                say(f"waiting for the controller: {error.message}", err=True)
            away = True
            time.sleep(_POLL_S)
        else:
            if away:
                say("the controller answers again", err=True)
            return answer


def follow_job(client: ControllerClient, job_id: str, *, as_json: bool) -> None:
    """Show a job's iterations until it ends; ``PatchlightError`` unless it is done then."""
    after = 0
    while True:
        status = patiently(lambda: client.job(job_id))
        known = after
        reports, after = patiently(lambda: client.iterations(job_id, known))  # noqa: B023
        for r in reports:
            if as_json:
                print_json(r, one_line=True)
                continue
            say(
                f"rank {r['rank']} iteration {r['index']}: compute {r['compute_s']:.3f} s, "
                f"communication {r['communication_s']:.3f} s"
            )
        if JobState(status["state"]).is_final:
            break
        time.sleep(_POLL_S)
    if status["state"] != JobState.DONE:
        lines = "".join(f"\n  | {line}" for line in status["last_lines"])
        raise PatchlightError(f"job {job_id} {status['state']}: {status['message']}{lines}")
    if not as_json:
        say(f"done in {elapsed(status)}")


@click.command()
@job_argument
@json_option
@controller_options
def follow(job: str, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Show a job's iterations as they finish, until it ends; with --json one on a line."""
    with connect(lab_name, address) as client:
        follow_job(client, find_job(client, job), as_json=as_json)


class _Output:
    """Prints what the workers of a job print, line by line."""

    def __init__(self, client: ControllerClient, job_id: str, *, as_json: bool) -> None:
        self._client, self._job_id, self._as_json = client, job_id, as_json
        self._next: Counter[int] = Counter()
        self._begun: dict[int, str] = {}

    def print(self, worker: int, *, marked: bool) -> None:
        """Print the lines that it has finished since; ``marked`` with the worker's number."""
        while True:
            after = self._next[worker]
            part = patiently(lambda: self._client.log(self._job_id, worker, after))  # noqa: B023
            self._next[worker] = max(after, part["next"])
            *lines, begun = (self._begun.get(worker, "") + part["text"]).split("\n")
            self._begun[worker] = begun
            for line in lines:
                self._line(worker, line, marked=marked)
            if part["next"] <= after:
                return

    def end(self, *, marked: bool) -> None:
        """Print the lines that no line break ended."""
        for worker, line in self._begun.items():
            if line:
                self._line(worker, line, marked=marked)
        self._begun.clear()

    def _line(self, worker: int, line: str, *, marked: bool) -> None:
        if self._as_json:
            print_json({"worker": worker, "line": line}, one_line=True)
        else:
            say(f"[{worker}] {line}" if marked else line)


@click.command()
@job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job ends.")
@click.option(
    "--worker", type=click.IntRange(min=0), metavar="RANK", help="Of one worker  [default: of all]."
)
@json_option
@controller_options
def logs(
    job: str,
    following: bool,
    worker: int | None,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Print what a job's workers print; with --json a line of theirs on each.

    With several workers, each line begins with the rank of its worker. Of a job that has ended,
    the last MiB of each is kept.
    """
    with connect(lab_name, address) as client:
        job_id = find_job(client, job)
        output = _Output(client, job_id, as_json=as_json)
        while True:
            status = patiently(lambda: client.job(job_id))
            final = JobState(status["state"]).is_final
            count = max(1, len(status["hosts"]))
            several = worker is None and count > 1
            for rank in range(count) if worker is None else [worker]:
                try:
                    output.print(rank, marked=several)
                except ControllerError:
                    # A worker that is being made, or was taken away just now, has no output.
                    now = patiently(lambda: client.job(job_id))
                    if not following or status["state"] == now["state"] == JobState.RUNNING:
                        raise
            if final or not following:
                break
            time.sleep(_POLL_S)
        output.end(marked=several)
        if following or final:
            say(outcome(status), err=True)


@click.command()
@jobs_argument
@click.option(
    "--timeout", "timeout_s", callback=reads(TIME), metavar="TIME", help="Wait no longer than this."
)
@json_option
@controller_options
def wait(
    jobs: tuple[str, ...],
    timeout_s: float | None,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Wait until jobs have ended.

    Exit code 0 if all are done, 1 if one failed or was stopped, 2 if the time is over before.
    """
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    ended: list[Job] = []
    with connect(lab_name, address) as client:
        left = [find_job(client, job) for job in dict.fromkeys(jobs)]
        while True:
            for job_id in list(left):
                status = patiently(lambda: client.job(job_id))  # noqa: B023
                if JobState(status["state"]).is_final:
                    left.remove(job_id)
                    ended.append(status)
                    if not as_json:
                        say(outcome(status))
            if not left or (ends is not None and time.monotonic() >= ends):
                break
            time.sleep(_POLL_S if ends is None else min(_POLL_S, max(0, ends - time.monotonic())))
    if as_json:
        print_json(ended)
    if left:
        say(f"after {timeout_s:g} s these have not ended: {', '.join(left)}", err=True)
        sys.exit(_TIMED_OUT)
    if any(status["state"] != JobState.DONE for status in ended):
        sys.exit(_FAILED)


COMMANDS = (follow, logs, wait)

"""``patchlight job`` commands that follow jobs: iterations, output, the end, and rates."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from patchlight.cli.job.flags import reads
from patchlight.cli.job.texts import (
    elapsed,
    find_job,
    iterations,
    job_argument,
    jobs_argument,
    message,
    outcome,
)
from patchlight.client.client import ControllerClient, ControllerError, NoAnswer
from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import (
    Column,
    Table,
    json_option,
    listing_options,
    live,
    print_json,
    say,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.values import TIME

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import IterationReport, JobAnswer, JobInList


T = TypeVar("T")

Answer = dict[str, Any]

_POLL_S = 0.5
_TOP_EVERY_S = 1.0
# As many iterations of each worker as a figure of ``top`` is the mean of.
_ITERATIONS = 8
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
    ended: list[JobAnswer] = []
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


@click.command()
@click.option("--once", is_flag=True, help="Print it once; so it is done where no terminal is.")
@listing_options
@controller_options
def top(once: bool, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Show how fast the running jobs are, again each second. Ends with Ctrl-C.

    Figures are means over a job's latest eight iterations: how many there are in a second, how
    long one computes and communicates, how long it was predicted to take, and how far off that was.
    With --json it is printed once.
    """
    with connect(lab_name, address) as client:
        if as_json:
            print_json(_rows(client))
        else:
            live(lambda: _table(patiently(lambda: _rows(client))), _TOP_EVERY_S, once=once)


def _rows(client: ControllerClient) -> list[Answer]:
    running = [*client.jobs(state=JobState.RUNNING), *client.jobs(state=JobState.PAUSED)]
    return [
        {**status, **pace(client.latest_iterations(status["id"], _most(status)))}
        for status in running
    ]


def _most(status: JobInList) -> int:
    return min(1000, _ITERATIONS * max(1, len(status["hosts"])))


def pace(reports: Sequence[IterationReport]) -> Answer:
    """``iterations_per_s``, ``compute_s`` and ``communication_s``, as means over these reports.

    ``None`` where nothing, or nothing but one iteration, was reported.
    """
    ends: defaultdict[int, float] = defaultdict(float)
    for report in reports:
        ends[report["index"]] = max(ends[report["index"]], report["finished_at"])
    at = sorted(ends.values())
    seconds = at[-1] - at[0] if at else 0.0
    return {
        "iterations_per_s": (len(at) - 1) / seconds if seconds > 0 else None,
        "compute_s": fmean(r["compute_s"] for r in reports) if reports else None,
        "communication_s": fmean(r["communication_s"] for r in reports) if reports else None,
    }


def _table(rows: list[Answer]) -> Table:
    table = Table(
        "id",
        Column("GPUs", whole=True, right=True),
        Column("done", whole=True, right=True),
        Column("in 1 s", whole=True, right=True),
        Column("compute", whole=True, right=True),
        Column("communicate", whole=True, right=True),
        Column("predicted", whole=True, right=True),
        Column("off", whole=True, right=True),
        Column("user", wide=True),
        Column("hosts", wide=True),
        Column("message", wide=True),
        title="running jobs" if rows else "no job runs",
    )
    for row in rows:
        table.add_row(
            row["id"],
            str(len(row["hosts"])),
            iterations(cast("JobInList", row)),
            _figure(row["iterations_per_s"], ""),
            _figure(row["compute_s"], " s"),
            _figure(row["communication_s"], " s"),
            _figure(row.get("predicted_iteration_s"), " s"),
            _off(row["iterations_per_s"], row.get("predicted_iteration_s")),
            row["by"],
            ", ".join(row["hosts"]),
            message(cast("JobInList", row)),
        )
    return table


def _off(iterations_per_s: float | None, predicted_s: float | None) -> str:
    """By how much an iteration takes longer than predicted."""
    if not iterations_per_s or not predicted_s:
        return ""
    return f"{1 / (iterations_per_s * predicted_s) - 1:+.0%}".replace("%", " %")


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3f}{unit}"

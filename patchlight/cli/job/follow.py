"""``patchlight job`` commands for jobs that run: follow them, stop, restart and regroup them."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import click

from patchlight.cli.job import listing
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.console import rendering as out
from patchlight.console.connection import complete_job, patiently, with_client
from patchlight.console.options import Quantity
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import IterationReport, JobAnswer, JobInList

_POLL_S = 0.5
_TOP_EVERY_S = 1.0
# As many iterations of each worker as a figure of ``top`` is the mean of.
_ITERATIONS = 8
_FAILED, _TIMED_OUT = 1, 2
_NOTHING = "No running job gains more by other circuits than they would cost."


def follow_job(client: ControllerClient, job_id: str, *, as_json: bool) -> None:
    """Show a job's iterations until it ends; ``PatchlightError`` unless it is done then."""
    after = 0
    while True:
        status = patiently(lambda: client.job(job_id))
        known = after
        reports, after = patiently(lambda: client.iterations(job_id, known))  # noqa: B023
        for r in reports:
            if as_json:
                out.print_json(r, one_line=True)
                continue
            out.say(
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
        out.say(f"done in {listing.elapsed(status)}")


@click.command()
@listing.job_argument
@out.json_option
@with_client
def follow(client: ControllerClient, job: str, as_json: bool) -> None:
    """Show a job's iterations as they finish, until it ends; with --json one on a line."""
    follow_job(client, listing.find_job(client, job), as_json=as_json)


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
            out.print_json({"worker": worker, "line": line}, one_line=True)
        else:
            out.say(f"[{worker}] {line}" if marked else line)


@click.command()
@listing.job_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on until the job ends.")
@click.option(
    "--worker", type=click.IntRange(min=0), metavar="RANK", help="Of one worker  [default: of all]."
)
@out.json_option
@with_client
def logs(
    client: ControllerClient, job: str, following: bool, worker: int | None, as_json: bool
) -> None:
    """Print what a job's workers print; with --json a line of theirs on each.

    With several workers, each line begins with the rank of its worker. Of a job that has ended,
    the last MiB of each is kept.
    """
    job_id = listing.find_job(client, job)
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
        out.say(listing.outcome(status), err=True)


@click.command()
@click.argument("jobs", metavar="JOB…", nargs=-1, required=True, shell_complete=complete_job)
@click.option(
    "--timeout",
    "timeout_s",
    type=Quantity(parse_time),
    metavar="TIME",
    help="Wait no longer than this.",
)
@out.json_option
@with_client
def wait(
    client: ControllerClient, jobs: tuple[str, ...], timeout_s: float | None, as_json: bool
) -> None:
    """Wait until jobs have ended.

    Exit code 0 if all are done, 1 if one failed or was stopped, 2 if the time is over before.
    """
    ends = None if timeout_s is None else time.monotonic() + timeout_s
    ended: list[JobAnswer] = []
    left = [listing.find_job(client, job) for job in dict.fromkeys(jobs)]
    while True:
        for job_id in list(left):
            status = patiently(lambda: client.job(job_id))  # noqa: B023
            if JobState(status["state"]).is_final:
                left.remove(job_id)
                ended.append(status)
                if not as_json:
                    out.say(listing.outcome(status))
        if not left or (ends is not None and time.monotonic() >= ends):
            break
        time.sleep(_POLL_S if ends is None else min(_POLL_S, max(0, ends - time.monotonic())))
    if as_json:
        out.print_json(ended)
    if left:
        out.say(f"after {timeout_s:g} s these have not ended: {', '.join(left)}", err=True)
        sys.exit(_TIMED_OUT)
    if any(status["state"] != JobState.DONE for status in ended):
        sys.exit(_FAILED)


@click.command()
@click.option("--once", is_flag=True, help="Print it once; so it is done where no terminal is.")
@out.listing_options
@with_client
def top(client: ControllerClient, once: bool, as_json: bool) -> None:
    """Show how fast the running jobs are, again each second. Ends with Ctrl-C.

    Figures are means over a job's latest eight iterations: how many there are in a second, how
    long one computes and communicates, how long it was predicted to take, and how far off that was.
    With --json it is printed once.
    """
    if as_json:
        out.print_json(_rows(client))
    else:
        out.live(lambda: _table(patiently(lambda: _rows(client))), _TOP_EVERY_S, once=once)


def _rows(client: ControllerClient) -> list[dict[str, Any]]:
    running = [*client.jobs(state=JobState.RUNNING), *client.jobs(state=JobState.PAUSED)]
    found: list[dict[str, Any]] = []
    for status in running:
        latest = min(1000, _ITERATIONS * max(1, len(status["hosts"])))
        found.append({**status, **pace(client.latest_iterations(status["id"], latest))})
    return found


def pace(reports: Sequence[IterationReport]) -> dict[str, Any]:
    """``iterations_per_s``, ``compute_s`` and ``communication_s``, as means over these reports.

    ``None`` where nothing, or only one iteration, was reported.
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


def _table(rows: list[dict[str, Any]]) -> out.Table:
    def figure(value: float | None, unit: str) -> str:
        return "" if value is None else f"{value:.3f}{unit}"

    table = out.Table(
        "id",
        *out.numbers("GPUs", "done", "in 1 s", "compute", "communicate", "predicted", "off"),
        *(out.Column(name, wide=True) for name in ("user", "hosts", "message")),
        title="running jobs" if rows else "no job runs",
    )
    for row in rows:
        per_s, predicted_s = row["iterations_per_s"], row.get("predicted_iteration_s")
        off = f"{1 / (per_s * predicted_s) - 1:+.0%}" if per_s and predicted_s else ""
        table.add_row(
            row["id"],
            str(len(row["hosts"])),
            listing.iterations(cast("JobInList", row)),
            figure(per_s, ""),
            figure(row["compute_s"], " s"),
            figure(row["communication_s"], " s"),
            figure(predicted_s, " s"),
            off.replace("%", " %"),
            row["by"],
            ", ".join(row["hosts"]),
            listing.message(cast("JobInList", row)),
        )
    return table


@click.command()
@listing.job_argument
@listing.force_option
@out.json_option
@with_client
def stop(client: ControllerClient, job: str, force: bool, as_json: bool) -> None:
    """Stop a job and those submitted together with it."""
    status = client.stop(listing.find_job(client, job), force=force)
    out.print_answer(status, status["state"], as_json=as_json)


@click.command()
@listing.job_argument
@listing.force_option
@out.json_option
@with_client
def restart(client: ControllerClient, job: str, force: bool, as_json: bool) -> None:
    """Begin a job again: one that has ended as a new job, one that runs where it is.

    A synthetic job that runs goes on at its iteration, on whatever GPUs it gets now.
    """
    status = client.restart(listing.find_job(client, job), force=force)
    out.print_answer(status, f"{status['id']} {status['state']}", as_json=as_json)


@click.command()
@click.argument("jobs", metavar="[JOB…]", nargs=-1, shell_complete=complete_job)
@click.option("--dry-run", is_flag=True, help="Print what would change, and change nothing.")
@click.option(
    "--detach", is_flag=True, help="Begin it and do not wait: 'patchlight ocs watch ID' follows it."
)
@out.json_option
@with_client
def regroup(
    client: ControllerClient, jobs: tuple[str, ...], dry_run: bool, detach: bool, as_json: bool
) -> None:
    """Bring running jobs under one packet switch each, without stopping them.

    Without JOB those whose regrouping is predicted to gain the most, if that is more than it costs:
    the iteration that each ends first, and the time without light.
    """
    from patchlight.cli.ocs import print_change

    ids = [listing.find_job(client, job) for job in jobs]
    if dry_run:
        found = client.preview_regroup(ids) if ids else client.defragmentation()
        out.print_answer(found, lambda: _print_proposal(found), as_json=as_json)
        return
    record = client.regroup(ids, detach=detach) if ids else client.defragment(detach=detach)
    if record is None:
        out.print_answer(None, _NOTHING, as_json=as_json)
    else:
        print_change(record, as_json=as_json)


def _print_proposal(found: Mapping[str, Any] | None) -> None:
    if found is None:
        out.say(_NOTHING)
        return
    for job, gain_s in found.get("gains_s", {}).items():
        cost_s = found["costs_s"].get(job)
        costs = f", {cost_s:.1f} s of cost counted in" if cost_s is not None else ""
        said = f"ends {gain_s:.1f} s sooner" if gain_s >= 0 else f"ends {-gain_s:.1f} s later"
        out.say(f"{job} {said}{costs}")
    for ocs, pairs in (found.get("makes") or found.get("maps") or {}).items():
        out.say(f"{ocs}: {', '.join(pairs)}")
    if not found.get("makes", True):
        out.say("The circuits are as they would be.")
    for objection in found.get("objections", ()):
        out.say(f"against it: {objection}")

"""``patchlight job`` commands about some jobs: show, follow, stop, restart and regroup them."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import click

from patchlight.cli.job import listing
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.console import rendering as out
from patchlight.console.connection import complete_job, patiently, with_client
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState
from patchlight.testbed.wire.rest.jobs import (
    JobAnswer,
    ProposalShape,
    RegroupPlan,
)

_POLL_S = 0.5
_REPEAT_S = 10.0
_FAILED = 1
_INTERRUPTED = 130
_SAME = 0.001
_UNKNOWN = (
    "nothing predicted: its gradient and compute time are neither given nor "
    "measured yet"
)
_NOTHING = (
    "No running job would gain more from other circuits than the change costs."
)


class _Output:
    """Prints what the workers of a job print, line by line."""

    def __init__(
        self,
        client: ControllerClient,
        job_id: str,
        *,
        as_json: bool,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._as_json = as_json
        self._next: Counter[int] = Counter()
        self._begun: dict[int, str] = {}

    def print(self, worker: int, *, marked: bool) -> None:
        """Print the lines that it has finished since; ``marked`` with the worker's number."""
        while True:
            after = self._next[worker]
            part = patiently(
                lambda: self._client.log(self._job_id, worker, after)  # noqa: B023
            )
            self._next[worker] = max(after, part.next)
            *lines, begun = (self._begun.get(worker, "") + part.text).split(
                "\n"
            )
            self._begun[worker] = begun
            for line in lines:
                self._line(worker, line, marked=marked)
            if part.next <= after:
                return

    def end(self, *, marked: bool) -> None:
        """Print the lines that no line break ended."""
        for worker, line in self._begun.items():
            if line:
                self._line(worker, line, marked=marked)
        self._begun.clear()

    def _line(
        self,
        worker: int,
        line: str,
        *,
        marked: bool,
    ) -> None:
        if self._as_json:
            out.print_json({"worker": worker, "line": line}, one_line=True)
        else:
            out.say(f"[{worker}] {line}" if marked else line)


@click.command()
@listing.job_argument
@click.option(
    "-f",
    "--follow",
    "following",
    is_flag=True,
    help="Keep printing until the job ends.",
)
@click.option(
    "--worker",
    type=click.IntRange(min=0),
    metavar="RANK",
    help="Only this worker.  [default: all]",
)
@out.json_option
@with_client
def logs(
    client: ControllerClient,
    job: str,
    following: bool,
    worker: int | None,
    as_json: bool,
) -> None:
    """Print the output of a job's workers.

    With several workers, each line begins with the rank of its worker; with --json it is an object.
    After the job has ended, the last MiB of each worker is kept.
    """
    job_id = listing.find_job(client, job)
    output = _Output(client, job_id, as_json=as_json)
    while True:
        status = patiently(lambda: client.job(job_id))
        final = JobState(status.state).is_final
        count = max(1, len(status.hosts))
        several = worker is None and count > 1
        for rank in range(count) if worker is None else [worker]:
            try:
                output.print(rank, marked=several)
            except ControllerError:
                # A worker that is being made, or was taken away just now, has no output.
                now = patiently(lambda: client.job(job_id))
                if (
                    not following
                    or status.state == now.state == JobState.RUNNING
                ):
                    raise
        if final or not following:
            break
        time.sleep(_POLL_S)
    output.end(marked=several)
    if following or final:
        out.say(listing.outcome(status), err=True)


@click.command()
@click.argument(
    "jobs",
    metavar="JOB…",
    nargs=-1,
    required=True,
    shell_complete=complete_job,
)
@click.option(
    "--history",
    "past",
    is_flag=True,
    help="Also its past states and the policies' decisions.",
)
@click.option(
    "-f",
    "--follow",
    "following",
    is_flag=True,
    help="Show progress until it ends.",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also draw their iteration times, in the format of the file's ending.",
)
@out.listing_options
@with_client
def show(
    client: ControllerClient,
    jobs: tuple[str, ...],
    past: bool,
    following: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Show the details of jobs, or follow them until they end.

    Two jobs stand side by side, with what the second gains on the first.

    With --follow, one job's progress is shown: the output of a program's worker 0, or the
    iterations of other jobs. The exit code is then 0 if all are done, and 1 if one failed or was
    stopped. With --json, each line is an object: an iteration, a line of output, or a job that has
    ended.
    """
    ids = [listing.find_job(client, job) for job in dict.fromkeys(jobs)]
    if following:
        if past or picture:
            other = "--history" if past else "--plot"
            raise BadInput(
                f"--follow and {other} exclude each other: give one"
            )
        follow_jobs(client, ids, as_json=as_json)
        return
    statuses = [client.job(job_id) for job_id in ids]
    answers = [status.as_json for status in statuses]
    pasts = [
        (client.history(job_id), client.decisions(job_id))
        for job_id in (ids if past else ())
    ]
    for answer, (states, decisions) in zip(answers, pasts, strict=False):
        answer |= {"states": states, "decisions": decisions}

    def show_text() -> None:
        if len(statuses) == 2 and not past:
            listing.print_two(*statuses)
            return
        for status, its_past in zip_longest(statuses, pasts):
            listing.print_job(status)
            if its_past:
                listing.print_past(*its_past)

    out.print_answer(
        answers if len(answers) > 1 else answers[0], show_text, as_json=as_json
    )
    if picture is not None:
        from patchlight.cli.report import iteration_bars

        out.save_picture(picture, lambda: iteration_bars(statuses))


def follow_jobs(
    client: ControllerClient,
    job_ids: Sequence[str],
    *,
    as_json: bool,
) -> None:
    """Wait until these jobs have ended; exits unless all are done. Of one, print its progress."""
    progress = (
        _Progress(client, job_ids[0], as_json=as_json)
        if len(job_ids) == 1
        else None
    )
    left = list(job_ids)
    failed = False
    try:
        while True:
            for job_id in list(left):
                status = patiently(lambda: client.job(job_id))  # noqa: B023
                if progress is not None:
                    progress.show(status)
                if JobState(status.state).is_final:
                    left.remove(job_id)
                    failed = failed or status.state != JobState.DONE
                    _say_end(status, as_json=as_json)
            if not left:
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        for job_id in left:
            stop = f"patchlight job stop {job_id}"
            out.say(f"job {job_id} continues; stop it with: {stop}", err=True)
        sys.exit(_INTERRUPTED)
    if failed:
        sys.exit(_FAILED)


def _say_end(status: JobAnswer, *, as_json: bool) -> None:
    if as_json:
        out.print_json(status, one_line=True)
        return
    took = (
        f" in {listing.elapsed(status)}"
        if status.state == JobState.DONE
        else ""
    )
    for line in listing.summary(status):
        out.say(line)
    out.say(f"{listing.outcome(status)}{took}")
    # A single worker's output was printed.
    printed = status.spec.trainer == "command" and len(status.hosts) == 1
    for line in (
        status.last_lines
        if status.state == JobState.FAILED and not printed
        else ()
    ):
        out.say(f"  | {line}")


class _Progress:
    """Prints what a job does: its iterations or its output, and why it does not run."""

    def __init__(
        self,
        client: ControllerClient,
        job_id: str,
        *,
        as_json: bool,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._as_json = as_json
        self._output = _Output(client, job_id, as_json=as_json)
        self._after = 0
        self._said = ""
        self._said_at = -math.inf
        self._faults = 0

    def show(self, status: JobAnswer) -> None:
        """Print what is new."""
        state = JobState(status.state)
        if status.policy_faults > self._faults:
            self._faults = status.policy_faults
            self._say_fault()
        if status.spec.trainer == "command":
            # A worker that is being made, or was taken away just now, has no output.
            with suppress(ControllerError):
                self._output.print(0, marked=True)
            if state.is_final:
                self._output.end(marked=True)
        else:
            self._iterations()
        if state.is_final or state == JobState.RUNNING:
            self._said = ""
            return
        now = time.monotonic()
        words = listing.outcome(status)
        if words != self._said or now - self._said_at >= _REPEAT_S:
            self._said = words
            self._said_at = now
            out.say(words, err=True)

    def _say_fault(self) -> None:
        made = patiently(lambda: self._client.decisions(self._job_id))
        for decision in [each for each in made if each.fault][-1:]:
            out.say(listing.fault_words(decision), err=True)

    def _iterations(self) -> None:
        reports, self._after = patiently(
            lambda: self._client.iterations(self._job_id, self._after)
        )
        for r in reports:
            if self._as_json:
                out.print_json(r, one_line=True)
                continue
            out.say(
                f"[{r.rank}] iteration {r.index}: compute {r.compute_s:.3f} s, "
                f"communication {r.communication_s:.3f} s"
            )


@click.command()
@listing.job_argument
@listing.force_option
@out.json_option
@with_client
def stop(
    client: ControllerClient,
    job: str,
    force: bool,
    as_json: bool,
) -> None:
    """Stop a job and the jobs that were submitted together with it."""
    status = client.stop(listing.find_job(client, job), force=force)
    out.print_answer(status, status.state, as_json=as_json)


@click.command()
@listing.job_argument
@listing.force_option
@out.json_option
@with_client
def restart(
    client: ControllerClient,
    job: str,
    force: bool,
    as_json: bool,
) -> None:
    """Start a job again: an ended job as a new job, a running job as its next attempt. A running
    synthetic job continues at its iteration, on the GPUs that it gets now.
    """
    status = client.restart(listing.find_job(client, job), force=force)
    out.print_answer(status, f"{status.id} {status.state}", as_json=as_json)


@click.command()
@click.argument(
    "jobs",
    metavar="[JOB…]",
    nargs=-1,
    shell_complete=complete_job,
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what would change, and change nothing.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Start the change and return; 'ocs watch ID' follows it.",
)
@out.json_option
@with_client
def regroup(
    client: ControllerClient,
    jobs: tuple[str, ...],
    dry_run: bool,
    detach: bool,
    as_json: bool,
) -> None:
    """Connect each running job's GPUs to one packet switch, without stopping it. Without JOB,
    choose the jobs with the largest predicted gain, if it exceeds the cost of the change: the rest
    of an iteration and the outage.
    """
    from patchlight.cli.ocs import print_change

    ids = [listing.find_job(client, job) for job in jobs]
    if dry_run:
        found = (
            client.preview_regroup(ids) if ids else client.defragmentation()
        )
        out.print_answer(
            found, lambda: _print_proposal(found), as_json=as_json
        )
        return
    record = (
        client.regroup(ids, detach=detach)
        if ids
        else client.defragment(detach=detach)
    )
    if record is None:
        out.print_answer(None, _NOTHING, as_json=as_json)
    else:
        print_change(record, as_json=as_json)


def _print_proposal(found: RegroupPlan | ProposalShape | None) -> None:
    if found is None:
        out.say(_NOTHING)
        return
    if isinstance(found, RegroupPlan):
        _print_expected(found)
        _print_circuits(found.makes)
        if not found.makes:
            out.say("The circuits are already right.")
        for objection in found.objections:
            out.say(f"it would be refused: {objection}")
        return
    for job, gain_s in found.gains_s.items():
        cost_s = found.costs_s.get(job)
        costs = (
            f", {cost_s:.1f} s of cost included" if cost_s is not None else ""
        )
        said = (
            f"ends {gain_s:.1f} s sooner"
            if gain_s >= 0
            else f"ends {-gain_s:.1f} s later"
        )
        out.say(f"{job} {said}{costs}")
    _print_expected(found)
    _print_circuits(found.maps)


def _print_expected(found: RegroupPlan | ProposalShape) -> None:
    for job, (now_s, then_s) in found.iterations_s.items():
        if abs(now_s - then_s) > _SAME * now_s:
            gain = listing.gain_words(now_s, then_s)
            out.say(
                f"{job}: {now_s:.3f} s an iteration now, {then_s:.3f} s then as predicted: {gain}"
            )
        elif job in found.jobs:
            out.say(f"{job}: {now_s:.3f} s an iteration, as now")
    for job in found.jobs:
        if job not in found.iterations_s:
            out.say(f"{job}: {_UNKNOWN}")


def _print_circuits(maps: Mapping[str, Sequence[str]]) -> None:
    for ocs, pairs in maps.items():
        out.say(f"{ocs}: {', '.join(pairs)}")

"""``patchlight job`` commands that look: the list of jobs, and all that is known of some."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

from patchlight.console import rendering as out
from patchlight.console.connection import complete_job, with_client
from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.jobs import JobState, Pace
from patchlight.testbed.units import format_size, format_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.testbed.wire.rest import jobs as shapes

# So many are shown where several may be meant, or none is.
_MOST = 12
_MEANINGS: dict[str, out.Meaning] = {
    JobState.DONE: "good",
    JobState.RUNNING: "good",
    JobState.FAILED: "bad",
    JobState.STOPPED: "quiet",
}
_SOURCES = {"optimizer": "; observed at the steps of PyTorch's optimizer"}
_UNREPORTED = (
    "none reported: observed are programs with a PyTorch optimizer, others write them to the file "
    "PATCHLIGHT_REPORTS"
)
_KINDS = {"docker": "Docker containers", "process": "processes"}
_HELD_BY = {
    "iteration": "between two iterations, by Patchlight",
    "protocol": "between two iterations, by the program (control protocol)",
    "freeze": "immediately: Patchlight stops its processes and packets",
}

job_argument = click.argument(
    "job",
    metavar="JOB",
    shell_complete=complete_job,
)
force_option = click.option(
    "--force",
    is_flag=True,
    help="Also if another user submitted the job.",
)


def find_job(client: ControllerClient, text: str) -> str:
    """The id of the job that is meant: by its id, the start of one, or its name.

    ``BadInput`` if there is none, or several that may be meant.
    """
    meant = client.jobs_meant(text) if text else []
    if len(meant) > 1:
        # Of several runs of one job, the one that goes on.
        meant = [s for s in meant if not JobState(s.state).is_final] or meant
    if len(meant) == 1:
        return str(meant[0].id)
    if meant:
        count = len(meant) if len(meant) <= _MOST else f"more than {_MOST}"
        listed = ", ".join(status.id for status in meant[:_MOST])
        hint = f"type more of the id: {listed}"
        raise BadInput(f"{text!r} matches {count} jobs", hint=hint)
    latest = [status.id for status in client.jobs(last=_MOST)]
    hint = "'patchlight job list --all' shows every job"
    raise BadInput(
        f"no job {text!r}: {nearest(text, latest, 'the latest jobs are')}",
        hint=hint,
    )


def iterations(status: shapes.JobInList) -> str:
    """How many iterations are done, of how many if that is known."""
    done = status.iterations_done
    known = status.spec.iterations
    return f"{done}/{known}" if known else str(done or "")


def message(status: shapes.JobInList) -> str:
    """Why it failed or what it waits for, and how often a policy failed on it."""
    faults = status.policy_faults
    marks = (
        [f"policy errors: {faults}, the default policy decided"]
        if faults
        else []
    )
    return "; ".join([*filter(None, [status.message]), *marks])


def outcome(status: shapes.JobInList) -> str:
    """How it ended, on one line."""
    return f"{status.id} " + ": ".join(
        filter(None, [status.state, status.message])
    )


def elapsed(status: shapes.JobInList) -> str:
    """For how long it has run."""
    if status.started_at is None:
        return ""
    return f"{(status.finished_at or time.time()) - status.started_at:.1f} s"


def _state(status: shapes.JobInList | shapes.StateOfJob) -> out.Coloured:
    return out.Coloured(status.state, _MEANINGS.get(status.state, "caution"))


@click.command("list")
@click.option(
    "--status",
    "state",
    type=click.Choice([str(each) for each in JobState]),
    help="Only jobs in this state.",
)
@click.option(
    "--user",
    metavar="USER",
    help="Only jobs of this user.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="Only jobs with this name.",
)
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=1),
    default=20,
    metavar="N",
    help="The latest N jobs.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="All jobs.",
)
@out.listing_options
@with_client
def list_jobs(
    client: ControllerClient,
    last: int,
    every: bool,
    as_json: bool,
    **which: str | None,
) -> None:
    """List the latest jobs and their states, oldest first."""
    wanted = {key: value or "" for key, value in which.items()}
    jobs = client.jobs(None if every else last + 1, **wanted)
    left_out = not every and len(jobs) > last
    if left_out:
        del jobs[0]
    table = out.Table(
        out.Column("id", whole=True),
        out.Column("state", whole=True),
        *out.numbers("done", "time"),
        "message",
        out.Column(
            "workers",
            wide=True,
            right=True,
        ),
        out.Column("user", wide=True),
        out.Column(
            "priority",
            wide=True,
            right=True,
        ),
        out.Column("hosts", wide=True),
        out.Column("submitted", wide=True),
    )
    for status in jobs:
        table.add_row(
            status.id,
            _state(status),
            iterations(status),
            elapsed(status),
            message(status),
            str(len(status.hosts) or ""),
            status.by,
            str(status.spec.priority),
            ", ".join(status.hosts),
            out.when(status.submitted_at),
        )
    out.print_answer(jobs, table, as_json=as_json)
    if left_out:
        out.say(
            f"showing the last {last} jobs: --last N shows more, --all shows all",
            err=True,
        )


def print_job(status: shapes.JobAnswer) -> None:
    """Print all that is known of a job."""
    cells = (*_of_status(status), *_of_spec(status))
    out.Table(
        out.Column("job", whole=True),
        status.id,
        rows=(c for c in cells if c[1]),
    ).print()
    for line in status.last_lines:
        out.say(f"  | {line}")


def print_two(one: shapes.JobAnswer, other: shapes.JobAnswer) -> None:
    """Print two jobs side by side, and what the second gains on the first."""
    rows: dict[str, tuple[list[out.Cell], list[out.Cell]]] = {}
    for place, status in enumerate((one, other)):
        for name, cell in (*_of_status(status), *_of_spec(status)):
            if cell:
                rows.setdefault(name, ([], []))[place].append(cell)
    out.Table(
        out.Column("job", whole=True),
        one.id,
        other.id,
        rows=(
            (name, *pair)
            for name, cells in rows.items()
            for pair in zip_longest(*cells, fillvalue="")
        ),
    ).print()
    before_s = one.measured_iteration_s
    after_s = other.measured_iteration_s
    if before_s and after_s:
        gain = gain_words(before_s, after_s)
        out.say(f"{other.id} takes {gain} an iteration than {one.id}")
    else:
        lacks = one if not before_s else other
        out.say(f"{lacks.id} has no measured iterations to compare")


def summary(status: shapes.JobAnswer) -> Iterator[str]:
    """Lines on the iterations of a job that has ended."""
    measured = _measured(status)
    if measured:
        done = out.counted(status.iterations_done, "iteration")
        yield f"{done}: {measured}"
    before = None
    for pace in status.paces if len(status.paces) > 1 else ():
        yield f"since {pace_words(pace, before)}"
        before = pace


def _of_status(status: shapes.JobAnswer) -> Iterator[tuple[str, out.Cell]]:
    yield "state", _state(status)
    yield "message", status.message
    yield "user", status.by
    yield "iterations", iterations(status) or _unreported(status)
    yield "hosts", ", ".join(status.hosts)
    yield "workers", _degrees(status)
    yield "submitted", out.when(status.submitted_at)
    yield "ran for", elapsed(status)
    yield "predicted", _predicted(status)
    yield "measured", _measured(status)
    paces = status.paces
    before = None
    for pace in paces if len(paces) > 1 else ():
        yield "since", pace_words(pace, before)
        before = pace
    known = {pace.reconfiguration for pace in paces}
    for move in status.light_moves:
        if move.reconfiguration not in known:
            yield "circuits changed", _moved(move)
    if energy_j := status.energy_j:
        each = ", ".join(
            f"{gpu} {joules:,.0f} J"
            for gpu, joules in sorted(energy_j.items())
        )
        yield "energy", f"{sum(energy_j.values()):,.0f} J: {each}"
    yield "attempt", f"{status.attempt + 1}" if status.attempt else ""
    yield "restarts", str(status.restarts or "")
    kept = status.reports_kept or 0
    made = status.reports_made or 0
    yield (
        "reports",
        f"{kept:,} of {made:,} reports are kept" if kept < made else "",
    )
    yield "topology", status.topology
    yield "workers are", kinds_of_workers(status.workers_run_as or ())


def kinds_of_workers(kinds: Iterable[str | None]) -> str:
    """What workers are, as text."""
    found = sorted({kind for kind in kinds if kind is not None})
    return ", ".join(_KINDS.get(kind, kind) for kind in found)


def _degrees(status: shapes.JobAnswer) -> str:
    """The number of workers of a job whose number a policy sets: now, before, and if it stays."""
    had = status.degrees
    if not had:
        return ""
    changes = [
        f"{workers} from iteration {iteration} on"
        for _, iteration, workers in had
    ]
    stays = status.rigid_because
    runs = status.hosts and status.finished_at is None
    parts = [f"{len(status.hosts)} now"] if runs else []
    if len(changes) > 1 or not runs:
        parts.append(", ".join(changes))
    if stays:
        parts.append(f"stays so: {stays}")
    return "; ".join(parts)


def _predicted(status: shapes.JobAnswer) -> str:
    seconds = status.predicted_iteration_s
    left_s = status.predicted_completion_s
    if seconds is None:
        return ""
    ends = f", {left_s:.1f} s to its end" if left_s is not None else ""
    limit = f"; {status.bottleneck}" if status.bottleneck else ""
    return f"{seconds:.3f} s an iteration{ends}{limit}"


def _measured(status: shapes.JobAnswer) -> str:
    """How long iterations take since circuits or other jobs last changed."""
    seconds = status.measured_iteration_s
    predicted_s = status.predicted_iteration_s
    if seconds is None:
        return ""
    off = ""
    if predicted_s:
        part = seconds / predicted_s - 1
        percent = f"{abs(part):.1%}".replace("%", " %")
        off = f", {percent} {'more' if part >= 0 else 'less'} than predicted"
    share = status.paces[-1].communication if status.paces else None
    source = status.paces[-1].source if status.paces else ""
    seen = _SOURCES.get(source, "")
    return f"{seconds:.3f} s an iteration{off}{_communication(share)}{seen}"


def _unreported(status: shapes.JobAnswer) -> str:
    started = status.started_at is not None
    return _UNREPORTED if started and status.spec.trainer == "command" else ""


def _communication(share: float | None) -> str:
    return "" if share is None else f", {100 * share:.0f} % communication"


def gain_words(before_s: float, after_s: float) -> str:
    """How much less or more an iteration takes after than before."""
    less_s = before_s - after_s
    word = "less" if less_s >= 0 else "more"
    percent = 100 * abs(less_s) / before_s
    return f"{abs(less_s):.3f} s ({percent:.0f} %) {word}"


def pace_words(pace: Pace, before: Pace | None = None) -> str:
    """The measured and predicted iterations of a pace, and what it gained on the one before."""
    why = f" ({pace.why})" if pace.why else ""
    number = pace.reconfiguration
    change = f", change {number}{why}" if number else why
    if pace.iteration_s is None:
        words = "not measured yet"
    else:
        words = f"{pace.iteration_s:.3f} s an iteration"
        if before is not None and before.iteration_s:
            gain = gain_words(before.iteration_s, pace.iteration_s)
            words += f", {gain}"
        words += (
            f"{_communication(pace.communication)}, mean of {pace.iterations}"
        )
    if pace.predicted_s is not None:
        words += f"; predicted {pace.predicted_s:.3f} s"
    return f"{out.when(pace.since)}{change}: {words}"


def _moved(move: shapes.LightMove) -> str:
    """A move of its circuits: the predicted and the measured effect."""

    def pace(*seconds: float | None) -> str:
        return " → ".join(
            f"{s:.3f} s" if s is not None else "not known" for s in seconds
        )

    at = f"{out.when(move.moved_at)} by {move.policy} (change {move.reconfiguration})"
    others = (
        " (something else changed before)" if move.unsettled_before else ""
    )
    predicted = pace(move.predicted_before_s, move.predicted_after_s)
    measured = pace(move.measured_before_s, move.measured_after_s)
    return f"{at}, an iteration: predicted {predicted}; measured {measured}{others}"


def _of_spec(status: shapes.JobAnswer) -> Iterator[tuple[str, str]]:
    spec = status.spec
    model = spec.model
    batch = f", {spec.batch} samples a worker" if spec.batch else ""
    compute = (
        f"{model} {seconds:g} s" for model, seconds in spec.compute_s.items()
    )
    mounts = (
        f"{m.source} at {m.target}{'' if m.read_only else ', written too'}"
        for m in spec.mounts
    )
    yield (
        "model",
        "" if model is None else f"{model}, trained by PyTorch{batch}",
    )
    yield "data", spec.data or ""
    yield "command", " ".join(spec.command)
    yield "image", spec.image or ""
    yield (
        "environment",
        ", ".join(
            f"{name}={value}" for name, value in spec.environment.items()
        ),
    )
    yield "mounts", "; ".join(mounts)
    yield (
        "memory",
        format_size(memory) if (memory := spec.memory_bytes) else "",
    )
    yield "CPUs", f"{spec.cpus:g}" if spec.cpus else ""
    yield "pause method", _held_by(status)
    yield (
        "gradient",
        format_size(spec.gradient_bytes) if spec.gradient_bytes else "",
    )
    yield "compute", ", ".join(compute)
    yield "GPU models", ", ".join(spec.gpu_models)
    yield "degrees", ", ".join(map(str, spec.degrees))
    yield "graph", spec.graph or ""
    yield (
        "deadline",
        format_time(spec.deadline_s) if spec.deadline_s else "",
    )
    yield (
        "requirement",
        f"{spec.requirement:g}" if spec.requirement else "",
    )
    yield "priority", str(spec.priority or "")
    yield "after", ", ".join(spec.after)
    yield "retries", str(spec.retries or "")
    yield "checkpoint", spec.checkpoint or ""
    yield "placement", spec.placement or ""


def _held_by(status: shapes.JobAnswer) -> str:
    """How workers are held while their circuits change; of a job that waits, as in its spec."""
    ranks: dict[str | None, list[str]] = {}
    for rank, how in enumerate(status.holds_by):
        ranks.setdefault(how, []).append(str(rank))
    if not ranks:
        return status.spec.hold if status.spec.trainer == "command" else ""
    found = {
        _HELD_BY.get(str(how), "unknown yet"): who
        for how, who in ranks.items()
    }
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(
        f"worker {', '.join(who)}: {how}" for how, who in found.items()
    )


def print_past(
    states: list[shapes.StateOfJob], decisions: list[shapes.DecisionShape]
) -> None:
    """Print the states of a job, and what policies decided of it."""
    out.say("")
    was = ((out.when(was.at), _state(was), was.message) for was in states)
    out.Table(
        out.Column("since", whole=True),
        out.Column("state", whole=True),
        "why",
        rows=was,
    ).print()
    if not decisions:
        return
    out.say("")
    took = out.numbers("took")
    digest = out.Column("digest", wide=True)
    table = out.Table(
        out.Column("decided", whole=True),
        "kind",
        "policy",
        *took,
        "answer",
        digest,
    )
    for row in decisions:
        table.add_row(
            out.when(row.at),
            str(row.kind),
            str(row.policy),
            f"{1000 * row.seconds:.1f} ms",
            _answer(row.answer),
            str(row.digest),
        )
    table.print()
    for row in decisions:
        if row.fault:
            out.say(fault_words(row))
        if row.weighed:
            _print_weighed(row)


def fault_words(row: shapes.DecisionShape) -> str:
    """What a policy raised, or why its answer was refused."""
    return f"{row.kind} policy {row.policy}: {row.fault}; the default decided"


def _print_weighed(decision: shapes.DecisionShape) -> None:
    """What a learned policy saw and weighed: its options and their scores, the best first."""
    weighed = decision.weighed
    saw = ", ".join(
        f"{value} {name}" for name, value in weighed["saw"].items()
    )
    out.say("")
    title = f"{decision.kind}: {decision.policy} saw {saw}"
    table = out.Table(
        *out.numbers("score"),
        "option",
        *out.numbers("lasts", "delays others"),
        "also of",
        title=title,
    )
    for option in weighed["options"]:
        seconds = (option["lasts_s"], option["delays_others_s"])
        cells = ("–" if each is None else f"{each:.1f} s" for each in seconds)
        score = f"{'→ ' if option['chosen'] else ''}{option['score']:.3f}"
        table.add_row(
            score,
            option["option"],
            *cells,
            ", ".join(option["also_of"]),
        )
    table.print()


def _answer(answer: object) -> str:
    if isinstance(answer, dict):
        return "; ".join(
            f"{ocs} {_answer(circuits)}" for ocs, circuits in answer.items()
        )
    return (
        ", ".join(map(str, answer))
        if isinstance(answer, list)
        else str(answer)
    )

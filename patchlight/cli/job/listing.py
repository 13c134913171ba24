"""``patchlight job`` commands that look: the list of jobs, all of one, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from patchlight.cli.job import texts
from patchlight.cli.job.texts import find_job, job_argument
from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import Cell, Column, Table, listing_options, print_json, say, when
from patchlight.testbed.jobs import JobState
from patchlight.testbed.units import format_size, format_time

if TYPE_CHECKING:
    from patchlight.testbed.wire.rest.jobs import (
        DecisionShape,
        JobAnswer,
        JobInList,
        JobSpecShape,
        LightMove,
        StateOfJob,
    )

Answer = dict[str, Any]

_PAGE = 20


@click.command("list")
@click.option(
    "--state", type=click.Choice([str(each) for each in JobState]), help="Only those in this state."
)
@click.option("--user", metavar="USER", help="Only those of this user.")
@click.option("--name", metavar="NAME", help="Only those of this name.")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=1),
    default=_PAGE,
    metavar="N",
    help="The latest so many.",
)
@click.option("--all", "every", is_flag=True, help="All of them, however many.")
@listing_options
@controller_options
def list_jobs(
    state: str | None,
    user: str | None,
    name: str | None,
    last: int,
    every: bool,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """The latest jobs and their states, oldest first."""
    which = {"state": state or "", "user": user or "", "name": name or ""}
    with connect(lab_name, address) as client:
        jobs = client.jobs(None if every else last + 1, **which)
    left_out = not every and len(jobs) > last
    if left_out:
        del jobs[0]
    if as_json:
        print_json(jobs)
    else:
        _table(jobs).print()
    if left_out:
        say(f"these are the latest {last}: --last N shows more of them, --all shows all", err=True)


def _table(jobs: list[JobInList]) -> Table:
    table = Table(
        Column("id", whole=True),
        Column("state", whole=True),
        Column("done", whole=True, right=True),
        Column("time", whole=True, right=True),
        "message",
        Column("workers", wide=True, right=True),
        Column("user", wide=True),
        Column("priority", wide=True, right=True),
        Column("hosts", wide=True),
        Column("submitted", wide=True),
    )
    for status in jobs:
        table.add_row(
            status["id"],
            texts.state(status),
            texts.iterations(status),
            texts.elapsed(status),
            texts.message(status),
            str(len(status["hosts"]) or ""),
            status["by"],
            str(status["spec"]["priority"]),
            ", ".join(status["hosts"]),
            when(status["submitted_at"]),
        )
    return table


@click.command()
@job_argument
@click.option("--why", is_flag=True, help="Also its states so far, and what policies decided.")
@listing_options
@controller_options
def show(job: str, why: bool, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """All that is known of one job."""
    with connect(lab_name, address) as client:
        status = client.job(find_job(client, job))
        states = client.history(status["id"]) if why else []
        decisions = client.decisions(status["id"]) if why else []
    if as_json:
        print_json({**status, "states": states, "decisions": decisions} if why else status)
        return
    table = Table(Column("", whole=True), "")
    for name, cell in (*_of_status(status), *_of_spec(status)):
        if cell:
            table.add_row(name, cell)
    table.print()
    for line in status["last_lines"]:
        say(f"  | {line}")
    if why:
        _print_why(states, decisions)


def _of_status(status: JobAnswer) -> Iterator[tuple[str, Cell]]:
    yield "id", status["id"]
    yield "state", texts.state(status)
    yield "message", status["message"]
    yield "user", status["by"]
    yield "iterations", texts.iterations(status)
    yield "hosts", ", ".join(status["hosts"])
    yield "workers", texts.degrees(status)
    yield "submitted", when(status["submitted_at"])
    yield "ran for", texts.elapsed(status)
    yield "predicted", _predicted(status)
    yield "measured", _measured(status)
    for move in status["light_moves"]:
        yield "light moved", _moved(move)
    yield "energy", _energy(status.get("energy_j") or {})
    yield "attempt", f"{status['attempt'] + 1}" if status["attempt"] else ""
    yield "restarts", str(status["restarts"] or "")
    yield "topology", status["topology"]


def _predicted(status: JobAnswer) -> str:
    """What the flow model says of a job that runs."""
    seconds, left_s = status.get("predicted_iteration_s"), status.get("predicted_completion_s")
    if seconds is None:
        return ""
    ends = f", {left_s:.1f} s to its end" if left_s is not None else ""
    return f"{seconds:.3f} s an iteration{ends}; {status['bottleneck']}"


def _energy(energy_j: dict[str, float]) -> str:
    """What GPUs have used for it, as far as they tell."""
    if not energy_j:
        return ""
    each = ", ".join(f"{gpu} {joules:,.0f} J" for gpu, joules in sorted(energy_j.items()))
    return f"{sum(energy_j.values()):,.0f} J: {each}"


_HELD_BY = {
    "iteration": "Patchlight, between two iterations",
    "protocol": "itself, between two iterations (control protocol)",
    "freeze": "Patchlight, at once: its processes and packets are stopped",
}


def _held_by(status: JobAnswer) -> str:
    """How workers are held while their circuits change; of a job that waits, what its spec says."""
    ranks: dict[str | None, list[str]] = {}
    for rank, how in enumerate(status["holds_by"]):
        ranks.setdefault(how, []).append(str(rank))
    if not ranks:
        return status["spec"]["hold"] if status["spec"]["trainer"] == "command" else ""
    found = {_HELD_BY.get(str(how), "not known yet"): who for how, who in ranks.items()}
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"worker {', '.join(who)}: {how}" for how, who in found.items())


def _measured(status: JobAnswer) -> str:
    """How long iterations take since circuits or other jobs last changed."""
    seconds = status["measured_iteration_s"]
    if seconds is None:
        return ""
    off = texts.deviation(seconds, status.get("predicted_iteration_s"))
    return f"{seconds:.3f} s an iteration" + (f", {off} than predicted" if off else "")


def _moved(move: LightMove) -> str:
    """Once that light moved: what was predicted of it, and what came of it."""

    def pace(*seconds: float | None) -> str:
        return " → ".join(f"{s:.3f} s" if s is not None else "not known" for s in seconds)

    at = f"{when(move['moved_at'])} by {move['policy']} (change {move['reconfiguration']})"
    others = " (before, something else changed, too)" if move["unsettled_before"] else ""
    predicted = pace(move["predicted_before_s"], move["predicted_after_s"])
    measured = pace(move["measured_before_s"], move["measured_after_s"])
    return f"{at}, an iteration: predicted {predicted}; measured {measured}{others}"


def _of_spec(status: JobAnswer) -> Iterator[tuple[str, str]]:
    spec = status["spec"]
    compute = (f"{model} {seconds:g} s" for model, seconds in spec["compute_s"].items())
    mounts = (
        f"{m['source']} at {m['target']}{'' if m['read_only'] else ', written too'}"
        for m in spec["mounts"]
    )
    yield "model", _model(spec)
    yield "data", spec["data"] or ""
    yield "command", " ".join(spec["command"])
    yield "image", spec["image"] or ""
    yield "environment", ", ".join(f"{name}={value}" for name, value in spec["environment"].items())
    yield "mounts", "; ".join(mounts)
    yield "memory", format_size(memory) if (memory := spec.get("memory_bytes")) else ""
    yield "CPUs", f"{spec['cpus']:g}" if spec.get("cpus") else ""
    yield "held by", _held_by(status)
    yield "gradient", format_size(spec["gradient_bytes"]) if spec["gradient_bytes"] else ""
    yield "compute", ", ".join(compute)
    yield "GPU models", ", ".join(spec["gpu_models"])
    yield "degrees", ", ".join(map(str, spec["degrees"]))
    yield "graph", spec["graph"] or ""
    yield "deadline", format_time(spec["deadline_s"]) if spec["deadline_s"] else ""
    yield "requirement", f"{spec['requirement']:g}" if spec["requirement"] else ""
    yield "priority", str(spec["priority"] or "")
    yield "after", ", ".join(spec["after"])
    yield "retries", str(spec["retries"] or "")
    yield "checkpoint", spec["checkpoint"] or ""
    yield "placement", spec["placement"] or ""


def _model(spec: JobSpecShape) -> str:
    if spec["model"] is None:
        return ""
    batch = f", {spec['batch']} samples a worker" if spec["batch"] else ""
    return f"{spec['model']}, trained by PyTorch{batch}"


def _print_why(states: list[StateOfJob], decisions: list[DecisionShape]) -> None:
    say("")
    table = Table(Column("since", whole=True), Column("state", whole=True), "why")
    for was in states:
        table.add_row(when(was["at"]), texts.state(was), was["message"])
    table.print()
    if not decisions:
        return
    say("")
    table = Table(
        Column("decided", whole=True),
        "kind",
        "policy",
        Column("took", whole=True, right=True),
        "answer",
        Column("digest", wide=True),
    )
    for row in decisions:
        table.add_row(
            when(row["at"]),
            str(row["kind"]),
            str(row["policy"]),
            f"{1000 * row['seconds']:.1f} ms",
            _answer(row["answer"]),
            str(row["digest"]),
        )
    table.print()
    for row in decisions:
        if row.get("weighed"):
            _print_weighed(row)


def _print_weighed(decision: DecisionShape) -> None:
    """What a learned policy saw and weighed: its options and their scores, the best first."""
    weighed = decision["weighed"]
    saw = ", ".join(f"{value} {name}" for name, value in weighed["saw"].items())
    say("")
    title = f"{decision['kind']}: {decision['policy']} saw {saw}"
    table = Table(
        Column("score", whole=True, right=True),
        "option",
        Column("lasts", whole=True, right=True),
        Column("delays others", whole=True, right=True),
        "also of",
        title=title,
    )
    for option in weighed["options"]:
        seconds = (option["lasts_s"], option["delays_others_s"])
        cells = ("–" if each is None else f"{each:.1f} s" for each in seconds)
        score = f"{'→ ' if option['chosen'] else ''}{option['score']:.3f}"
        table.add_row(score, option["option"], *cells, ", ".join(option["also_of"]))
    table.print()


def _answer(answer: object) -> str:
    if isinstance(answer, dict):
        return "; ".join(f"{ocs} {_answer(circuits)}" for ocs, circuits in answer.items())
    return ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)

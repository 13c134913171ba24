"""``patchlight job``: submit training jobs, follow them, stop them."""

import time
from typing import Any

import click

from patchlight.cli.completion import complete_hosts, complete_job
from patchlight.cli.connection import connect, controller_options, lab_meant
from patchlight.cli.rendering import (
    Coloured,
    Column,
    Meaning,
    Table,
    json_option,
    listing_options,
    print_json,
    say,
    when,
)
from patchlight.controller.client import ControllerClient
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.files.issues import nearest
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.units import format_size, parse_size, parse_time

_POLL_S = 0.5
_MEANINGS: dict[str, Meaning] = {
    JobState.DONE: "good",
    JobState.RUNNING: "good",
    JobState.FAILED: "bad",
    JobState.STOPPED: "quiet",
}
_job = click.argument("job", metavar="JOB", shell_complete=complete_job)


@click.group(
    epilog="JOB is a job's id, the start of one, or its name: of several of that name, the one "
    "that has not ended."
)
def job() -> None:
    """Submit, list, follow and stop training jobs."""


@job.command()
@click.argument("name")
@click.option(
    "--workers",
    metavar="N|auto",
    help="How many GPUs; the placement policy chooses which, and "
    "with auto the partition policy how many.",
)
@click.option(
    "--hosts",
    metavar="HOST,HOST…",
    shell_complete=complete_hosts,
    help="Which GPUs, in ring order.",
)
@click.option("--iterations", type=click.IntRange(min=1), default=10)
@click.option("--gradient", default="553MB", help="Bytes of one gradient.")
@click.option(
    "--compute",
    multiple=True,
    metavar="MODEL=TIME",
    help="Compute time of an iteration on a GPU model, like 'Tesla M40=500ms'; may be "
    "given again. [default: 500ms on every model of the lab]",
)
@click.option(
    "--topology",
    type=click.Choice(["keep", "regroup"]),
    help="Which circuits are lit for it: "
    "as they are, or its GPUs under one packet switch.  [default: the lab's policy]",
)
@click.option("--regroup", is_flag=True, help="The same as --topology regroup.")
@click.option("--seed", type=int, default=0)
@click.option(
    "--dark-limit",
    default="10min",
    metavar="TIME",
    help="How long it may be paused because a NIC has no light, before it fails.",
)
@click.option("--follow", is_flag=True, help="Wait for the end and show progress.")
@json_option
@controller_options
def submit(
    name: str,
    workers: str | None,
    hosts: str | None,
    iterations: int,
    gradient: str,
    compute: tuple[str, ...],
    topology: str | None,
    regroup: bool,
    seed: int,
    dark_limit: str,
    follow: bool,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Submit the training job NAME."""
    if bool(workers) == bool(hosts):
        raise BadInput("expected either --workers N or --hosts HOST,HOST…")
    if regroup and topology == "keep":
        raise BadInput("--regroup and --topology keep exclude each other")
    models = {g.model for server in lab_meant(lab_name, address).servers for g in server.gpus}
    spec = JobSpec(
        name=name,
        iterations=iterations,
        gradient_bytes=parse_size(gradient),
        compute_s=_compute_times(compute) or dict.fromkeys(sorted(models), 0.5),
        workers=_worker_count(workers) if workers else 0,
        hosts=tuple(h.strip() for h in hosts.split(",")) if hosts else (),
        seed=seed,
        dark_limit_s=parse_time(dark_limit),
    )
    with connect(lab_name, address) as client:
        status = client.submit([spec], "regroup" if regroup else topology)[0]
        if as_json:
            print_json(status)
        else:
            say(status["id"])
        if follow:
            _follow(client, status["id"], as_json=as_json)


def _worker_count(text: str) -> int:
    if text == "auto":
        return 0
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--workers {text}: expected a number of 1 or more, or auto")
    return int(text)


def _compute_times(texts: tuple[str, ...]) -> dict[str, float]:
    times: dict[str, float] = {}
    for text in texts:
        model, sign, value = text.rpartition("=")
        if not sign or not model:
            raise BadInput(f"{text!r}: expected MODEL=TIME, like 'Tesla M40=500ms'")
        times[model] = parse_time(value)
    return times


@job.command("list")
@listing_options
@controller_options
def list_jobs(as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Every job and its state."""
    with connect(lab_name, address) as client:
        jobs = client.jobs()
    if as_json:
        print_json(jobs)
        return
    table = Table(
        Column("id", whole=True),
        Column("state", whole=True),
        Column("done", whole=True, right=True),
        Column("time", whole=True, right=True),
        "message",
        Column("hosts", wide=True),
        Column("submitted", wide=True),
    )
    for status in jobs:
        table.add_row(
            status["id"],
            _state(status),
            _iterations(status),
            _elapsed(status),
            _words(status),
            ", ".join(status["hosts"]),
            when(status["submitted_at"]),
        )
    table.print()


def _state(status: dict[str, Any]) -> Coloured:
    return Coloured(status["state"], _MEANINGS.get(status["state"], "caution"))


def _iterations(status: dict[str, Any]) -> str:
    return f"{status['iterations_done']}/{status['spec']['iterations']}"


def _words(status: dict[str, Any]) -> str:
    """The job's message, and how often a policy failed on it."""
    faults = status["policy_faults"]
    marks = [f"policy faults: {faults}, the default decided"] if faults else []
    return "; ".join([*filter(None, [status["message"]]), *marks])


def _elapsed(status: dict[str, Any]) -> str:
    if status["started_at"] is None:
        return ""
    return f"{(status['finished_at'] or time.time()) - status['started_at']:.1f} s"


def find_job(client: ControllerClient, text: str) -> str:
    """The id of the job that is meant: by its id, the start of one, or its name.

    ``BadInput`` if there is none, or several that may be meant.
    """
    jobs = client.jobs()
    ids = [status["id"] for status in jobs]
    if text in ids:
        return text
    meant = [status for status in jobs if status["spec"]["name"] == text]
    meant = meant or [status for status in jobs if text and status["id"].startswith(text)]
    if len(meant) > 1:
        # Of several runs of one job, the one that goes on.
        meant = [s for s in meant if not JobState(s["state"]).is_final] or meant
    if len(meant) == 1:
        return str(meant[0]["id"])
    if meant:
        listed = ", ".join(status["id"] for status in meant[:12])
        hint = f"type more of the id, of one of: {listed}"
        raise BadInput(f"{text!r} may mean any of {len(meant)} jobs", hint=hint)
    hint = "'patchlight job list' shows every job"
    raise BadInput(f"no job {text!r}: {nearest(text, ids, 'the jobs are')}", hint=hint)


@job.command()
@_job
@listing_options
@controller_options
def show(job: str, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """All that is known of one job."""
    with connect(lab_name, address) as client:
        status = client.job(find_job(client, job))
    if as_json:
        print_json(status)
        return
    spec = status["spec"]
    compute = (f"{model} {seconds:g} s" for model, seconds in spec["compute_s"].items())
    table = Table(Column("", whole=True), "")
    for name, cell in (
        ("id", status["id"]),
        ("state", _state(status)),
        ("message", status["message"]),
        ("iterations", _iterations(status)),
        ("hosts", ", ".join(status["hosts"])),
        ("gradient", format_size(spec["gradient_bytes"])),
        ("compute", ", ".join(compute)),
        ("submitted", when(status["submitted_at"])),
        ("ran for", _elapsed(status)),
        ("restarts", str(status["restarts"] or "")),
    ):
        if cell:
            table.add_row(name, cell)
    table.print()
    for line in status["last_lines"]:
        say(f"  | {line}")


@job.command()
@_job
@json_option
@controller_options
def follow(job: str, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Show a job's iterations as they finish, until it ends; with --json one on a line."""
    with connect(lab_name, address) as client:
        _follow(client, find_job(client, job), as_json=as_json)


def _follow(client: ControllerClient, job_id: str, *, as_json: bool) -> None:
    after = 0
    while True:
        status = client.job(job_id)
        reports, after = client.iterations(job_id, after)
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
        say(f"done in {_elapsed(status)}")


@job.command()
@_job
@click.option("--force", is_flag=True, help="Also a job that another user submitted.")
@json_option
@controller_options
def stop(job: str, force: bool, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Stop a job and those submitted together with it."""
    with connect(lab_name, address) as client:
        status = client.stop(find_job(client, job), force=force)
    if as_json:
        print_json(status)
    else:
        say(status["state"])


@job.command()
@click.argument("jobs", metavar="JOB…", nargs=-1, required=True, shell_complete=complete_job)
@json_option
@controller_options
def regroup(
    jobs: tuple[str, ...], as_json: bool, lab_name: str | None, address: str | None
) -> None:
    """Bring running jobs under one packet switch each, without stopping them."""
    from patchlight.cli.ocs.output import print_record

    with connect(lab_name, address) as client:
        record = client.regroup([find_job(client, job) for job in jobs])
    print_record(record, as_json=as_json)

"""``patchlight top``: jobs, GPUs and circuit switches, live."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from patchlight.cli.status import Scrape, ocs_words
from patchlight.console import rendering as out
from patchlight.console.connection import patiently, with_client
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState
from patchlight.testbed.units import format_rate, parse_time

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient

_LEAST_S = 0.5
_LOOKS = 5
# Headings, lines between tables, and the lines that count the rows left out.
_LINES_AROUND = 14


@dataclass(frozen=True)
class JobPace:
    """How a job is doing. Rates are over the time between two scrapes, ``None`` without two.

    ``communication`` and ``utilization`` are shares from 0 to 1; ``predicted_s`` is the predicted
    time of an iteration.
    """

    job_id: str
    name: str
    gpus: tuple[str, ...]
    paused: bool
    done: int
    wanted: int
    iterations_per_s: float | None = None
    communication: float | None = None
    sent_bps: float | None = None
    utilization: float | None = None
    predicted_s: float | None = None

    @property
    def off(self) -> str:
        """How much longer an iteration takes than predicted, in percent."""
        if not self.iterations_per_s or not self.predicted_s:
            return ""
        return f"{1 / (self.iterations_per_s * self.predicted_s) - 1:+.0%}".replace(
            "%", " %"
        )


def job_paces(now: Scrape, before: Scrape | None) -> list[JobPace]:
    """The pace of each running job between two scrapes."""
    grown = {
        name: _growth(now, before, f"worker_{name}_total")
        for name in (
            "iterations",
            "sent_bytes",
            "compute_seconds",
            "communication_seconds",
        )
    }
    seconds = now.at - before.at if before is not None else 0.0
    workers = now.by("job_workers", "job_id")
    paused = now.by("job_paused", "job_id")
    done = now.by("job_iterations_done", "job_id")
    wanted = now.by("job_iterations_wanted", "job_id")
    busy = now.by("gpu_utilization_ratio", "gpu")
    paces = []
    for labels, _ in now.of_metric("job_info"):
        job_id = labels["job_id"]
        gpus = tuple(
            said["gpu"]
            for said, _ in now.of_metric("gpu_allocated", job_id=job_id)
        )
        told = [busy[gpu] for gpu in gpus if gpu in busy]
        iterations, sent, compute_s, communication_s = (
            grown[name].get(job_id)
            for name in (
                "iterations",
                "sent_bytes",
                "compute_seconds",
                "communication_seconds",
            )
        )
        both_s = (compute_s or 0.0) + (communication_s or 0.0)
        rates = seconds > 0 and iterations is not None
        paces.append(
            JobPace(
                job_id,
                labels["name"],
                gpus,
                bool(paused.get(job_id)),
                round(done.get(job_id, 0)),
                round(wanted.get(job_id, 0)),
                (iterations or 0) / max(1, workers[job_id]) / seconds
                if rates
                else None,
                (communication_s or 0.0) / both_s if both_s else None,
                8 * (sent or 0.0) / seconds if rates else None,
                sum(told) / len(told) if told else None,
            )
        )
    return paces


def _growth(
    now: Scrape,
    before: Scrape | None,
    name: str,
) -> dict[str, float]:
    """By how much counters of workers grew, by job; of those that both scrapes have."""
    if before is None:
        return {}
    had = {
        tuple(sorted(labels.items())): value
        for labels, value in before.of_metric(name)
    }
    grown: defaultdict[str, float] = defaultdict(float)
    for labels, value in now.of_metric(name):
        earlier = had.get(tuple(sorted(labels.items())))
        if earlier is not None:
            grown[labels["job_id"]] += max(0.0, value - earlier)
    return dict(grown)


@click.command()
@click.option(
    "--every",
    default="2s",
    metavar="TIME",
    help="Time between updates.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Print it once, as if without a terminal.",
)
@out.json_option
@with_client
def top(
    client: ControllerClient,
    every: str,
    once: bool,
    as_json: bool,
) -> None:
    """Watch jobs, GPUs and circuits until Ctrl-C.

    Rates are means over the last four intervals; 'off' is the deviation of the iteration time from
    its prediction. The terminal needs 80 columns and 24 lines; a larger one shows more rows. No
    device is contacted. With --json, print once: jobs, with rates, and circuit switches.
    """
    every_s = parse_time(every)
    if every_s < _LEAST_S:
        raise BadInput(
            f"--every {every}: expected {_LEAST_S:g}s or more, like 2s"
        )
    # Workers are heard of some times a second: over a longer time, rates are steadier.
    looks = deque([patiently(lambda: Scrape.of(client))], maxlen=_LOOKS)
    time.sleep(every_s)

    def look() -> tuple[list[JobPace], Scrape]:
        running = patiently(lambda: client.jobs(state=JobState.RUNNING))
        predicted = {job.id: job.predicted_iteration_s for job in running}
        looks.append(patiently(lambda: Scrape.of(client)))
        paces = job_paces(looks[-1], looks[0])
        return [
            replace(pace, predicted_s=predicted.get(pace.job_id))
            for pace in paces
        ], looks[-1]

    if not as_json:
        out.live(
            lambda: screen(*look(), out.terminal_lines()), every_s, once=once
        )
        return
    paces, now = look()
    switches = {
        ocs: ocs_words(now, ocs).text for ocs in now.by("ocs_up", "ocs")
    }
    jobs = [asdict(pace) for pace in paces]
    out.print_json({"jobs": jobs, "circuit_switches": switches})


def screen(
    paces: list[JobPace],
    now: Scrape,
    lines: int,
) -> out.Screen:
    """What is shown on a terminal of so many lines, 24 at least."""
    rows = max(24, lines) - _LINES_AROUND
    switches = sorted(now.by("ocs_up", "ocs"))
    for_light = min(len(switches), max(1, rows // 4))
    for_jobs = min(len(paces), max(1, (rows - for_light) // 2))
    return out.Screen(
        _jobs_table(paces, for_jobs, now),
        _gpus_table(paces, now, rows - for_light - for_jobs),
        _light_table(switches, now, for_light),
    )


def _jobs_table(
    paces: list[JobPace],
    most: int,
    now: Scrape,
) -> out.Table:
    waiting = round(now.total("queue_jobs"))
    table = out.Table(
        out.Column("job", cut=True),
        *out.numbers(
            "GPUs",
            "done",
            "iter/s",
            "off",
            "sends",
            "communicates",
            "busy",
        ),
        title=f"{time.strftime('%H:%M:%S')}  {len(paces)} running, {waiting} waiting",
    )
    for pace in paces[:most]:
        table.add_row(
            out.Coloured(f"{pace.job_id} (paused)", "caution")
            if pace.paused
            else pace.job_id,
            str(len(pace.gpus)),
            f"{pace.done}/{pace.wanted}" if pace.wanted else f"{pace.done}",
            ""
            if pace.iterations_per_s is None
            else f"{pace.iterations_per_s:.3f}",
            pace.off,
            "" if pace.sent_bps is None else format_rate(round(pace.sent_bps)),
            _share(pace.communication),
            _share(pace.utilization),
        )
    _note_left_out(table, len(paces) - most)
    return table


def _gpus_table(
    paces: list[JobPace],
    now: Scrape,
    most: int,
) -> out.Table:
    job_of = {gpu: pace.job_id for pace in paces for gpu in pace.gpus}
    host_of = {
        said["gpu"]: said["host"] for said, _ in now.of_metric("gpu_allocated")
    }
    busy = now.by("gpu_utilization_ratio", "gpu")
    power = now.by("gpu_power_watts", "gpu")
    sends = now.by("host_transmit_bytes_per_second", "host")
    usable = now.by("gpu_up", "gpu")
    names = sorted(
        {*usable, *job_of},
        key=lambda g: (g not in job_of, job_of.get(g, ""), g),
    )
    table = out.Table(
        out.Column("GPU", cut=True),
        out.Column("job", cut=True),
        *out.numbers("busy", "power", "sends"),
        title=f"{len(job_of)} of {len(names)} GPUs are in jobs",
    )
    for gpu in names[:most]:
        host = host_of.get(gpu, gpu)
        table.add_row(
            gpu
            if usable.get(gpu, 1)
            else out.Coloured(f"{gpu} cannot be used", "bad"),
            job_of.get(gpu, out.Coloured("free", "quiet")),
            _share(busy.get(gpu)),
            f"{power[gpu]:.0f} W" if gpu in power else "",
            format_rate(round(8 * sends[host])) if host in sends else "",
        )
    _note_left_out(table, len(names) - most)
    return table


def _light_table(
    switches: list[str],
    now: Scrape,
    most: int,
) -> out.Table:
    # Those that are not well come first.
    rows = sorted(
        ((ocs, ocs_words(now, ocs)) for ocs in switches),
        key=lambda row: row[1].meaning == "good",
    )
    columns = (
        out.Column("circuit switch", cut=True),
        out.Column("state", cut=True),
    )
    table = out.Table(*columns, rows=rows[:most])
    _note_left_out(table, len(switches) - most)
    return table


def _note_left_out(table: out.Table, left_out: int) -> None:
    if left_out > 0:
        others = [""] * (len(table.columns) - 1)
        table.add_row(out.Coloured(f"and {left_out} more", "quiet"), *others)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}".replace("%", " %")

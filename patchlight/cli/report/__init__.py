"""Writes ``patchlight report``: the records of a period as one self-contained HTML page."""

from __future__ import annotations

import io
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from patchlight.console.connection import with_client
from patchlight.console.events import event_words
from patchlight.console.rendering import (
    cannot_write,
    harmless,
    say,
    span,
    when,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import parse_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from patchlight.client.client import ControllerClient
    from patchlight.testbed.jobs import Pace
    from patchlight.testbed.wire.rest.circuits import ChangeAnswer
    from patchlight.testbed.wire.rest.jobs import JobAnswer, JobInList
    from patchlight.testbed.wire.rest.lab import Samples

T = TypeVar("T")

# Job states and ends of changes have their own tables.
_TOLD_ELSEWHERE = ("job-", "circuits")
_MOST_ROWS = 1000

MOST_JOBS = 60
# Okabe and Ito's colours, distinguishable with colour blindness.
_COLOURS = {"done": "#009e73", "failed": "#d55e00", "stopped": "#757575"}
_AT_WORK = "#0072b2"
_WAITING = "#cccccc"
_CHANGE = "#cc79a7"
_REST = "#56b4e9"
_SENDS = "#e69f00"
MOST_EVENTS = 500

_PAGE = Path(__file__).with_name("page.html.j2")


@click.command()
@click.option(
    "--since",
    default="1d",
    metavar="TIME",
    help="Start of the period: an age, like 2h or 7d, or a date with or without a time.",
)
@click.option(
    "--until",
    default="0s",
    metavar="TIME",
    help="End of the period, likewise.",
)
@click.option(
    "--output",
    type=click.Path(
        path_type=Path,
        dir_okay=False,
    ),
    default=Path("report.html"),
    metavar="FILE",
    help="File to write.",
)
@with_client
def report(
    client: ControllerClient,
    since: str,
    until: str,
    output: Path,
) -> None:
    """Write an HTML report of the lab: jobs, GPUs, changes of circuits, events.

    The report is one self-contained file. It goes back as far as the lab's records.
    """
    now = time.time()
    begins = _moment(since, now, "--since")
    ends = _moment(until, now, "--until")
    if begins >= ends:
        raise BadInput(f"--since {since} is not before --until {until}")
    period = look_back(client, begins, ends)
    try:
        output.write_text(
            as_page(period),
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise cannot_write(f"the report {output}", error) from error
    counts = [
        _so_many(len(period.jobs), "job"),
        _so_many(len(period.changes), "change"),
        _so_many(len(period.events), "event"),
    ]
    say(f"{headline(period)}\nwrote {output}: {', '.join(counts)}")


def _so_many(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")


def _moment(
    text: str,
    now: float,
    option: str,
) -> float:
    try:
        return now - parse_time(text)
    except BadInput:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise BadInput(
            f"{option} {text}: expected an age, like 2h or 7d, or a date like '2026-11-22 14:30'"
        ) from error


@dataclass(frozen=True)
class Period:
    """Fetch the records from ``since`` until ``until`` (Unix time).

    ``jobs`` are those that waited or ran then; ``samples`` cover the whole lab.
    """

    lab: str
    since: float
    until: float
    jobs: list[JobInList]
    changes: list[ChangeAnswer]
    events: list[dict[str, Any]]
    samples: Samples

    def stages(self) -> list[tuple[str, int, float, float, float]]:
        """The stages of committed changes, in order: name, times, mean, median and longest in s."""
        took: dict[str, list[float]] = {}
        for change in self.changes:
            if change.state == "committed" and change.changes:
                for name, seconds in change.stages_s.items():
                    took.setdefault(name, []).append(seconds)
        return [
            (n, len(s), fmean(s), median(s), max(s)) for n, s in took.items()
        ]


def headline(period: Period) -> str:
    """What happened, in a sentence."""
    states = Counter(job.state for job in period.jobs)
    said = [
        _so_many(len(period.jobs), "job")
        + (f" ({_counted(states)})" if states else "")
    ]
    busy = [
        spread.mean for window in period.samples.lab if (spread := window.busy)
    ]
    if busy:
        said.append(f"GPUs {100 * fmean(busy):.0f} % busy on average")
    committed = [
        c for c in period.changes if c.state == "committed" and c.changes
    ]
    words = _so_many(len(committed), "committed change") + " of circuits"
    took = [c.finished_at - c.started_at for c in committed if c.finished_at]
    said.append(
        words + (f", {_took(median(took))} each (median)" if took else "")
    )
    return "; ".join(said) + "."


def time_with_data(period: Period) -> tuple[float, float]:
    """The part of a period from its first record to its last; all of it if there are none."""
    width_s = period.samples.width_s
    times = [event["at"] for event in period.events]
    for job in period.jobs:
        times += [job.submitted_at, job.finished_at or period.until]
    for change in period.changes:
        times += [
            change.started_at,
            change.finished_at or change.started_at,
        ]
    for window in period.samples.lab:
        if window.busy or window.sent_bps:
            times += [window.at, window.at + width_s]
    inside = [min(max(at, period.since), period.until) for at in times]
    return (
        (min(inside), max(inside)) if inside else (period.since, period.until)
    )


def look_back(
    client: ControllerClient,
    since: float,
    until: float,
) -> Period:
    """A controller's records of a period."""
    return Period(
        lab=client.identity().name,
        since=since,
        until=until,
        jobs=client.jobs(
            since=since,
            until=until,
        ),
        changes=_all(
            partial(client.past_reconfigurations, since, until),
            lambda change: change.id,
        ),
        events=[
            event
            for event in _all(
                partial(client.past_events, since, until),
                lambda event: int(event["number"]),
            )
            if not event["kind"].startswith(_TOLD_ELSEWHERE)
        ],
        samples=client.samples(since, until, jobs=()),
    )


def _all(
    latest: Callable[..., list[T]], number: Callable[[T], int]
) -> list[T]:
    """All rows of a period, oldest first, from a call that returns the latest before a number."""
    rows = page = latest(last=_MOST_ROWS)
    while len(page) == _MOST_ROWS:
        page = latest(
            last=_MOST_ROWS,
            before=number(page[0]),
        )
        rows = page + rows
    return rows


def as_page(period: Period) -> str:
    """The report as HTML. Text of users and devices is escaped."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "when": when,
        "span": span,
        "shown": harmless,
        "took": _took,
    }
    shown = time_with_data(period)
    pictures = {
        "timeline": timeline(period, shown) if period.jobs else None,
        "utilization": _band(
            period.samples,
            shown,
            "busy",
            100.0,
            "GPU utilisation (%)",
        ),
        "throughput": _band(
            period.samples,
            shown,
            "sent_bps",
            1e-9,
            "sent per host (Gb/s)",
        ),
    }
    return environment.from_string(_PAGE.read_text(encoding="utf-8")).render(
        period=period,
        headline=headline(period),
        begins=shown[0],
        ends=shown[1],
        stages=period.stages(),
        # For GPUs that report it.
        energy_j=sum(sum(job.energy_j.values()) for job in period.jobs),
        made_at=time.time(),
        most_jobs=MOST_JOBS,
        most_events=MOST_EVENTS,
        counts=_counts,
        words_of=lambda event: harmless(event_words(event)),
        # Drawn by the report, with escaped texts.
        **{name: drawn and Markup(drawn) for name, drawn in pictures.items()},
    )


def timeline(period: Period, shown: tuple[float, float]) -> str:
    """The latest jobs as bars: waiting, then running; changes of circuits as lines."""
    from matplotlib.figure import Figure

    jobs = period.jobs[-MOST_JOBS:]
    figure = Figure(
        figsize=(11, 1.2 + 0.22 * max(4, len(jobs))),
        layout="constrained",
    )
    axes = figure.add_subplot()
    for row, job in enumerate(jobs):
        ended = min(job.finished_at or period.until, period.until)
        started = job.started_at if job.started_at is not None else ended
        colour = _COLOURS.get(job.state, _AT_WORK)
        _bar(
            axes,
            row,
            max(job.submitted_at, period.since),
            started,
            _WAITING,
        )
        _bar(
            axes,
            row,
            max(started, period.since),
            ended,
            colour,
        )
    for change in period.changes:
        if change.state == "committed" and change.changes:
            axes.axvline(
                _at(change.started_at),
                color=_CHANGE,
                linewidth=0.8,
            )
    axes.set_yticks(
        range(len(jobs)), [_plain(job.id) for job in jobs], fontsize=7
    )
    axes.set_ylim(len(jobs) - 0.4, -0.6)
    _time_axis(axes, *shown)
    return _svg(figure)


def iteration_bars(jobs: Sequence[JobAnswer]) -> Figure:
    """The iteration time of each pace of jobs as bars: computation, communication, and a line at
    the predicted time."""
    from matplotlib.figure import Figure

    paces = [
        (_pace_name(job, pace), pace, pace.iteration_s)
        for job in jobs
        for pace in job.paces
        if pace.iteration_s is not None
    ]
    if not paces:
        names = ", ".join(job.id for job in jobs)
        raise BadInput(f"no iterations of {names} were measured")
    figure = Figure(
        figsize=(6.5, 1.2 + 0.5 * len(paces)), layout="constrained"
    )
    axes = figure.add_subplot()
    for row, (_, pace, iteration_s) in enumerate(paces):
        sends_s = iteration_s * (pace.communication or 0.0)
        rest_s = iteration_s - sends_s
        axes.barh(row, rest_s, color=_REST)
        axes.barh(
            row,
            sends_s,
            left=rest_s,
            color=_SENDS,
        )
        axes.text(
            max(iteration_s, pace.predicted_s or 0.0),
            row,
            f" {iteration_s:.3f} s",
            va="center",
        )
        if pace.predicted_s is not None:
            axes.vlines(
                pace.predicted_s,
                row - 0.4,
                row + 0.4,
                colors="black",
            )
    labels = {"all but communication": _REST, "communication": _SENDS}
    for label, colour in labels.items():
        axes.barh(
            0,
            0,
            color=colour,
            label=label,
        )
    axes.plot(
        [],
        [],
        color="black",
        label="predicted",
    )
    axes.set_yticks(range(len(paces)), [name for name, *_ in paces])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.set_xlabel("time of an iteration, s")
    figure.legend(
        loc="outside upper left",
        ncols=3,
        frameon=False,
    )
    return figure


def _pace_name(job: JobAnswer, pace: Pace) -> str:
    number = pace.reconfiguration
    return _plain(f"{job.id}, change {number}" if number else job.id)


def _band(
    samples: Samples,
    shown: tuple[float, float],
    key: Literal["busy", "sent_bps"],
    factor: float,
    about: str,
) -> str | None:
    from matplotlib.figure import Figure

    width_s = samples.width_s
    told = [
        (window.at, spread)
        for window in samples.lab
        if (spread := getattr(window, key))
    ]
    if not told:
        return None
    # Both edges of a window, so that single windows and gaps are visible.
    edges: list[float] = []
    values: list[Sequence[float]] = []
    for at, spread in told:
        if edges and at > edges[-1]:
            edges.append(edges[-1])
            values.append([math.nan] * 3)
        edges += [at, at + width_s]
        there = [
            factor * getattr(spread, name)
            for name in ("least", "most", "mean")
        ]
        values += [there, there]
    times = [_at(edge) for edge in edges]
    least, most, means = zip(*values, strict=True)
    figure = Figure(
        figsize=(11, 3),
        layout="constrained",
    )
    axes = figure.add_subplot()
    axes.fill_between(
        times,
        least,
        most,
        color=_AT_WORK,
        alpha=0.2,
        linewidth=0,
    )
    axes.plot(
        times,
        means,
        color=_AT_WORK,
        linewidth=1.5,
    )
    axes.set_ylabel(about)
    axes.set_ylim(bottom=0)
    _time_axis(axes, *shown)
    return _svg(figure)


def _bar(
    axes: Axes,
    row: int,
    begin: float,
    end: float,
    colour: str,
) -> None:
    if end > begin:
        left = _at(begin)
        axes.barh(
            row,
            _at(end) - left,
            left=left,
            color=colour,
            height=0.7,
        )


def _at(unix_time: float) -> float:
    from matplotlib.dates import date2num

    return float(date2num(datetime.fromtimestamp(unix_time)))  # type: ignore[no-untyped-call]


def _time_axis(
    axes: Axes,
    since: float,
    until: float,
) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator()  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    shown = ConciseDateFormatter(locator)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(shown)
    axes.set_xlim(_at(since), _at(max(until, since + 1)))
    axes.grid(
        axis="x",
        linewidth=0.3,
    )


def _plain(name: str) -> str:
    """A name as text: matplotlib reads text between dollar signs as a formula."""
    return harmless(name).replace("$", r"\$")


def _svg(figure: Figure) -> str:
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "patchlight"}
    ):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(
            out,
            format="svg",
            metadata=nothing,
        )
    # Remove the declaration, which names an external file.
    return re.sub(
        r"^.*?(?=<svg)",
        "",
        out.getvalue(),
        count=1,
        flags=re.DOTALL,
    )


def _took(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _counts(rows: Sequence[JobInList | ChangeAnswer]) -> str:
    words = _counted(Counter(row.state for row in rows))
    return f": {words}" if words else ""


def _counted(states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in states.items())

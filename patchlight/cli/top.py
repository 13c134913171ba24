"""``patchlight top``: jobs, GPUs, throughput and circuits, live in one terminal."""

import time
from collections import deque
from dataclasses import asdict

import click

from patchlight.cli.job.follow import patiently
from patchlight.cli.status import JobPace, Scrape, job_paces, ocs_words
from patchlight.console.connection import connect, controller_options
from patchlight.console.rendering import (
    Coloured,
    Column,
    Screen,
    Table,
    json_option,
    live,
    print_json,
    terminal_lines,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import format_rate, parse_time

_LEAST_S = 0.5
_LOOKS = 5
# Headings, lines between tables, and the lines that say how many rows were left out.
_LINES_AROUND = 14


@click.command()
@click.option("--every", default="2s", metavar="TIME", help="How often it looks.")
@click.option("--once", is_flag=True, help="Print it once; so it is done where no terminal is.")
@json_option
@controller_options
def top(every: str, once: bool, as_json: bool, lab_name: str | None, address: str | None) -> None:
    """Show jobs, GPUs and circuits as they are, again and again. Ends with Ctrl-C.

    Rates are means over the latest four times between two looks. It takes a terminal of 80 columns
    and 24 lines, and shows more rows on a larger one; over a slow line, look less often. No device
    is asked for it. 'patchlight job top' compares jobs with what was predicted of them.

    With --json it is printed once: jobs, with their rates, and circuit switches.
    """
    every_s = parse_time(every)
    if every_s < _LEAST_S:
        raise BadInput(f"--every {every}: expected {_LEAST_S:g}s or more, like 2s")
    with connect(lab_name, address) as client:
        # Workers are heard of some times a second: over a longer time, rates are steadier.
        looks = deque([patiently(lambda: Scrape.of(client))], maxlen=_LOOKS)
        time.sleep(every_s)

        def look() -> tuple[Scrape, Scrape]:
            looks.append(patiently(lambda: Scrape.of(client)))
            return looks[0], looks[-1]

        if as_json:
            before, now = look()
            print_json(
                {
                    "jobs": [asdict(pace) for pace in job_paces(now, before)],
                    "circuit_switches": {
                        ocs: ocs_words(now, ocs).text for ocs in now.by("ocs_up", "ocs")
                    },
                }
            )
        else:
            live(lambda: screen(*look(), terminal_lines()), every_s, once=once)


def screen(before: Scrape, now: Scrape, lines: int) -> Screen:
    """What is shown on a terminal of so many lines, 24 at least."""
    paces = job_paces(now, before)
    rows = max(24, lines) - _LINES_AROUND
    switches = sorted(now.by("ocs_up", "ocs"))
    for_light = min(len(switches), max(1, rows // 4))
    for_jobs = min(len(paces), max(1, (rows - for_light) // 2))
    return Screen(
        _jobs(paces, for_jobs, now),
        _gpus(paces, now, rows - for_light - for_jobs),
        _light(switches, now, for_light),
    )


def _jobs(paces: list[JobPace], most: int, now: Scrape) -> Table:
    waiting = round(now.total("queue_jobs"))
    table = Table(
        Column("job", cut=True),
        Column("GPUs", whole=True, right=True),
        Column("done", whole=True, right=True),
        Column("in 1 s", whole=True, right=True),
        Column("sends", whole=True, right=True),
        Column("communicates", whole=True, right=True),
        Column("busy", whole=True, right=True),
        title=f"{time.strftime('%H:%M:%S')}  {len(paces)} jobs run, {waiting} wait",
    )
    for pace in paces[:most]:
        done = f"{pace.done}/{pace.wanted}" if pace.wanted else f"{pace.done}"
        table.add_row(
            Coloured(f"{pace.job_id} (paused)", "caution") if pace.paused else pace.job_id,
            str(len(pace.gpus)),
            done,
            "" if pace.iterations_per_s is None else f"{pace.iterations_per_s:.3f}",
            "" if pace.sent_bps is None else format_rate(round(pace.sent_bps)),
            _share(pace.communication),
            _share(pace.utilization),
        )
    _note_left_out(table, len(paces) - most, 7)
    return table


def _gpus(paces: list[JobPace], now: Scrape, most: int) -> Table:
    job_of = {gpu: pace.job_id for pace in paces for gpu in pace.gpus}
    host_of = {said["gpu"]: said["host"] for said, _ in now.of_metric("gpu_allocated")}
    busy, power = now.by("gpu_utilization_ratio", "gpu"), now.by("gpu_power_watts", "gpu")
    sends = now.by("host_transmit_bytes_per_second", "host")
    usable = now.by("gpu_up", "gpu")
    names = sorted(
        {*usable, *job_of}, key=lambda gpu: (gpu not in job_of, job_of.get(gpu, ""), gpu)
    )
    table = Table(
        Column("GPU", cut=True),
        Column("job", cut=True),
        Column("busy", whole=True, right=True),
        Column("power", whole=True, right=True),
        Column("sends", whole=True, right=True),
        title=f"{len(job_of)} of {len(names)} GPUs are in jobs",
    )
    for gpu in names[:most]:
        host = host_of.get(gpu, gpu)
        table.add_row(
            gpu if usable.get(gpu, 1) else Coloured(f"{gpu} cannot be used", "bad"),
            job_of.get(gpu, Coloured("free", "quiet")),
            _share(busy.get(gpu)),
            f"{power[gpu]:.0f} W" if gpu in power else "",
            format_rate(round(8 * sends[host])) if host in sends else "",
        )
    _note_left_out(table, len(names) - most, 5)
    return table


def _light(switches: list[str], now: Scrape, most: int) -> Table:
    table = Table(Column("circuit switch", cut=True), Column("light", cut=True))
    # Those that are not well come first.
    words = {ocs: ocs_words(now, ocs) for ocs in switches}
    for ocs in sorted(switches, key=lambda name: words[name].meaning == "good")[:most]:
        table.add_row(ocs, words[ocs])
    _note_left_out(table, len(switches) - most, 2)
    return table


def _note_left_out(table: Table, left_out: int, columns: int) -> None:
    if left_out > 0:
        table.add_row(Coloured(f"and {left_out} more", "quiet"), *[""] * (columns - 1))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}".replace("%", " %")

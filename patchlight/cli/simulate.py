"""``patchlight simulate``: a job trace on a cluster with a queue; no root needed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.testbed.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchlight.emulation.simulator.cluster.cluster import Cluster
    from patchlight.emulation.simulator.cluster.sweep import CombinationResult

# Of a job's time, on a lab: VGG16 on four M40 with 40 Gb/s each moves gradients for so much of it.
_LAB_COMMUNICATION = 0.25


def _names(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Names joined by commas, without spaces and empty ones; each once."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise click.BadParameter("name at least one", context, parameter)
    return found


@click.command()
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    required=True,
    help="Jobs: Philly or Helios CSV, PAI tables, Philly JSON.",
)
@click.option("--format", "kind", metavar="NAME", help="Its format.  [default: recognised]")
@click.option("--skip-bad", is_flag=True, help="Leave out jobs with mistakes, and count them.")
@click.option("--jobs", type=click.IntRange(min=1), help="Only the first so many.  [default: all]")
@click.option(
    "--speed", type=float, default=1.0, show_default=True, help="Jobs come so many times as fast."
)
@click.option(
    "--cluster",
    metavar="RxSxG",
    help="Racks × servers in each × GPUs in each.  [default: 16x16x8]",
)
@click.option("--lab", metavar="LAB", help="The GPUs and links of a lab instead.")
@click.option(
    "--oversubscription",
    type=float,
    default=1.0,
    show_default=True,
    help="NIC rates of a rack over its uplink's; with --cluster.",
)
@click.option(
    "--communication",
    type=float,
    help="Part of their time for which jobs of several GPUs move gradients.  [default: 0; with "
    f"--lab {_LAB_COMMUNICATION}]",
)
@click.option("--order", callback=_names, metavar="NAMES", default="fifo", show_default=True)
@click.option(
    "--placement", callback=_names, metavar="NAMES", default="first-fit", show_default=True
)
@click.option("--topology", callback=_names, metavar="NAMES", default="keep", show_default=True)
@click.option("--preempt", is_flag=True, help="Waiting jobs take the GPUs of those behind them.")
@click.option(
    "--quantum",
    type=float,
    default=360.0,
    show_default=True,
    help="Seconds that a job runs before it is preempted.",
)
@click.option(
    "--restart",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds that a job needs to begin again.",
)
@click.option(
    "--checkpoint",
    type=float,
    default=3600.0,
    show_default=True,
    help="Seconds of running between checkpoints.",
)
@click.option("--backfill", is_flag=True, help="Jobs behind may start if they hold up nobody.")
@click.option("--blind", is_flag=True, help="Policies do not know how long jobs take.")
@click.option(
    "--failures",
    metavar="WHAT:UP:DOWN",
    help="server or gpu, mean time it works, mean time to mend it: server:30d:4h.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--engine",
    type=click.Choice(["serial", "processes", "ray"]),
    default="processes",
    show_default=True,
    help="Where runs are made if there are several.",
)
@click.option("--address", help="Of a Ray cluster.  [default: one of our own, here]")
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="At a time; results are the same for any number.  [default: one for each core]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the results go.  [default: results/simulate-<time>]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def simulate(
    trace: Path,
    kind: str | None,
    skip_bad: bool,
    jobs: int | None,
    speed: float,
    cluster: str | None,
    lab: str | None,
    oversubscription: float,
    communication: float | None,
    order: tuple[str, ...],
    placement: tuple[str, ...],
    topology: tuple[str, ...],
    preempt: bool,
    quantum: float,
    restart: float,
    checkpoint: float,
    backfill: bool,
    blind: bool,
    failures: str | None,
    seed: int,
    engine: str,
    address: str | None,
    processes: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate a cluster with a queue under a job trace.

    Policies are names (patchlight policy list) or FILE.py:CLASS; where several are joined by
    commas, every combination is run. Prints a table and writes plots, a table of all jobs for
    each run, and result.json (see docs/simulator.md).
    """
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.cli.rendering import console, print_json
    from patchlight.emulation.experiments.machine import describe_machine
    from patchlight.emulation.simulator.cluster import Outages, Settings, queue_jobs
    from patchlight.emulation.simulator.cluster.naming import check_policies
    from patchlight.emulation.simulator.cluster.report import check_output, result_of, write_report
    from patchlight.emulation.simulator.cluster.sweep import Sweep, combinations, run_sweep
    from patchlight.emulation.simulator.executors import Engine
    from patchlight.emulation.simulator.traces import load_trace

    where = _cluster(cluster, lab, oversubscription)
    check_policies(order, placement, topology)
    if topology != ("keep",) and not where.circuits:
        raise BadInput(
            f"topology {', '.join(topology)} needs circuits: this cluster has no OCS",
            hint="choose --topology keep, or a --lab with an OCS, like ofc2022",
        )
    settings = Settings(
        backfill=backfill,
        preempt=preempt,
        quantum_s=quantum,
        restart_s=restart,
        checkpoint_s=checkpoint,
        known=not blind,
        outages=None if failures is None else Outages.parse(failures),
    )
    on = Engine(engine, processes or 0, address)
    folder = output or Path("results") / time.strftime("simulate-%Y%m%d-%H%M%S")
    out = console(stderr=as_json)
    read = load_trace(trace, kind, skip_bad=skip_bad)
    if communication is None:
        communication = 0.0 if lab is None else _LAB_COMMUNICATION
    sweep = Sweep(where, queue_jobs(read.jobs[:jobs], communication, speed), settings)
    wanted = combinations(order, placement, topology, seed)
    check_output(folder)
    began = time.monotonic()
    outcomes = _with_progress(lambda tell: run_sweep(sweep, wanted, on, tell), len(wanted), out)
    setting = {
        "trace": {"file": str(trace), "jobs": len(sweep.jobs), "speed": speed,
                  "communication": communication},
        "cluster": {"name": lab or cluster or _DEFAULT, "gpus": len(where.shape.gpus),
                    "servers": len(where.shape.servers), "racks": len(where.shape.racks),
                    "oversubscription": None if lab else oversubscription},
        "settings": {**settings.words, "seed": seed},
        "engine": on.name if len(wanted) > 1 else "serial",
        "duration_s": time.monotonic() - began,
        "machine": describe_machine(),
    }  # fmt: skip
    files = write_report(outcomes, setting, folder)
    if as_json:
        print_json(result_of(outcomes, setting))
        return
    for each in read.notes:
        out.print(each)
    _print(outcomes, out)
    pictures = ", ".join(file.name for file in files if file.suffix == ".png")
    out.print(f"Plots ({pictures}), tables of jobs and result.json: {folder}/", soft_wrap=True)


_DEFAULT = "16x16x8"


def _cluster(cluster: str | None, lab: str | None, oversubscription: float) -> Cluster:
    from patchlight.emulation.simulator.cluster import LabCluster, TwoLevel
    from patchlight.testbed.labfile.reader import load_lab

    if lab is None:
        return TwoLevel.parse(cluster or _DEFAULT, oversubscription)
    if cluster is not None:
        raise BadInput("--cluster and --lab exclude each other: give one of them")
    if oversubscription != 1.0:
        raise BadInput("a lab's links are those of its file: --oversubscription is for --cluster")
    return LabCluster(load_lab(lab))


def _with_progress(run: Any, count: int, out: Any) -> list[CombinationResult]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    words = "jobs" if count == 1 else "runs"
    with Progress(
        f"{words} done",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=out,
        disable=not out.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task(words, total=None)
        found: list[CombinationResult] = run(
            lambda done, total: progress.update(task, completed=done, total=total)
        )
        return found


def _print(outcomes: Sequence[CombinationResult], out: Any) -> None:
    from rich.markup import escape

    from patchlight.cli.rendering import new_table
    from patchlight.emulation.simulator.cluster.report import run_names

    table = new_table(
        "policies", "done", "blocked", "JCT mean", "p50", "p99", "waited mean", "p99",
        "slowdown", "held", "busy", "fragm.", "makespan", "preempted", "lost", "rewired", "CPU",
    )  # fmt: skip
    for name, each in zip(run_names(outcomes), outcomes, strict=True):
        s = each.summary
        blocked = ", ".join(f"{count} {cause}" for cause, count in s["blocked"].items())
        table.add_row(
            escape(name),
            str(s["done"]),
            blocked or "0",
            *(_time(s["jct_s"][key]) for key in ("mean", "p50", "p99")),
            *(_time(s["waited_s"][key]) for key in ("mean", "p99")),
            _number(s["bounded_slowdown"]["mean"]),
            *(_percent(s[key]) for key in ("allocated", "busy", "fragmentation")),
            _time(s["makespan_s"]),
            str(s["preemptions"]),
            str(s["losses"]),
            str(s["reconfigurations"]),
            f"{each.cpu_s:.1f} s",
        )
    out.print(table)
    for name, each in zip(run_names(outcomes), outcomes, strict=True):
        for fault in each.faults:
            out.print(f"{name}: {fault}", style="yellow", markup=False)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, length_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.1f} {unit}"
    return f"{seconds:.3g} s"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"

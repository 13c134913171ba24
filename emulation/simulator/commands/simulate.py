"""``patchlight simulate``: a job trace on a cluster with a queue; no root needed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from patchlight.console import options as opts
from patchlight.console import rendering as out
from patchlight.console.commands import lab_option, only_some_finished
from patchlight.console.connection import offline_lab, user_name
from patchlight.emulation.simulator.commands.compare import simulate_chakra
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.rules import Discipline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchlight.emulation.simulator.cluster.sweep import CombinationResult
    from patchlight.emulation.simulator.cluster.trace_simulation import SimulationOptions


def _names(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """Names joined by commas, without spaces and empty ones; each once."""
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise click.BadParameter("name at least one", context, parameter)
    return found


_FILE, _FOLDER = click.Path(path_type=Path), click.Path(path_type=Path, file_okay=False)
_COUNT = click.IntRange(min=1)
_POLICY_NAMES: dict[str, Any] = {
    "callback": _names,
    "metavar": "NAMES",
    "shell_complete": opts.complete_policy,
}
STRICT = "A policy that fails is an error (exit code 1), after the results are written."
_OPTIONS = (
    click.option(
        "--trace",
        type=_FILE,
        help="Jobs: Philly or Helios CSV, Alibaba's PAI, openb or spot GPU tables, Philly JSON, "
        "each also as .gz; with --lab a job file (.yaml); helios or pai: drawn like theirs.",
    ),
    click.option(
        "--chakra",
        type=_FILE,
        multiple=True,
        metavar="PREFIX[@+TIME]",
        help="Instead of --trace: a job, whose ranks have the Chakra execution traces "
        "PREFIX.0.et, PREFIX.1.et … (or .json), rank r on node r of a --network. Give it again for "
        "more jobs, on the next nodes, from TIME on: B@+30s.",
    ),
    click.option(
        "--format", "trace_format", metavar="NAME", help="Its format.  [default: recognised]"
    ),
    click.option(
        "--skip-bad",
        is_flag=True,
        help="Leave out jobs with mistakes, and count them; with --chakra dependencies on nodes "
        "that are not in the file.",
    ),
    click.option("--jobs", type=_COUNT, help="Only the first so many.  [default: all; 2000 drawn]"),
    click.option("--speed", default=1.0, help="Jobs come so many times as fast."),
    click.option(
        "--cluster",
        metavar="RxSxG",
        help="Racks × servers in each × GPUs in each.  [default: 16x16x8]",
    ),
    lab_option(
        "The GPUs and links of a lab instead; its file says of queue and policies what no "
        "option does.",
        "lab",
        instead=("cluster", "network", "chakra"),
    ),
    click.option(
        "--network",
        metavar="SPEC",
        help="A network of flows instead, on which jobs have phases, like fat-tree:k=16,taper=2 "
        "(docs/network-simulator.md).",
    ),
    click.option(
        "--oversubscription",
        default=1.0,
        help="NIC rates of a rack over its uplink's; with --cluster.",
    ),
    click.option(
        "--communication",
        type=float,
        help="Part of their time for which jobs of several GPUs move gradients.  [default: 0; with "
        "--lab or --network 0.25]",
    ),
    click.option("--order", default="fifo", **_POLICY_NAMES),
    click.option("--placement", default="first-fit", **_POLICY_NAMES),
    click.option("--topology", default="keep", **_POLICY_NAMES),
    click.option("--elasticity", default="rigid", **_POLICY_NAMES),
    click.option("--partition", default="as-asked", **_POLICY_NAMES),
    click.option("--restart", default=60.0, help="Seconds that a job needs to begin again."),
    click.option("--checkpoint", default=3600.0, help="Seconds of running between checkpoints."),
    *opts.QUEUE_OPTIONS,
    click.option(
        "--defragment",
        "defragment_s",
        type=float,
        is_flag=False,
        flag_value=600.0,
        metavar="[SECONDS]",
        help="Also move light under running jobs where that pays: at each end of a job and every "
        "SECONDS (600); each run is made without and with it.",
    ),
    click.option("--blind", is_flag=True, help="Policies do not know how long jobs take."),
    click.option(
        "--failures",
        metavar="WHAT:UP:DOWN",
        help="server or gpu, mean time it works, mean time to mend it: server:30d:4h.",
    ),
    click.option(
        "--slow",
        multiple=True,
        metavar="NODE:FACTOR",
        help="With --network: this node (or all) computes so many times as long, or by a law that "
        "is drawn for each iteration: 5:1.5, all:exponential:0.1, 5:lognormal:0.3. Give it again "
        "for more.",
    ),
    click.option(
        "--fail",
        multiple=True,
        metavar="WHAT@WHEN+LENGTH",
        help="With --network: a link, all links of a path between two nodes, or a node fails and "
        "comes back: link:12@1h+5min, path:0-7@1h+5min, node:5@1h+5min. Give it again for more.",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0),
    click.option(
        "--engine",
        type=click.Choice(["serial", "processes", "ray"]),
        default="processes",
        help="Where runs are made if there are several.",
    ),
    click.option("--address", help="Of a Ray cluster.  [default: one of our own, here]"),
    click.option(
        "--processes",
        type=_COUNT,
        help="At a time; results are the same for any number.  [default: one for each core]",
    ),
)


def simulation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what is to be simulated, as ``options``: a ``SimulationOptions``."""

    @functools.wraps(command)
    def with_options(*args: Any, **given: Any) -> Any:
        if given["chakra"]:
            return simulate_chakra(click.get_current_context(), given)
        if given["trace"] is None:
            raise BadInput("there are no jobs to simulate: give a --trace FILE, or --chakra PREFIX")
        del given["chakra"]
        # Not above: importing NumPy takes longer than --help should.
        from patchlight.emulation.simulator.cluster import Settings
        from patchlight.emulation.simulator.cluster.trace_simulation import (
            JOB_FILES,
            SimulationOptions,
        )
        from patchlight.emulation.simulator.executors import Engine
        from patchlight.emulation.simulator.outages import Outages
        from patchlight.testbed.labfile.reader import load_lab

        compares = given["defragment_s"] is not None
        failures, given["lab"] = given.pop("failures"), given["lab"] and offline_lab(given["lab"])
        lab = given["lab"] and load_lab(given["lab"])
        policies, of_lab = opts.left_to_the_lab(lab.policies) if lab else ({}, {})
        if given["trace"].suffix not in JOB_FILES:  # Traces say how many GPUs their jobs want.
            policies.pop("partition", None)
        given |= policies
        said = dict(
            restart_s=given.pop("restart"),
            checkpoint_s=given.pop("checkpoint"),
            defragment_s=given.pop("defragment_s"),
            known=not given.pop("blind"),
            outages=None if failures is None else Outages.parse(failures),
            seed=given.pop("seed"),
            **opts.taken_discipline(given, lab.queue if lab else Discipline()),
        )
        settings = Settings(**{**said, **of_lab})
        engine = Engine(given.pop("engine"), given.pop("processes") or 0, given.pop("address"))
        other = {name: given.pop(name) for name in ("output", "strict", "as_json")}
        options = SimulationOptions(
            settings=settings, engine=engine, compares=compares, user=user_name(), **given
        )
        return command(*args, options=options, **other)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


@click.command(context_settings={"show_default": True})
@simulation_options
@opts.results_option("results/simulate-<time>")
@click.option("--strict", is_flag=True, help=STRICT)
@out.listing_options
def simulate(options: SimulationOptions, output: Path | None, strict: bool, as_json: bool) -> None:
    """Simulate a cluster with a queue under a job trace.

    Policies are names (patchlight policy show) or FILE.py:CLASS; where several are joined by
    commas, every combination is run. Prints a table and writes plots, a table of all jobs for
    each run, and result.json (see docs/simulator.md). With --chakra: jobs as they were recorded.
    """
    run_simulation(options, output, strict, as_json)


def run_simulation(
    options: SimulationOptions, output: Path | None, strict: bool, as_json: bool
) -> None:
    """Simulate, write the results into ``output`` and print the figures.

    ``PatchlightError`` at the end if a policy failed and ``strict``; ``KeyboardInterrupt`` if
    only some runs are finished.
    """
    from patchlight.emulation.simulator.cluster.trace_simulation import simulate_trace
    from patchlight.emulation.simulator.results import results_folder

    folder = results_folder(output, "simulate")
    terminal = out.console(stderr=as_json)
    with out.progress_bar("jobs" if len(options.combinations) == 1 else "runs", terminal) as tell:
        simulation = simulate_trace(options, folder, tell)
    if as_json:
        out.print_json(simulation.result)
    else:
        for note in simulation.notes:
            out.say(note)
        _print(simulation.outcomes)
        pictures = ", ".join(file.name for file in simulation.files if file.suffix == ".png")
        also = "also as PDF and SVG"
        out.say(f"Plots ({pictures}, {also}), tables of jobs and result.json: {folder}/")
    if simulation.interrupted:
        only_some_finished(len(simulation.outcomes), len(options.combinations), "runs")
    if strict:
        refuse_faults(sum(each.faults.count for each in simulation.outcomes))


def refuse_faults(count: int) -> None:
    """``PatchlightError`` if policies failed: their figures are those of the defaults, too."""
    if count:
        raise PatchlightError(
            f"policies failed {count} times, and the default decided instead",
            hint="the first faults are named above; without --strict they are only counted",
        )


def _number_column(heading: str, *, wide: bool = False) -> out.Column:
    return out.Column(heading, wide=wide, whole=True, right=True)


_COLUMNS = (
    "policies",
    _number_column("done"),
    out.Column("blocked", right=True),
    _number_column("JCT mean"),
    _number_column("p50", wide=True),
    _number_column("p99"),
    _number_column("waited mean"),
    _number_column("waited p99", wide=True),
    _number_column("slowdown", wide=True),
    _number_column("held", wide=True),
    _number_column("busy"),
    _number_column("fragm.", wide=True),
    _number_column("makespan"),
    _number_column("preempted", wide=True),
    _number_column("lost", wide=True),
    _number_column("resized", wide=True),
    _number_column("rewired", wide=True),
    _number_column("CPU", wide=True),
)


def _print(outcomes: Sequence[CombinationResult]) -> None:
    from patchlight.emulation.simulator.cluster.report import run_names

    faults = [_number_column("faults")] if any(each.faults.count for each in outcomes) else []
    table = out.Table(*_COLUMNS, *faults)
    for name, each in zip(run_names(outcomes), outcomes, strict=True):
        s = each.summary
        blocked = ", ".join(f"{count} {cause}" for cause, count in s["blocked"].items())
        table.add_row(
            *(name, str(s["done"]), blocked or "0"),
            *(_time(s["jct_s"][key]) for key in ("mean", "p50", "p99")),
            *(_time(s["waited_s"][key]) for key in ("mean", "p99")),
            _number(s["bounded_slowdown"]["mean"]),
            *(_percent(s[key]) for key in ("allocated", "busy", "fragmentation")),
            _time(s["makespan_s"]),
            *(str(s[key]) for key in ("preemptions", "losses", "resizes", "reconfigurations")),
            f"{each.cpu_s:.1f} s",
            *([out.Coloured(str(each.faults.count), "bad")] if faults else []),
        )
    table.print()
    for name, each in zip(run_names(outcomes), outcomes, strict=True):
        for fault in each.faults.first:
            out.say(f"{name}: {fault}", meaning="caution")
        if (more := each.faults.count - len(each.faults.first)) > 0:
            out.say(f"{name}: and {more} faults more", meaning="caution")


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

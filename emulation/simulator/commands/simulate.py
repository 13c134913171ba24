"""``patchlight simulate``: a job trace on a cluster with a queue; no root needed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from patchlight.console import options as opts
from patchlight.console import rendering as out
from patchlight.console.connection import offline_lab, user_name
from patchlight.console.options import Command
from patchlight.console.shared import lab_option
from patchlight.emulation.simulator.commands.compare import simulate_chakra
from patchlight.emulation.simulator.commands.run_options import (
    engine_of,
    only_some_finished,
    refuse_faults,
    run_options,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import KINDS, Discipline, PolicyChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchlight.emulation.simulator.cluster.sweep import CombinationResult
    from patchlight.emulation.simulator.cluster.trace_simulation import (
        SimulationOptions,
    )


def _names(
    context: click.Context,
    parameter: click.Parameter,
    value: str,
) -> tuple[str, ...]:
    """Names joined by commas, without spaces and empty ones; each once."""
    found = tuple(
        dict.fromkeys(
            part.strip() for part in value.split(",") if part.strip()
        )
    )
    if not found:
        raise click.BadParameter("name at least one", context, parameter)
    return found


_FILE = click.Path(path_type=Path)
_COUNT = click.IntRange(min=1)
_DEFAULTS = {
    "--order": "fifo",
    "--placement": "first-fit",
    "--topology": "keep",
    "--elasticity": "rigid",
    "--partition": "as-asked",
}
_OPTIONS = (
    click.option(
        "--trace",
        type=_FILE,
        help="Jobs: a CSV of Philly or Helios, Alibaba's PAI, openb, DLRM or spot GPU tables, "
        "Philly's JSON, a log in SWF or of 'sacct -P', each also as .gz; with --lab a job file "
        "(.yaml); helios or pai: random jobs with the statistics of that trace.",
    ),
    click.option(
        "--chakra",
        type=_FILE,
        multiple=True,
        metavar="PREFIX[@+TIME]",
        help="Instead of --trace: a job recorded as Chakra execution traces PREFIX.0.et, "
        "PREFIX.1.et … (or .json), rank r on node r of the --network. Repeat it for more jobs, on "
        "the next nodes, starting at TIME: B@+30s.",
    ),
    click.option(
        "--skip-bad",
        is_flag=True,
        help="Skip and count jobs with mistakes; with --chakra, dependencies on missing nodes.",
    ),
    click.option(
        "--peak-flops",
        type=opts.FiniteFloat(
            min=0,
            min_open=True,
        ),
        metavar="NUMBER",
        help="With --chakra: operations per second of a GPU, like 312e12, for nodes that have "
        "num_ops and no duration.",
    ),
    click.option(
        "--jobs",
        type=_COUNT,
        help="Only the first N jobs. [default: all; random: 2000]",
    ),
    click.option(
        "--speed",
        default=1.0,
        help="Divide inter-arrival times by this.",
    ),
    click.option(
        "--cluster",
        metavar="RxSxG[,taper=T]",
        help="Racks × servers per rack × GPUs per server; taper: the rate of a rack's NICs over "
        "its uplink's.  [default: 16x16x8,taper=1]",
    ),
    lab_option(
        "Instead of --cluster: a lab's GPUs and links, with the queue and policies of its file.",
        "lab",
        instead=("cluster", "network", "chakra"),
    ),
    click.option(
        "--network",
        metavar="SPEC",
        help="Instead of --cluster: a network simulated flow by flow, like fat-tree:k=16,taper=2 "
        "(docs/network-simulator.md).",
    ),
    click.option(
        "--communication",
        type=float,
        help="Share of a job's time spent moving gradients, with several GPUs.  [default: 0; with "
        "--lab or --network 0.25]",
    ),
    *(
        click.option(
            name,
            default=default,
            callback=_names,
            metavar="NAMES",
            shell_complete=opts.complete_policy,
            help=opts.POLICIES[name][0],
        )
        for name, default in _DEFAULTS.items()
    ),
    click.option(
        "--restart",
        default=60.0,
        help="Restart time of a job, in seconds.",
    ),
    click.option(
        "--checkpoint",
        default=3600.0,
        help="Seconds of running between checkpoints.",
    ),
    click.option(
        "--preempt/--no-preempt",
        default=None,
        help="Waiting jobs preempt jobs behind them. [default: the lab's, else no]",
    ),
    click.option(
        "--backfill/--no-backfill",
        default=None,
        help="Later jobs start if they delay no earlier job. [default: the lab's, else no]",
    ),
    click.option(
        "--set",
        "queue",
        multiple=True,
        metavar="KEY=VALUE",
        help="A key of a lab file's queue section, like backfill_depth=20, quantum=6min or "
        "'users=[{name: alice, share: 2}]'; repeatable.",
    ),
    click.option(
        "--defragment",
        "defragment_s",
        type=float,
        is_flag=False,
        flag_value=600.0,
        metavar="[SECONDS]",
        help="Also move circuits of running jobs where that helps: when a job ends and every "
        "SECONDS (600). Each combination runs without and with it.",
    ),
    click.option(
        "--blind",
        is_flag=True,
        help="Hide job durations from the policies.",
    ),
    click.option(
        "--failures",
        multiple=True,
        metavar="WHAT",
        help="Random outages of servers or GPUs, with mean times to failure and to repair: "
        "server:30d:4h, gpu:90d:1h. With --network also one outage of a link, of a path between "
        "two nodes, or of a node: link:12@1h+5min, path:0-7@1h+5min, node:5@1h+5min; repeatable.",
    ),
    click.option(
        "--slow",
        multiple=True,
        metavar="NODE:FACTOR",
        help="With --network: multiply the compute time of this node (or all) by a constant, or by "
        "a factor drawn per iteration: 5:1.5, all:exponential:0.1, 5:lognormal:0.3; repeatable.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        help="Random seed.",
    ),
)


def _queue(given: dict[str, Any], usual: Discipline) -> dict[str, Any]:
    """Take the queue's options out of ``given``: a ``Discipline``'s fields over ``usual``."""
    # Not above: importing pydantic takes longer than --help should.
    from patchlight.testbed.io.keys import plain, read
    from patchlight.testbed.io.reader import FileIssues
    from patchlight.testbed.labfile.sections import QueueKeys

    pairs = given.pop("queue")
    for pair in pairs:
        if "=" not in pair:
            raise BadInput(
                f"--set {pair}: expected KEY=VALUE, like quantum=6min"
            )
    text = "\n".join(pair.replace("=", ": ", 1) for pair in pairs)
    issues = FileIssues("--set")
    said = read(QueueKeys, text or "{}", issues)
    issues.raise_if_any()
    found = {
        field.name: getattr(usual, field.name) for field in fields(Discipline)
    }
    names = QueueKeys.field_of
    found |= {
        names[key]: plain(each.value) for key, each in said.there.items()
    }
    options = {name: given.pop(name) for name in ("preempt", "backfill")}
    return found | {
        name: value for name, value in options.items() if value is not None
    }


def _left_to_the_lab(
    policies: PolicyChoice,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policies and settings that the lab's file has and no option sets."""
    from patchlight.controller.policies.cheapest import LOOKED_AT_EVERY_S

    def is_said(option: str) -> bool:
        source = click.get_current_context().get_parameter_source(option)
        return source is not ParameterSource.DEFAULT

    named: dict[str, Any] = {
        kind: (name,)
        for kind in KINDS
        if not is_said(kind) and (name := policies.of(kind)) is not None
    }
    settings: dict[str, Any] = {}
    if policies.minimum_gain_s is not None:
        settings["minimum_gain_s"] = policies.minimum_gain_s
    if policies.defragment and not is_said("defragment_s"):
        every_s = policies.defragment_every_s
        settings["defragment_s"] = (
            LOOKED_AT_EVERY_S if every_s is None else every_s
        )
    return named, settings


def simulation_of(given: dict[str, Any]) -> SimulationOptions:
    """The options of ``simulate``; ``BadInput`` if they exclude each other."""
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.simulator.cluster import Settings
    from patchlight.emulation.simulator.cluster.trace_simulation import (
        JOB_FILES,
        SimulationOptions,
    )
    from patchlight.emulation.simulator.outages import Outages
    from patchlight.testbed.labfile.reader import load_lab

    lab = None
    if given["lab"]:
        given["lab"] = offline_lab(given["lab"])
        lab = load_lab(given["lab"])
    compares = given["defragment_s"] is not None
    policies, of_lab = _left_to_the_lab(lab.policies) if lab else ({}, {})
    if (
        given["trace"].suffix not in JOB_FILES
    ):  # Traces say how many GPUs their jobs want.
        policies.pop("partition", None)
    given |= policies
    random = [text for text in given["failures"] if "@" not in text]
    given["failures"] = tuple(
        text for text in given["failures"] if "@" in text
    )
    if len(random) > 1:
        raise BadInput(
            f"--failures {random[1]}: only one kind of random failure can be simulated"
        )
    said = dict(
        restart_s=given.pop("restart"),
        checkpoint_s=given.pop("checkpoint"),
        defragment_s=given.pop("defragment_s"),
        known=not given.pop("blind"),
        outages=Outages.parse(random[0]) if random else None,
        seed=given.pop("seed"),
        **_queue(given, lab.queue if lab else Discipline()),
    )
    return SimulationOptions(
        settings=Settings(**{**said, **of_lab}),
        engine=engine_of(given.pop("processes"), given.pop("ray")),
        compares=compares,
        user=user_name(),
        **given,
    )


def _simulation_options(command: Command) -> Command:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(context_settings={"show_default": True})
@_simulation_options
@run_options(described=True)
@out.listing_options
@click.pass_context
def simulate(
    context: click.Context,
    /,
    output: Path | None,
    strict: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Simulate a cluster with a queue under a job trace.

    Policies are names ('patchlight policy show' lists them) or FILE.py:CLASS. With several, joined
    by commas, every combination runs. Prints a table and writes plots, a table of jobs for each
    run, and result.json (see docs/simulator.md).
    """
    if given["chakra"]:
        simulate_chakra(
            context, {**given, "output": output, "as_json": as_json}
        )
        return
    del given["chakra"]
    if given.pop("peak_flops") is not None:
        raise BadInput(
            "--peak-flops needs --chakra: other traces have job durations"
        )
    if given["trace"] is None:
        raise BadInput(
            "there are no jobs to simulate: give a --trace FILE, or --chakra PREFIX"
        )
    options = simulation_of(given)
    from patchlight.emulation.simulator.cluster.trace_simulation import (
        simulate_trace,
    )
    from patchlight.emulation.simulator.results import results_folder

    folder = results_folder(output, "simulate")
    terminal = out.console(stderr=as_json)
    on_ray = options.engine.name == "ray" and len(options.combinations) > 1
    counted = "runs" if on_ray else "jobs"
    with out.progress_bar(counted, terminal) as tell:
        simulation = simulate_trace(options, folder, tell)
    if as_json:
        out.print_json(simulation.result)
    else:
        for note in simulation.notes:
            out.say(note)
        _print(simulation.outcomes)
        pictures = ", ".join(
            file.name for file in simulation.files if file.suffix == ".png"
        )
        also = "also as PDF and SVG"
        out.say(
            f"Plots ({pictures}, {also}), tables of jobs and result.json: {folder}/"
        )
    if simulation.interrupted:
        only_some_finished(
            len(simulation.outcomes), len(options.combinations), "runs"
        )
    if strict:
        refuse_faults(sum(each.faults.count for each in simulation.outcomes))


_COLUMNS = (
    "policies",
    out.number("done"),
    out.Column("blocked", right=True),
    out.number("JCT mean"),
    out.number("p50", wide=True),
    out.number("p99"),
    out.number("waited mean"),
    out.number("waited p99", wide=True),
    out.number("slowdown", wide=True),
    out.number("held", wide=True),
    out.number("busy"),
    out.number("fragm.", wide=True),
    out.number("makespan"),
    out.number("preempted", wide=True),
    out.number("lost", wide=True),
    out.number("resized", wide=True),
    out.number("rewired", wide=True),
    out.number("CPU", wide=True),
)


def _print(outcomes: Sequence[CombinationResult]) -> None:
    from patchlight.emulation.simulator.cluster.report import run_names

    faults = (
        [out.number("faults")]
        if any(each.faults.count for each in outcomes)
        else []
    )
    table = out.Table(*_COLUMNS, *faults)
    for name, each in zip(run_names(outcomes), outcomes, strict=True):
        s = each.summary
        blocked = ", ".join(
            f"{count} {cause}" for cause, count in s["blocked"].items()
        )
        table.add_row(
            name,
            str(s["done"]),
            blocked or "0",
            *(_time(s["jct_s"][key]) for key in ("mean", "p50", "p99")),
            *(_time(s["waited_s"][key]) for key in ("mean", "p99")),
            _number(s["bounded_slowdown"]["mean"]),
            *(
                _percent(s[key])
                for key in ("allocated", "busy", "fragmentation")
            ),
            _time(s["makespan_s"]),
            *(
                str(s[key])
                for key in (
                    "preemptions",
                    "losses",
                    "resizes",
                    "reconfigurations",
                )
            ),
            f"{each.cpu_s:.1f} s",
            *([out.Coloured(str(each.faults.count), "bad")] if faults else []),
        )
    table.print()
    for name, each in zip(run_names(outcomes), outcomes, strict=True):
        for fault in each.faults.first:
            out.say(f"{name}: {fault}", meaning="caution")
        if (more := each.faults.count - len(each.faults.first)) > 0:
            out.say(f"{name}: and {more} more errors", meaning="caution")


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

"""``patchlight experiment oddl``: ODDL beside other networks, in packets or in flows."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from patchlight.console import rendering as out
from patchlight.console.commands import require_root
from patchlight.emulation.simulator.commands.run_options import (
    engine_of,
    run_options,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import format_rate, format_time, parse_time

_COUNT = click.IntRange(min=1)
_OF_PACKETS = ("iterations", "scale", "slowdown", "replace")
_OF_FLOWS = (
    "nodes",
    "trace",
    "placement",
    "draws",
    "seed",
    "control_delay",
    "processes",
)
_TUNING_IN_FLOWS_S = 100e-9


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise BadInput(f"{text!r}: expected whole numbers joined by commas")
    return int(text)


def by_commas(read: Callable[[str], Any]) -> Callable[..., Any]:
    """A reader of an option's comma-separated values, without spaces and empty ones."""

    def split(
        context: click.Context,
        parameter: click.Parameter,
        value: str | None,
    ) -> Any:
        parts = (
            None
            if value is None
            else (part.strip() for part in value.split(","))
        )
        return parts and tuple(read(part) for part in parts if part)

    return split


@click.command(context_settings={"show_default": True})
@click.option(
    "--flows",
    is_flag=True,
    help="Simulate flows, instead of emulating with packets.",
)
@click.option(
    "--readings",
    is_flag=True,
    help="Say which readings of the abstract give its speedups.",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Packets: one round, two tuning times. Flows: 128 nodes instead of 1,024, one draw.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="vgg19, resnet50, bert-large, gpt2 or mixture-of-experts; repeatable with --flows.  "
    "[default: all; packets: vgg19]",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=2),
    default=4,
    help="Packets: iterations on each network per round.",
)
@click.option(
    "--scale",
    type=click.FloatRange(min=1),
    default=1000,
    help="Packets: divide rates and bytes by this; times stay the same.",
)
@click.option(
    "--slowdown",
    type=click.FloatRange(min=1),
    default=4,
    help="Packets: multiply the times of computation, transfers and tuning by this.",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Packets: take down labs of these names first.",
)
@click.option(
    "--nodes",
    callback=by_commas(_whole),
    metavar="N,N…",
    help="Flows: sizes of the measured job.  [default: 16,64,256,512,1024; quick: 16,64,128]",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Flows: a trace of the other jobs, like Philly's.  [default: random jobs with that "
    "trace's statistics]",
)
@click.option(
    "--placement",
    default="first-fit",
    metavar="POLICY",
    help="Flows: placement policy.",
)
@click.option(
    "--draws",
    type=_COUNT,
    help="Flows: average over N sets of other jobs.  [default: 3; quick: 1]",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="Flows: seed of the first set.",
)
@click.option(
    "--control-delay",
    metavar="TIME",
    help="Flows: one-way delay from a node to the path scheduler.  [default: 100us, as measured "
    "between nodes]",
)
@click.option(
    "--tuning-time",
    "tuning_times_s",
    callback=by_commas(parse_time),
    metavar="TIME,TIME…",
    help="Tuning time of a transceiver; with --flows only one.  [default: 1ms,4ms,16ms,64ms; "
    "flows: 100ns]",
)
@run_options("--output", "--processes")
@out.listing_options
@click.pass_context
def oddl(
    context: click.Context,
    /,
    flows: bool,
    readings: bool,
    quick: bool,
    models: tuple[str, ...],
    nodes: tuple[int, ...] | None,
    draws: int | None,
    control_delay: str | None,
    tuning_times_s: tuple[float, ...] | None,
    processes: int | None,
    output: Path | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Compare training over ODDL's tunable transceivers with other networks.

    W. Li et al., J. Opt. Commun. Netw., 2024. With packets (needs root): four emulated nodes
    beside the same four on an ideal switch, and the cost of tuning and control. With --flows: up
    to 1,024 nodes beside a fat-tree, SiP-Ring and an ideal switch; faster with the extra 'fast'.
    With --readings: networks, placements, collectives and GPUs, and which give what is published.
    Writes plots and result.json (see docs/results/oddl.md).
    """
    if readings:
        _run_readings(context, output, models, quick=quick, as_json=as_json)
        return
    for name in _OF_PACKETS if flows else _OF_FLOWS:
        if (
            context.get_parameter_source(name)
            is click.core.ParameterSource.COMMANDLINE
        ):
            form = (
                "an experiment with packets: leave out --flows"
                if flows
                else "an experiment with flows: add --flows"
            )
            raise BadInput(f"--{name.replace('_', '-')} needs {form}")
    of_packets = {name: chosen.pop(name) for name in _OF_PACKETS}
    if not flows:
        run_with_packets(
            output,
            models,
            tuning_times_s,
            quick=quick,
            as_json=as_json,
            **of_packets,
        )
        return
    if tuning_times_s is not None and len(tuning_times_s) != 1:
        raise BadInput("expected one --tuning-time with --flows")
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.oddl import figures, run
    from patchlight.emulation.experiments.oddl.conditions import LightTimes
    from patchlight.emulation.simulator.results import results_folder

    given: dict[str, Any] = {"models": models} if models else {}
    if quick:
        given |= {"radix": 8, "nodes": (16, 64, 128), "draws": 1}
    if nodes is not None:
        given["nodes"] = nodes
    if draws is not None:
        given["draws"] = draws
    light = LightTimes((tuning_times_s or (_TUNING_IN_FLOWS_S,))[0])
    if control_delay is not None:
        light = light._replace(control_s=parse_time(control_delay))
    given["light"] = light
    options = run.FlowOptions(
        engine=engine_of(processes),
        **given,
        **chosen,
    )
    folder = results_folder(output, "oddl")
    with out.progress_bar("parts", out.console(stderr=as_json)) as tell:
        result = run.run_flows(options, tell)
    files = figures.write_report(result, folder)
    if as_json:
        out.print_json(result)
        return
    _print_speedups(result)
    out.say(
        f"Other jobs: {result['arrivals']}; draws: {options.draws}; placement: {options.placement}."
    )
    out.say_written(files, folder)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ×"


def _print_speedups(result: dict[str, Any]) -> None:
    table = out.Table(
        "model",
        out.number("nodes"),
        out.number("fat-tree"),
        out.number("if 96 ch"),
        out.number("paper"),
        out.number("2:1"),
        out.number("SiP-Ring"),
        out.number("paper"),
        out.number("ideal"),
        title=f"Speedup of training with ODDL, in a cluster of {result['cluster_nodes']}",
    )
    for model, by_nodes in result["speedups"].items():
        for nodes, row in by_nodes.items():
            paper = result["paper"].get(model, {}).get(nodes, {})
            table.add_row(
                model,
                nodes,
                _times(row["fat_tree"]),
                _times(
                    result["speedups_limited"]["96"][model][nodes]["fat_tree"][
                        0
                    ]
                ),
                _times(paper.get("fat_tree")),
                _times(row["fat_tree_2_1"]),
                _times(row["sip_ring"]),
                _times(paper.get("sip_ring")),
                _times(row["ideal"]),
            )
    table.print()


_OF_READINGS = ("readings", "quick", "models", "seed", "output", "as_json")


def _run_readings(
    context: click.Context,
    output: Path | None,
    models: tuple[str, ...],
    *,
    quick: bool,
    as_json: bool,
) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is click.core.ParameterSource.COMMANDLINE
        if given and parameter.name not in _OF_READINGS:
            raise BadInput(f"{parameter.opts[0]} is not for --readings")
    if len(models) > 1:
        raise BadInput("expected one --model with --readings")
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.oddl import figures
    from patchlight.emulation.experiments.oddl.readings import run_readings
    from patchlight.emulation.simulator.results import results_folder

    folder = results_folder(output, "oddl-readings")
    model = models[0] if models else "vgg19"
    result = run_readings(8 if quick else 16, model, context.params["seed"])
    files = figures.write_readings(result, folder)
    if as_json:
        out.print_json(result)
        return
    _print_readings(result)
    out.say_written(files, folder)


def _print_readings(result: dict[str, Any]) -> None:
    presets = result["compute_s"]
    times = ", ".join(
        f"{name} {1e3 * compute_s:.0f} ms"
        for name, compute_s in presets.items()
    )
    table = out.Table(
        out.number(""),
        "over",
        out.number("f"),
        *map(out.number, presets),
        title=f"{result['model']}, {result['nodes']} nodes: how many times as fast on ODDL; * as "
        f"published, by 0.1 or less. An iteration computes for {times}",
    )
    for number, row in enumerate(result["readings"]):
        speedups = [
            "*" * (number in result["given_by"][name].get(row["compared"], ()))
            + f"{row['speedups'][name]:.2f} ×"
            for name in presets
        ]
        table.add_row(
            str(number + 1), reading_words(row), f"{row['f']:.2f}", *speedups
        )
    table.print()


def reading_words(row: dict[str, Any]) -> str:
    """A reading as text: the network without its size, and its traffic."""
    network, _, parameters = row["spec"].partition(":")
    parts = [
        network,
        *parameters.split(",")[1:],
        row["collective"],
        row["placement"],
    ]
    parts += [f"{row['jobs']} jobs"] if row["jobs"] > 1 else []
    parts += [f"{row['load']:.0%} taken by others"] if row["load"] else []
    parts += [f"{format_time(row['step_s'])} a step"]
    return ", ".join(parts)


_QUICK_TUNING_TIMES_S = (1e-3, 16e-3)


def run_with_packets(
    output: Path | None,
    models: tuple[str, ...],
    tuning_times_s: tuple[float, ...] | None,
    *,
    quick: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Run it, print tables and write plots and ``result.json``."""
    # Not above: importing NumPy and Matplotlib takes longer than --help should.
    from patchlight.emulation.experiments.oddl import figures
    from patchlight.emulation.experiments.oddl.packets import run
    from patchlight.emulation.simulator.results import (
        give_to_caller,
        results_folder,
    )

    if len(models) > 1:
        raise BadInput(
            "expected one --model: with packets, a single job is trained"
        )
    if models:
        chosen["model"] = models[0]
    if quick:
        chosen |= {"rounds": 1, "tuning_times_s": _QUICK_TUNING_TIMES_S}
    if tuning_times_s is not None:
        chosen["tuning_times_s"] = tuning_times_s
    options = run.PacketOptions(**chosen)
    require_root("building labs from network namespaces")
    folder = results_folder(output, "oddl")
    # Like Ctrl-C: an error that passes through the labs' with blocks, so that they are taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    terminal = out.console(stderr=as_json)

    def tell(step: str) -> None:
        terminal.print(
            f"{time.strftime('%H:%M:%S')} {out.harmless(step)}", soft_wrap=True
        )

    result = run.run_packets(options, tell)
    files = figures.write_packets_report(result, folder)
    give_to_caller([folder, *files])
    if as_json:
        out.print_json(result)
        return
    _print_sweep(result)
    _print_stages(result, figures.STAGE_LABELS)
    _print_isolation(result["isolation"], figures.ISOLATION_LABELS)
    out.say(
        f"Rates and bytes 1:{result['scale']:g}, then all {result['slowdown']:g} times slower: "
        f"NICs of {format_rate(result['emulated_bps'])}. Times are in the job's scale."
    )
    out.say_written(files, folder)


def _print_sweep(result: dict[str, Any]) -> None:
    table = out.Table(
        out.number("tuning time"),
        out.number("fixed ring"),
        out.number("ring reversed in each iteration"),
        out.number("tuning alone"),
        title=f"{result['model']}, {result['nodes']} nodes: training time over an ideal switch's",
    )
    for row in result["sweep"]:
        ratios = (
            f"{row[name]:.4f}" for name in ("kept", "turned", "tuning_alone")
        )
        table.add_row(format_time(row["tuning_time_s"]), *ratios)
    table.print()


def _print_stages(result: dict[str, Any], labels: dict[str, str]) -> None:
    arms = ("ideal", "kept", "turned")
    tuning = format_time(result["sweep"][0]["tuning_time_s"])
    table = out.Table(
        out.Column("stage, ms"),
        *(out.number(heading) for arm in arms for heading in (arm, "longest")),
        title=f"Parts of an iteration (medians; {tuning} to tune)",
    )
    for stage, words in labels.items():
        cells = []
        for arm in arms:
            found = result["stages"][arm].get(stage)
            shown = ("median_s", "longest_s")
            cells += [
                f"{1e3 * found[name]:.2f}" if found else "" for name in shown
            ]
        table.add_row(words, *cells)
    table.print()


def _print_isolation(found: dict[str, Any], labels: dict[str, str]) -> None:
    table = out.Table(
        out.Column("light", whole=True),
        out.number("flooded frames"),
        out.number("at the neighbour"),
        out.number("its iteration"),
        out.number("95 %"),
        title="A job that floods all channels, and its neighbour",
    )
    for way, words in labels.items():
        row = found[way]
        change = ["", ""]
        if "iteration_change" in row:
            ends = [100 * end for end in row["iteration_change_interval"]]
            change = [
                f"{100 * row['iteration_change']:+.2f} %",
                "{:+.2f} to {:+.2f}".format(*ends),
            ]
        cells = (
            f"{row[name]:,}"
            for name in ("frames_flooded", "frames_at_neighbour")
        )
        table.add_row(words, *cells, *change)
    table.print()

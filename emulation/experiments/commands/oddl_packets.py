"""``patchlight experiment oddl`` with packets: runs it, and prints what came of it."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from patchlight.console.errors import require_root
from patchlight.console.rendering import (
    Column,
    Table,
    console,
    give_to_caller,
    harmless,
    print_json,
    say,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import format_rate, format_time

_QUICK_TUNING_TIMES_S = (1e-3, 16e-3)


def run_with_packets(
    folder: Path,
    models: tuple[str, ...],
    tuning_times_s: tuple[float, ...] | None,
    *,
    quick: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Run it, print tables and write plots and ``result.json`` into ``folder``."""
    # Not above: importing NumPy and Matplotlib takes longer than --help should.
    from patchlight.emulation.experiments.oddl.packets import figures, run
    from patchlight.emulation.output_folder import check_output

    if len(models) > 1:
        raise BadInput("expected one --model: with packets, a single job is trained")
    if models:
        chosen["model"] = models[0]
    if quick:
        chosen |= {"rounds": 1, "tuning_times_s": _QUICK_TUNING_TIMES_S}
    if tuning_times_s is not None:
        chosen["tuning_times_s"] = tuning_times_s
    options = run.PacketOptions(**chosen)
    require_root("building labs out of network namespaces")
    check_output(folder)
    # Like Ctrl-C: an error that passes through the labs' with blocks, so that they are taken down.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = console(stderr=as_json)

    def tell(step: str) -> None:
        out.print(f"{time.strftime('%H:%M:%S')} {harmless(step)}", soft_wrap=True)

    result = run.run_packets(options, tell)
    files = figures.write_report(result, folder)
    give_to_caller([folder, *files])
    if as_json:
        print_json(result)
        return
    _print_sweep(result)
    _print_stages(result, figures.STAGE_LABELS)
    _print_isolation(result["isolation"], figures.ISOLATION_LABELS)
    say(
        f"Rates and bytes 1:{result['scale']:g}, then all {result['slowdown']:g} times slower: "
        f"NICs of {format_rate(result['emulated_bps'])}. Times are the job's."
    )
    pictures = ", ".join(file.name for file in files if file.suffix == ".png")
    say(f"Plots ({pictures}, also as PDF and SVG) and result.json: {folder}/")


def _number(heading: str) -> Column:
    return Column(heading, whole=True, right=True)


def _print_sweep(result: dict[str, Any]) -> None:
    table = Table(
        _number("tuning time"),
        _number("ring kept"),
        _number("ring turned in each iteration"),
        _number("tuning alone"),
        title=f"{result['model']}, {result['nodes']} nodes: training time over an ideal switch's",
    )
    for row in result["sweep"]:
        ratios = (f"{row[name]:.4f}" for name in ("kept", "turned", "tuning_alone"))
        table.add_row(format_time(row["tuning_time_s"]), *ratios)
    table.print()


def _print_stages(result: dict[str, Any], labels: dict[str, str]) -> None:
    arms = {"ideal": "ideal", "kept": "kept", "turned": "turned"}
    tuning = format_time(result["sweep"][0]["tuning_time_s"])
    table = Table(
        Column("stage, ms"),
        *(_number(heading) for arm in arms.values() for heading in (arm, "longest")),
        title=f"What an iteration is made of (medians; {tuning} to tune)",
    )
    for stage, words in labels.items():
        cells = []
        for arm in arms:
            found = result["stages"][arm].get(stage)
            cells += ["", ""] if found is None else _milliseconds(found)
        table.add_row(words, *cells)
    table.print()


def _milliseconds(found: dict[str, float]) -> list[str]:
    return [f"{1e3 * found[name]:.2f}" for name in ("median_s", "longest_s")]


def _print_isolation(found: dict[str, Any], labels: dict[str, str]) -> None:
    table = Table(
        Column("light", whole=True),
        _number("flooded frames"),
        _number("at the neighbour"),
        _number("its iteration"),
        _number("95 %"),
        title="A job that floods on all channels, and its neighbour",
    )
    for way, words in labels.items():
        row, change = found[way], ["", ""]
        if "iteration_change" in row:
            ends = [100 * end for end in row["iteration_change_interval"]]
            change = [f"{100 * row['iteration_change']:+.2f} %", "{:+.2f} to {:+.2f}".format(*ends)]
        cells = (f"{row[name]:,}" for name in ("frames_flooded", "frames_at_neighbour"))
        table.add_row(words, *cells, *change)
    table.print()

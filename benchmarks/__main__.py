"""Runs the benchmarks, prints their figures as a table and writes them as JSON.

Each module named in ``MODULES`` has a ``run``, which gives figures as ``benchmarks.figure`` does;
one that takes long has a parameter ``full``, and measures less without it.
"""

import argparse
import datetime
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import figure
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.errors import PatchlightError

MODULES = (
    "benchmarks.fabric",
    "benchmarks.colours",
    "benchmarks.experiment",
    "benchmarks.prediction",
    "benchmarks.nics",
    "benchmarks.moved_nics",
    "benchmarks.jobs",
    "benchmarks.jobqueue",
    "benchmarks.api",
    "benchmarks.dashboard",
    "benchmarks.following_light",
    "benchmarks.places_and_light",
    "benchmarks.openflow",
    "benchmarks.ocs",
    "benchmarks.ocs_gnmi",
    "benchmarks.ocssessions",
    "benchmarks.simulator",
    "benchmarks.scale",
    "benchmarks.networks",
    "benchmarks.queues",
    "benchmarks.jobfaults",
    "benchmarks.deploying",
    "benchmarks.gpus",
    "benchmarks.scrapes",
    "benchmarks.neighbours",
    "benchmarks.paths",
    "benchmarks.starting",
    "benchmarks.learning",
    "benchmarks.topology",
)


def table(figures: list[dict[str, Any]]) -> Table:
    shown = Table(
        "figure", "measured", "unit", "limit", "peer", "peer measured"
    )
    for each in figures:
        peer_value = each["peer_value"]
        shown.add_row(
            each["name"],
            f"{each['value']:.4g}",
            each["unit"],
            each["limit"] or "",
            each["peer"] or "",
            "" if peer_value is None else f"{peer_value:.4g}",
        )
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks; 1 if one of them could not be run (the others still are)."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks.json"))
    parser.add_argument(
        "--full", action="store_true", help="measure all of what takes long"
    )
    parser.add_argument(
        "modules", nargs="*", default=list(MODULES), help="default: all"
    )
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 130
    # The load before we make some of our own.
    origin = provenance(seeds=())
    figures: list[dict[str, Any]] = []
    failures: list[dict[str, str]] = []
    for name in options.modules:
        console.print(f"[bold]{name}[/bold]")
        try:
            run = importlib.import_module(name).run
            takes_long = "full" in inspect.signature(run).parameters
            found = run(full=options.full) if takes_long else run()
            figures += [figure(**raw) for raw in found]
        except PatchlightError as error:
            failures.append({"module": name, "error": str(error)})
            console.print(f"[red]{name}: {error}[/red]")
    console.print(table(figures))
    result = {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(
            timespec="seconds"
        ),
        "machine": origin["machine"],
        "provenance": origin,
        "figures": figures,
        "failures": failures,
    }
    options.output.write_text(
        json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    )
    console.print(f"written to {options.output}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

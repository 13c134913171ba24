"""``patchlight policy compare`` and ``patchlight simulate --chakra``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from patchlight.console import rendering as out
from patchlight.console.options import ANY, complete_policy
from patchlight.emulation.simulator.commands.run_options import (
    engine_of,
    run_options,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.units import parse_time


@click.command(context_settings={"show_default": True})
@click.argument(
    "policies",
    metavar="POLICIES…",
    nargs=-1,
    required=True,
    shell_complete=complete_policy,
)
@click.option(
    "--order",
    default="fifo",
    shell_complete=complete_policy,
    help="Order policy of the built-in pairs and of POLICIES without an order.",
)
@click.option(
    "--over",
    "others",
    multiple=True,
    metavar="POLICIES",
    shell_complete=complete_policy,
    help="Compare with these instead of the built-in pairs; repeatable.",
)
@click.option(
    "--labs",
    type=click.IntRange(2, 10_000),
    default=40,
    help="Number of labs.",
)
@click.option(
    "--first-seed",
    type=click.IntRange(0),
    default=0,
    help="Seed of the first lab.",
)
@click.option(
    "--jobs",
    type=click.IntRange(2, 100_000),
    default=120,
    help="Jobs in each lab.",
)
@click.option(
    "--load",
    type=ANY,
    default=1.1,
    help="Offered load: share of a lab's GPUs.",
)
@click.option(
    "--largest",
    type=click.IntRange(8, 1024),
    default=128,
    help="Most GPUs of a lab.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Take jobs from parts of this trace (a file, helios or pai), scaled to the load.  "
    "[default: random jobs]",
)
@run_options("--output", "--processes")
@out.listing_options
def compare(
    policies: tuple[str, ...],
    order: str,
    others: tuple[str, ...],
    labs: int,
    first_seed: int,
    jobs: int,
    load: float,
    largest: int,
    trace: Path | None,
    processes: int | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare placement, topology and order policies in many random labs.

    POLICIES are PLACEMENT[+TOPOLOGY[+ORDER[+ELASTICITY[+PARTITION]]]], like regroup+regroup+srpt.
    With ELASTICITY, jobs of several workers may have half or twice as many; PARTITION chooses the
    number of workers of all jobs (as-asked: unchanged). All run the same jobs in the same labs as
    the built-in pairs: consolidated, rack-aware, fragmentation-aware and regroup, each with keep
    and with regroup. The table shows the mean completion time relative to the best of these, by
    size of the labs, and the 95th percentile relative to that of the same pair.
    """
    from patchlight.emulation.simulator.randomlabs import (
        Drawn,
        PlayedPolicies,
        built_in,
        by_size,
    )
    from patchlight.emulation.simulator.randomlabs import (
        compare as run_comparison,
    )
    from patchlight.emulation.simulator.results import (
        provenance,
        results_folder,
        write_report,
    )
    from patchlight.emulation.simulator.traces.files import is_drawn

    if not 0 < load <= 10:
        raise BadInput(
            f"--load {load:g}: expected more than 0, and 10 at most"
        )
    folder = results_folder(output, "compare")
    wanted = [PlayedPolicies.parse(text, order) for text in policies]
    pairs = tuple(
        PlayedPolicies.parse(text, order) for text in others
    ) or built_in(order)
    drawn = Drawn(
        jobs,
        load,
        largest,
        trace,
    )
    seeds = range(first_seed, first_seed + labs)
    origin = provenance(
        seeds, [] if trace is None or is_drawn(trace) else [trace]
    )
    with out.progress_bar("labs", out.console(stderr=as_json)) as tell:
        done = iter(range(1, labs + 1))
        choices = (*pairs, *wanted)

        def one_more() -> None:
            tell(next(done), labs)

        results = run_comparison(
            drawn,
            choices,
            seeds,
            engine_of(processes),
            one_more,
        )
    rows = [
        {"labs_of": of, **_words(found)}
        for each in wanted
        for of, found in by_size(results, each, pairs).items()
    ]
    result = {
        "comparison": "random labs",
        "schema_version": 3,
        "order": order,
        "over": [each.name for each in pairs],
        "drawn": {
            "jobs": jobs,
            "load": load,
            "largest": largest,
            "trace": trace and str(trace),
        },
        "rows": rows,
        "labs": [each._asdict() for each in results],
        "provenance": origin,
    }
    written, *_ = write_report(result, folder)
    if as_json:
        out.print_json(rows)
        return
    for each in wanted:
        of_it = [row for row in rows if row["policies"] == each.name]
        _table(
            of_it,
            each.name,
            load,
            ", ".join(others) or "built-in pairs",
        ).print()
    out.say(f"Figures: {written}")


def _words(compared: Any) -> dict[str, Any]:
    return {
        "policies": compared.policies,
        "count": compared.labs,
        "over_best": compared.over_best._asdict(),
        "p95_over_best": compared.p95_over_best._asdict(),
        "best_of_all": compared.one,
        "over_best_of_all": compared.over_one._asdict(),
        "worst": compared.worst,
    }


def _table(
    rows: list[dict[str, Any]],
    name: str,
    load: float,
    others: str,
) -> out.Table:
    title = f"{name}: mean JCT over that of {others}, load {load:g}, geometric mean (95 %)"
    numbers = (
        "labs",
        "over the best of each",
        "worse in",
        "worst",
        "95th pct.",
        "over one",
    )
    table = out.Table(
        "labs of",
        *out.numbers(*numbers),
        out.Column("that one", wide=True),
        title=title,
    )
    for row in rows:
        over = row["over_best"]
        shown: out.Cell = _ratio(over)
        if not over["low"] <= 1 <= over["high"]:
            shown = out.Coloured(
                _ratio(over), "good" if over["mean"] < 1 else "bad"
            )
        table.add_row(
            row["labs_of"],
            str(row["count"]),
            shown,
            f"{100 * over['worse']:.0f} %",
            f"{row['worst']:.3f}",
            f"{row['p95_over_best']['mean']:.2f}",
            _ratio(row["over_best_of_all"]),
            row["best_of_all"],
        )
    return table


def _ratio(found: dict[str, float]) -> str:
    return f"{found['mean']:.3f} ({found['low']:.2f}–{found['high']:.2f})"


_TAKEN = (
    "chakra",
    "network",
    "skip_bad",
    "peak_flops",
    "slow",
    "failures",
    "seed",
    "output",
    "as_json",
)


def simulate_chakra(context: click.Context, given: dict[str, Any]) -> None:
    """Run the jobs that ``given["chakra"]`` names, print how long they take and write it.

    ``BadInput`` without a network, and for options that are about the jobs of a queue.
    """
    from patchlight.emulation.simulator.network.chakra import result_of_chakra
    from patchlight.emulation.simulator.network.chakra_file import (
        files_of_ranks,
    )
    from patchlight.emulation.simulator.network.specs import (
        Trouble,
        network_of,
    )
    from patchlight.emulation.simulator.results import (
        results_folder,
        write_report,
    )

    options = {each.name: each.opts[0] for each in context.command.params}
    others = [
        option
        for name, option in options.items()
        if name not in _TAKEN
        and context.get_parameter_source(name or "")
        is ParameterSource.COMMANDLINE
    ]
    if others:
        raise BadInput(
            f"--chakra excludes {', '.join(others)}: a Chakra job has no queue",
            hint=f"it works with {', '.join(options[name] for name in _TAKEN[1:])}",
        )
    if given["network"] is None:
        raise BadInput(
            "--chakra needs a --network", hint="like --network fat-tree:k=16"
        )
    traces = []
    for text in given["chakra"]:
        prefix, at, begins = str(text).rpartition("@+")
        name, begins_s = (
            (prefix, parse_time(begins)) if at else (str(text), 0.0)
        )
        traces.append((name, files_of_ranks(Path(name)), begins_s))
    folder = results_folder(given["output"], "chakra")
    trouble = Trouble.parse(given["slow"], given["failures"], given["seed"])
    network = network_of(given["network"])
    result = result_of_chakra(
        network,
        traces,
        trouble,
        given["skip_bad"],
        given["peak_flops"],
    )
    result |= {"slow": list(given["slow"]), "fail": list(given["failures"])}
    write_report(result, folder)
    if given["as_json"]:
        out.print_json(result)
        return
    for job in result["jobs"]:
        several = (
            f"{job['chakra']} from {job['begins_s']:g} s: "
            if len(traces) > 1
            else ""
        )
        out.say(
            f"{several}{job['ranks']} ranks, {job['operations']} operations on "
            f"{result['network']}: {job['completion_s']:.6g} s; the busiest GPU stream or CPU "
            f"thread computes for {job['compute_s']:.6g} s in total"
        )
        for note, count in job["notes"].items():
            out.say(f"{job['chakra']}: {note}: {count}", meaning="caution")
    after = (
        f"All are done after {result['completion_s']:.6g} s. "
        if len(traces) > 1
        else ""
    )
    out.say(f"{after}result.json: {folder}/")

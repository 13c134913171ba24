"""``patchlight experiment pac-ml``, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from patchlight.console import rendering as out
from patchlight.console.options import Command, complete_policy
from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.commands.oddl import by_commas
from patchlight.emulation.experiments.pac_ml import CONSTANTS, policies_in
from patchlight.emulation.simulator.commands.run_options import (
    engine_of,
    only_some_finished,
    refuse_faults,
    run_options,
)

_NOTHING = "–"


profiles_option = click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="A clone of PipeDream, or a folder with its five profiles.  [default: "
    "$PATCHLIGHT_PROFILES, else built-in computed ones]",
)
_WHOLE = click.IntRange(min=0)


def names_option(
    name: str,
    about: str,
    **settings: Any,
) -> Callable[[Command], Command]:
    """An option for several names joined by commas."""
    return click.option(
        name,
        callback=by_commas(str),
        metavar="NAMES",
        help=about,
        **settings,
    )


@click.command("pac-ml", context_settings={"show_default": True})
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    help="Episodes of each kind.  [default: 10; quick: 3]",
)
@click.option(
    "--first-seed",
    type=_WHOLE,
    default=0,
    help="Seed of the first episode; the others follow.",
)
@click.option(
    "--salt",
    type=_WHOLE,
    help="The salt in a run's result.json, to repeat it with your own policies. [default: with "
    "your own policies a secret one, so that they cannot predict the jobs; else 0]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Fewer seeds and laws, a shorter rollout.",
)
@names_option(
    "--policies",
    "'all' (the built-in policies), names, FILE.py:CLASS, FILE.onnx; a name may have parameters "
    "(docs/policies.md).",
    default="all",
    shell_complete=complete_policy,
)
@names_option(
    "--laws",
    "Laws of jobs' requirements: A to D, or like uniform:0.2:0.6, skewed:-2, "
    "values:0.25/0.5/1.  [default: A,B,C,D; quick: A,D]",
)
@click.option(
    "--law-instance",
    type=_WHOLE,
    metavar="N",
    help="Use the laws B, C and D made with seed N in all episodes.  [default: new laws in each "
    "episode, like the paper's simulator]",
)
@names_option(
    "--rules",
    "Placement of operations: as in the paper, or in whole blocks.",
    default="ramp-first-fit,ramp-block",
)
@click.option(
    "--ramp",
    metavar="GxRxS",
    help="Groups × racks × servers.  [default: 4x4x2]",
)
@click.option(
    "--arrivals",
    metavar="PROCESS:SECONDS",
    help="Arrival process with its mean interval: fixed:800, poisson:800.  [default: fixed:1000; "
    "with --milliseconds fixed:1]",
)
@click.option(
    "--mix",
    metavar="MODEL=SHARE,…",
    help="Shares of the models, like vgg16=3,gnmt=1.  [default: equal]",
)
@click.option(
    "--failures",
    metavar="UP:DOWN",
    help="Servers fail at random, with these mean times to failure and to repair, like 30d:4h.",
)
@click.option(
    "--remaining-error",
    type=click.FloatRange(0, 3),
    default=0.0,
    metavar="SIGMA",
    help="Give policies remaining times with a log-normal error of this standard deviation.",
)
@click.option(
    "--milliseconds",
    is_flag=True,
    help="Read the profiles' times as milliseconds, where communication matters; the paper's "
    "simulator reads them as seconds.",
)
@profiles_option
@run_options()
@out.listing_options
def pac_ml(
    processes: int | None,
    ray: str | None,
    output: Path | None,
    strict: bool,
    as_json: bool,
    law_instance: int | None,
    laws: tuple[str, ...] | None,
    seeds: int | None,
    first_seed: int,
    salt: int | None,
    quick: bool,
    rules: tuple[str, ...],
    policies: tuple[str, ...],
    profiles: Path | None,
    **varied: Any,
) -> None:
    """Partition jobs with deadlines on the 32 servers of a RAMP.

    Parsonson, Shabka, Ottino, Zervas, "Partitioning Distributed Compute Jobs …" (PAC-ML),
    2023. Prints blocking rates beside the published ones and writes plots and result.json
    (see docs/results/pac-ml.md). Simulated; needs no root. Ctrl-C keeps the finished episodes.
    """
    # Not above: importing NumPy takes longer than --help should.
    from patchlight.emulation.experiments.pac_ml import results, run
    from patchlight.emulation.experiments.pac_ml.variation import Variation
    from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES
    from patchlight.emulation.simulator.results import results_folder

    if laws is None:
        laws = run.QUICK_LAWS if quick else LAW_NAMES
    options = run.PacMlOptions(
        seeds,
        first_seed,
        quick,
        profiles,
        laws,
        rules,
        policies,
        engine_of(processes, ray),
        variation=replace(
            Variation.parse(**varied), law_instance=law_instance
        ),
        salt=salt,
    )
    # Before a folder is made: wrong input leaves nothing.
    options.variation.check_models(run.find_profiles(profiles).graphs)
    folder = results_folder(output, "pac-ml")

    def say(words: str) -> None:
        out.say(words, err=as_json)

    def look(cells: Mapping[Any, Mapping[str, Any]]) -> None:
        if not as_json:
            print_first_look(cells)

    with out.progress_bar("%", out.console(stderr=as_json)) as tell:
        result = run.run_experiment(
            options,
            say,
            tell,
            look,
        )
    files = results.write_report(result, folder)
    for words in results.faults_of(result):
        out.say(
            words,
            err=True,
            meaning="caution",
        )
    for name, lines in result["outside_training"].items():
        out.say(
            f"warning: {name} was {'; '.join(lines)}",
            err=True,
            meaning="caution",
        )
    if as_json:
        out.print_json(result)
    else:
        print_tables(result)
        if not result["comparable"]:
            out.say(
                "Published figures are not shown: they need PipeDream's profiles (--profiles) "
                "and the paper's arrivals and models."
            )
        out.say_written(files, folder)
    if result["interrupted"]:
        only_some_finished(
            result["episodes_finished"], result["episodes_wanted"], "episodes"
        )
    if strict:
        refuse_faults(results.count_faults(result))


def print_first_look(cells: Mapping[Any, Mapping[str, Any]]) -> None:
    """The blocking rates of the first seed, while the others still run."""
    columns = [
        out.number(f"{rule.removeprefix('ramp-')} {law}")
        for rule, law in cells
    ]
    table = out.Table(
        "policy", *columns, title="First look: blocking rate (%) with one seed"
    )
    for name in policies_in(
        {cell: {"policies": found} for cell, found in cells.items()}
    ):
        there = [found.get(name) for found in cells.values()]
        rates = [
            _percent(each.blocking_rate, None) if each else _NOTHING
            for each in there
        ]
        table.add_row(_short(name), *rates)
    table.print()


def print_tables(result: dict[str, Any]) -> None:
    """For each placement rule its tables; last the lowest rates beside the published ones."""
    for rule, laws in result["rules"].items():
        # Figures of another placement rule do not compare.
        beside = result["comparable"] and rule == paper.RULE
        _print_blocking(
            result,
            rule,
            laws,
            beside,
        )
        _print_less_constant(rule, laws)
        for law, cell in laws.items():
            for name, decides in cell["decided_by"].items():
                if decides != name:
                    out.say(
                        f"law {law}: {decides} decided for {name}: no worse in trials"
                    )
        print_less_maximum(rule, laws, beside)
    if rows := rows_beside_published(result):
        title = f"Lowest rates beside PAC-ML's best checkpoint, {paper.RULE}"
        table = out.Table(
            "",
            "published",
            "measured",
            "policy",
            "difference",
            title=title,
        )
        for row in rows:
            table.add_row(*row)
        table.print()


def rows_beside_published(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """For each law the published rate, the lowest one here, its policy, and the difference."""
    rows: list[tuple[str, ...]] = []
    for law, cell in (
        result["rules"].get(paper.RULE, {}).items()
        if result["comparable"]
        else ()
    ):
        if law not in paper.PAC_ML[paper.BEST]:
            continue
        published = paper.PAC_ML[paper.BEST][law].blocking_rate
        measured = cell["lowest"]["blocking_rate"]
        policy = cell["lowest"]["policy"]
        points = f"{100 * (measured - published):+.2f} points".replace(
            "-", "−"
        )
        rates = (f"{100 * each:.2f} %" for each in (published, measured))
        rows.append((f"law {law}", *rates, policy, points))
    return rows


def _print_blocking(
    result: dict[str, Any],
    rule: str,
    laws: dict[str, Any],
    beside: bool,
) -> None:
    instance = result["law_instance"]
    drawn = (
        "new laws in each"
        if instance is None
        else f"instance {instance} of the laws"
    )
    count = len(result["seeds"])
    seeds = "seed" if count == 1 else "seeds"
    other = "".join(
        f", {what} {text}" for what, text in result["varied"].items()
    )
    title = f"Blocking rate (%), {rule}, {count} {seeds}, {drawn}{other}, mean ± 95 %"
    names = policies_in(laws)
    faults = dict.fromkeys(names, 0)
    for cell in laws.values():
        for name, figures in cell["policies"].items():
            faults[name] += figures["faults"]["count"]
    columns = []
    for law in laws:
        columns.append(out.number(f"law {law}"))
        columns += [out.number("publ.", wide=True)] * beside
    counted = [out.number("faults")] if any(faults.values()) else []
    table = out.Table(
        "policy",
        *columns,
        *counted,
        title=title,
    )

    def row(
        name: str,
        cells: list[out.Cell],
        faulty: str = "",
    ) -> None:
        table.add_row(
            name, *cells, *([out.Coloured(faulty, "bad")] if counted else [])
        )

    for name in names:
        cells: list[out.Cell] = []
        for law, cell in laws.items():
            cells.append(_blocked(cell, name))
            cells += [
                _published(paper.BLOCKING.get(name, {}).get(law))
            ] * beside
        row(_short(name), cells, str(faults[name] or ""))
    table.end_section()
    if beside:
        for name, rates in paper.PAC_ML.items():
            row(
                name,
                [t for law in laws for t in (_published(rates.get(law)), "")],
            )
    for name, key in (
        ("bound in hindsight", "hindsight_bound"),
        ("bound without foresight", "online_bound"),
    ):
        bounds = [cell[key] for cell in laws.values()]
        shown = [
            _percent(bound["blocking_rate"], bound["ci95"]) for bound in bounds
        ]
        row(name, [t for text in shown for t in (text, *([""] * beside))])
    table.print()
    out.say(
        "* below every other policy, on the same seeds (paired, 95 %, Holm)",
        meaning="quiet",
    )
    if beside:
        out.say("(…) published", meaning="quiet")


def _blocked(cell: Mapping[str, Any], name: str) -> out.Cell:
    figures = cell["policies"].get(name)
    if figures is None:
        return _NOTHING
    text = _percent(figures["blocking_rate"], figures["ci95"])
    lowest = cell["lowest"]["below_all"] and cell["lowest"]["policy"] == name
    return out.Coloured(f"{text}*", "good") if lowest else f"{text} "


def _print_less_constant(rule: str, laws: dict[str, Any]) -> None:
    """Paired differences to the best constant, excluding constant policies."""
    names = [name for name in policies_in(laws) if name not in CONSTANTS]
    if not names or any(
        cell["lowest"]["constant"] is None for cell in laws.values()
    ):
        return
    columns = []
    for law, cell in laws.items():
        columns.append(
            out.number(
                f"{law}: less {cell['lowest']['constant'].rpartition('-')[2]}"
            )
        )
        columns.append(out.number("above in", wide=True))
    title = f"Blocking rate less the best constant degree's (points), {rule}"
    table = out.Table("policy", *columns, title=title)
    for name in names:
        cells: list[out.Cell] = []
        for cell in laws.values():
            found = cell["lowest"]["less_constant"].get(name)
            if found is None or found["difference"] is None:
                cells += [_NOTHING, ""]
                continue
            text = _percent(found["difference"], found["ci95"], signed=True)
            better = found["difference"] < 0
            meant = out.Coloured(f"{text}*", "good" if better else "bad")
            cells.append(meant if found["significant"] else f"{text} ")
            episodes = len(cell["policies"][name]["episodes"])
            cells.append(f"{found['worse_episodes']} of {episodes}")
        table.add_row(_short(name), *cells)
    table.print()
    out.say(
        "* significant: paired by seed, at 95 % by Holm's method over a law's policies",
        meaning="quiet",
    )


def print_less_maximum(
    rule: str,
    laws: dict[str, Any],
    beside: bool,
) -> None:
    """How much less policies block than maximum parallelisation, as the paper counts its gain."""
    if not all(cell["less_maximum"] for cell in laws.values()):
        return
    title = f"Reduction of blocking against maximum parallelisation (% of that), {rule}"
    table = out.Table(
        "policy", *(out.number(f"law {law}") for law in laws), title=title
    )

    def shown(share: float | None) -> str:
        return (
            _NOTHING
            if share is None
            else f"{100 * share:.1f}".replace("-", "−")
        )

    for name in policies_in(laws):
        if name != "maximum":
            found = [cell["less_maximum"].get(name) for cell in laws.values()]
            table.add_row(_short(name), *map(shown, found))
    if beside:
        table.end_section()
        for name, rates in paper.PAC_ML.items():
            cells: list[out.Cell] = []
            for law in laws:
                mine = rates.get(law)
                most = paper.BLOCKING["maximum"].get(law)
                both = mine is not None and most is not None
                share = (
                    1 - mine.blocking_rate / most.blocking_rate
                    if mine and most
                    else None
                )
                cells.append(
                    out.Coloured(f"({shown(share)})", "quiet")
                    if both
                    else _NOTHING
                )
            table.add_row(name, *cells)
    table.print()
    if beside:
        out.say(
            f"The paper: up to {100 * paper.LESS_MAXIMUM:.1f} %",
            meaning="quiet",
        )


def _short(name: str) -> str:
    """A policy's file without its folders: a narrow table has no room for them."""
    return name.rpartition("/")[2]


def _percent(
    mean: float | None,
    half_width: float | None,
    signed: bool = False,
) -> str:
    """``21.63 ±0.41``; without the interval where one seed gives none."""
    if mean is None:
        return _NOTHING
    shown = (
        f"{100 * mean:+.2f}".replace("-", "−")
        if signed
        else f"{100 * mean:.2f}"
    )
    return shown + ("" if half_width is None else f" ±{100 * half_width:.2f}")


def _published(rate: paper.Published | None) -> out.Cell:
    return (
        ""
        if rate is None
        else out.Coloured(f"({100 * rate.blocking_rate:.2f})", "quiet")
    )

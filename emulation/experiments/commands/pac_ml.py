"""The options and tables of PAC-ML's episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from patchlight.console import rendering as out
from patchlight.console.options import Command, profiles_option
from patchlight.emulation.experiments import paper
from patchlight.emulation.experiments.pac_ml import CONSTANTS, policies_in

_NOTHING = "–"


def episode_options(command: Command) -> Command:
    """Give a command what PAC-ML's episodes may be other than in the paper, and how they run."""
    whole = click.IntRange(min=0)
    options = (
        click.option(
            "--first-seed",
            type=whole,
            default=0,
            help="Seeds count from this one: with another, on unseen episodes.",
        ),
        profiles_option,
        click.option(
            "--law-instance",
            type=whole,
            metavar="N",
            help="The same laws B, C and D in all episodes, those made with seed N.  [default: new "
            "ones in each, as the paper's simulator makes them]",
        ),
        click.option(
            "--arrivals",
            metavar="HOW:SECONDS",
            help="When jobs come, like poisson:800.  [default: fixed:1000; with --milliseconds "
            "fixed:1]",
        ),
        click.option(
            "--mix",
            metavar="MODEL=SHARE,…",
            help="Which models, like vgg16=3,gnmt=1.  [default: all alike]",
        ),
        click.option(
            "--milliseconds",
            is_flag=True,
            help="The profiles' times are milliseconds, not seconds as in the paper's simulator: "
            "all takes a thousandth of the time, and communication then matters.",
        ),
        click.option(
            "--processes",
            type=click.IntRange(1, 1_000_000),
            help="At a time; results are the same for any number.  [default: one for each core]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def print_first_look(cells: Mapping[Any, Mapping[str, Any]]) -> None:
    """The blocking rates of the first seed, while the others still run."""
    columns = [number(f"{rule.removeprefix('ramp-')} {law}") for rule, law in cells]
    table = out.Table("policy", *columns, title="First look: blocking rate (%) with one seed")
    for name in policies_in({cell: {"policies": found} for cell, found in cells.items()}):
        there = [found.get(name) for found in cells.values()]
        rates = [_percent(each.blocking_rate, None) if each else _NOTHING for each in there]
        table.add_row(_short(name), *rates)
    table.print()


def print_tables(result: dict[str, Any]) -> None:
    """For each placement rule its tables; last the lowest rates beside the published ones."""
    for rule, laws in result["rules"].items():
        # Figures of another placement rule do not compare.
        beside = result["comparable"] and rule == paper.RULE
        _print_blocking(result, rule, laws, beside)
        _print_less_constant(rule, laws)
        print_less_maximum(rule, laws, beside)
    if rows := rows_beside_published(result):
        title = f"Lowest rates beside PAC-ML's best checkpoint, {paper.RULE}"
        table = out.Table("", "published", "measured", "policy", "difference", title=title)
        for row in rows:
            table.add_row(*row)
        table.print()


def rows_beside_published(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """For each law the published rate, the lowest one here, its policy, and the difference."""
    rows: list[tuple[str, ...]] = []
    for law, cell in result["rules"].get(paper.RULE, {}).items() if result["comparable"] else ():
        if law not in paper.PAC_ML[paper.BEST]:
            continue
        published = paper.PAC_ML[paper.BEST][law].blocking_rate
        measured, policy = cell["lowest"]["blocking_rate"], cell["lowest"]["policy"]
        points = f"{100 * (measured - published):+.2f} points".replace("-", "−")
        rates = (f"{100 * each:.2f} %" for each in (published, measured))
        rows.append((f"law {law}", *rates, policy, points))
    return rows


def _print_blocking(result: dict[str, Any], rule: str, laws: dict[str, Any], beside: bool) -> None:
    instance = result["law_instance"]
    drawn = "new laws in each" if instance is None else f"instance {instance} of the laws"
    count = len(result["seeds"])
    seeds = "seed" if count == 1 else "seeds"
    other = "".join(f", {what} {text}" for what, text in result["varied"].items())
    title = f"Blocking rate (%), {rule}, {count} {seeds}, {drawn}{other}, mean ± 95 %"
    names = policies_in(laws)
    faults = dict.fromkeys(names, 0)
    for cell in laws.values():
        for name, figures in cell["policies"].items():
            faults[name] += figures["faults"]["count"]
    columns = []
    for law in laws:
        columns.append(number(f"law {law}"))
        columns += [number("publ.", wide=True)] * beside
    counted = [number("faults")] if any(faults.values()) else []
    table = out.Table("policy", *columns, *counted, title=title)

    def row(name: str, cells: list[out.Cell], faulty: str = "") -> None:
        table.add_row(name, *cells, *([out.Coloured(faulty, "bad")] if counted else []))

    for name in names:
        cells: list[out.Cell] = []
        for law, cell in laws.items():
            cells.append(_blocked(cell, name))
            cells += [_published(paper.BLOCKING.get(name, {}).get(law))] * beside
        row(_short(name), cells, str(faults[name] or ""))
    table.end_section()
    if beside:
        for name, rates in paper.PAC_ML.items():
            row(name, [t for law in laws for t in (_published(rates.get(law)), "")])
    for name, key in (
        ("bound in hindsight", "hindsight_bound"),
        ("bound without foresight", "online_bound"),
    ):
        bounds = [cell[key] for cell in laws.values()]
        shown = [_percent(bound["blocking_rate"], bound["ci95"]) for bound in bounds]
        row(name, [t for text in shown for t in (text, *([""] * beside))])
    table.print()
    out.say(
        "* below every other policy, on the same seeds (paired 95 % intervals)", meaning="quiet"
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
    """Paired differences of all but constants, where there is one to compare with."""
    names = [name for name in policies_in(laws) if name not in CONSTANTS]
    if not names or any(cell["lowest"]["constant"] is None for cell in laws.values()):
        return
    columns = []
    for law, cell in laws.items():
        columns.append(number(f"{law}: less {cell['lowest']['constant'].rpartition('-')[2]}"))
        columns.append(number("above in", wide=True))
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
        "* significant: the 95 % interval, paired seed by seed, leaves zero out", meaning="quiet"
    )


def print_less_maximum(rule: str, laws: dict[str, Any], beside: bool) -> None:
    """What policies block less than maximum parallelisation, as the paper counts its gain."""
    if not all(cell["less_maximum"] for cell in laws.values()):
        return
    title = f"Blocks less than maximum parallelisation (% of that), {rule}"
    table = out.Table("policy", *(number(f"law {law}") for law in laws), title=title)

    def shown(share: float | None) -> str:
        return _NOTHING if share is None else f"{100 * share:.1f}".replace("-", "−")

    for name in policies_in(laws):
        if name != "maximum":
            found = [cell["less_maximum"].get(name) for cell in laws.values()]
            table.add_row(_short(name), *map(shown, found))
    if beside:
        table.end_section()
        for name, rates in paper.PAC_ML.items():
            cells: list[out.Cell] = []
            for law in laws:
                mine, most = rates.get(law), paper.BLOCKING["maximum"].get(law)
                both = mine is not None and most is not None
                share = 1 - mine.blocking_rate / most.blocking_rate if mine and most else None
                cells.append(out.Coloured(f"({shown(share)})", "quiet") if both else _NOTHING)
            table.add_row(name, *cells)
    table.print()
    if beside:
        out.say(f"The paper: up to {100 * paper.LESS_MAXIMUM:.1f} %", meaning="quiet")


def number(heading: str, *, wide: bool = False) -> out.Column:
    """A column of numbers."""
    return out.Column(heading, wide=wide, whole=True, right=True)


def _short(name: str) -> str:
    """A policy's file without its folders: a narrow table has no room for them."""
    return name.rpartition("/")[2]


def _percent(mean: float | None, half_width: float | None, signed: bool = False) -> str:
    """``21.63 ±0.41``; without the interval where one seed gives none."""
    if mean is None:
        return _NOTHING
    shown = f"{100 * mean:+.2f}".replace("-", "−") if signed else f"{100 * mean:.2f}"
    return shown + ("" if half_width is None else f" ±{100 * half_width:.2f}")


def _published(rate: paper.Published | None) -> out.Cell:
    return "" if rate is None else out.Coloured(f"({100 * rate.blocking_rate:.2f})", "quiet")

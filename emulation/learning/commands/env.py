"""``patchlight env``: shows and checks Gymnasium environments, and compares rules in them."""

from typing import TYPE_CHECKING, Any

import click

from patchlight.console.commands import kept
from patchlight.console.rendering import (
    Coloured,
    Column,
    Table,
    listing_options,
    number,
    print_json,
    say,
)
from patchlight.testbed.errors import (
    BadInput,
    PatchlightError,
    require_packages,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchlight.emulation.learning.envs.registry import EnvironmentRecipe
    from patchlight.emulation.learning.envs.testing import Compared


@click.group()
def env() -> None:
    """Show and check learning environments.

    NAME is one that 'env show' lists, or your own FILE.py:CLASS.
    """
    require_packages("a learning environment", "gymnasium")


def _list(as_json: bool) -> None:
    found = kept(
        "environments", ["patchlight.emulation", "patchlight.controller"], _all
    )
    if as_json:
        print_json(found)
        return
    table = Table(
        Column("environment", whole=True),
        "the decision",
        number("actions"),
        Column("heuristics", wide=True),
        Column("trained", wide=True),
        Column("simulator", wide=True),
    )
    for each in found:
        rules = ", ".join(each["heuristics"])
        models = ", ".join(each["trained"])
        table.add_row(
            each["name"].removeprefix("patchlight/"),
            each["decision"],
            str(each["action_count"]),
            rules,
            models or "–",
            each["simulator"],
        )
    table.print()


@env.command()
@click.argument("name", required=False)
@listing_options
def show(name: str | None, as_json: bool) -> None:
    """List environments, or show one.

    With --wide the list also has the heuristics and trained models.
    """
    if name is None:
        _list(as_json)
        return
    from patchlight.emulation.learning.envs.registry import find_environment

    recipe = find_environment(name)
    found = _described(recipe)
    if as_json:
        print_json(found)
        return
    say(
        f"{found['name']}: {found['decision'] or 'an environment of your own'}\n"
    )
    say(f"{found['about']}\n")
    table = Table(Column("observed", whole=True), "space")
    for key, space in found["observation_space"].items():
        table.add_row(key, space)
    table.print()
    say(f"\nactions: {found['action_space']}")
    for what in ("heuristics", "trained"):
        if found[what]:
            say(f"{what}: {', '.join(found[what])}")
    if found["figure"]:
        say(
            f"compared by: {found['figure']} of the last step's info; lower is better"
        )
    if recipe.registered is not None:
        say(
            "\nimport gymnasium, patchlight.emulation.learning.envs\n"
            f'env = gymnasium.make("{recipe.name}")\n'
            "seen, info = env.reset(seed=0)\n"
            "mask = env.unwrapped.action_masks()\n"
            "seen, reward, over, cut, info = env.step(mask.argmax())"
        )


@env.command(context_settings={"show_default": True})
@click.argument(
    "names",
    nargs=-1,
    metavar="[NAME]...",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Check all built-in environments.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=4000,
    help="Measure the speed over this many steps.",
)
@click.option(
    "--episodes",
    type=click.IntRange(min=2),
    help="Also compare heuristics and trained models on N episodes.",
)
@click.option(
    "--first-seed",
    type=click.IntRange(min=0),
    default=0,
    help="Seed of the first of these episodes; the next count up.",
)
@listing_options
def check(
    names: tuple[str, ...],
    every: bool,
    steps: int,
    episodes: int | None,
    first_seed: int,
    as_json: bool,
) -> None:
    """Check environments, their masks and seeds.

    Gymnasium's checker is part of it.

    The speed is in steps per second of CPU time, of several environments on one core. With
    --episodes all rules play the same episodes; random takes any allowed action. Lower is better.
    """
    from patchlight.emulation.learning.envs.testing import (
        baselines_of,
        check_environment,
    )

    if first_seed and episodes is None:
        raise BadInput("--first-seed is of episodes: expected --episodes too")
    recipes = _chosen(names, every)
    seeds = range(first_seed, first_seed + (episodes or 0))
    found = [check_environment(recipe, steps) for recipe in recipes]
    bad = [each.name for each in found if not each.is_good]
    compared = [
        (recipe.name, *baselines_of(recipe, seeds))
        for recipe in recipes
        if episodes is not None and recipe.name not in bad
    ]
    if as_json:
        rules = {
            name: {
                "figure": figure,
                "rules": [each._asdict() for each in played],
            }
            for name, figure, played in compared
        }
        print_json(
            [
                {
                    "name": each.name,
                    "good": each.is_good,
                    "checks": {
                        check.what: check.problem or "ok"
                        for check in each.checks
                    },
                    "num_envs": each.num_envs,
                    "steps_per_cpu_s": round(each.steps_per_s),
                    **rules.get(each.name, {}),
                }
                for each in found
            ]
        )
    else:
        table = Table(
            Column("environment", whole=True),
            "checked",
            number("at once"),
            number("steps/CPU s"),
        )
        for each in found:
            problems = "; ".join(
                f"{c.what}: {c.problem}" for c in each.checks if c.problem
            )
            rate = f"{each.steps_per_s:,.0f}" if each.steps_per_s else "–"
            good = (
                Coloured(problems, "bad")
                if problems
                else Coloured("good", "good")
            )
            table.add_row(
                each.name,
                good,
                str(each.num_envs),
                rate,
            )
        table.print()
        for name, figure, played in compared:
            _print_compared(f"{name}, {episodes} episodes", figure, played)
    if bad:
        raise PatchlightError(
            f"{len(bad)} of {len(found)} environments have problems: {', '.join(bad)}",
            hint="the lines above say what was expected",
        )


def _print_compared(
    title: str,
    figure: str,
    played: "Sequence[Compared]",
) -> None:
    first = played[min(1, len(played) - 1)].rule
    table = Table(
        Column("rule", whole=True),
        "kind",
        number(f"{figure} ± 95 %"),
        number(f"more than {first}"),
        title=title,
    )
    for each in played:
        more = (
            _number(each.more, each.more_half_width)
            if each.rule != first
            else "–"
        )
        table.add_row(
            each.rule,
            each.sort,
            _number(each.mean, each.half_width),
            more,
        )
    table.print()


def _number(mean: float, half_width: float) -> str:
    """A mean and half its interval, seconds whole and shares with four places."""
    places = 0 if abs(mean) >= 100 or half_width >= 10 else 4
    return f"{mean:,.{places}f} ± {half_width:,.{places}f}"


def _chosen(names: tuple[str, ...], every: bool) -> "list[EnvironmentRecipe]":
    """The environments that are named; ``BadInput`` for none, or names beside ``--all``."""
    from patchlight.emulation.learning.envs.registry import (
        ENVIRONMENTS,
        find_environment,
    )

    if every == bool(names):
        raise BadInput(
            "--all and names exclude each other"
            if every
            else "no environment given",
            hint="name some of 'patchlight env show', or FILE.py:CLASS, or use --all",
        )
    return [
        find_environment(n)
        for n in names or [each.name for each in ENVIRONMENTS]
    ]


def _all() -> list[dict[str, Any]]:
    from patchlight.emulation.learning.envs.registry import (
        ENVIRONMENTS,
        find_environment,
    )

    return [_described(find_environment(each.name)) for each in ENVIRONMENTS]


def _described(recipe: "EnvironmentRecipe") -> dict[str, Any]:
    """An environment as JSON."""
    import inspect

    from gymnasium import spaces

    from patchlight.emulation.learning.envs.registry import (
        heuristics_of,
        trained_of,
    )

    made = recipe.make()
    seen = made.observation_space
    ours = recipe.registered
    parts = (
        seen.spaces if isinstance(seen, spaces.Dict) else {"observation": seen}
    )
    return {
        "name": recipe.name,
        "decision": ours.decision if ours else "",
        "simulator": ours.simulator if ours else "",
        "about": inspect.cleandoc(type(made).__doc__ or ""),
        "action_space": str(made.action_space),
        "action_count": int(getattr(made.action_space, "n", 0)),
        "observation_space": {
            key: _space(space) for key, space in parts.items()
        },
        "heuristics": list(heuristics_of(made)),
        "trained": list(trained_of(made)),
        "figure": getattr(made, "figure", ""),
    }


def _space(space: Any) -> str:
    """A space in few words: what it holds, and its shape."""
    shape = " × ".join(map(str, space.shape)) if space.shape else "1"
    low = getattr(space, "low", None)
    high = getattr(space, "high", None)
    if low is None or high is None:
        return str(space)
    return f"{shape} numbers, {low.min():g} to {high.max():g}"

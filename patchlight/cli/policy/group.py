"""``patchlight policy``: the policies there are, what they are, and how well they do."""

import inspect
from dataclasses import asdict
from typing import Any

import click

from patchlight.cli.policy.fit import fit_of, say_fit
from patchlight.cli.policy.live import COMMANDS
from patchlight.console.commands import LazyGroup
from patchlight.console.completion import complete_policy
from patchlight.console.connection import offline_lab
from patchlight.console.lab_option import lab_option
from patchlight.console.rendering import Column, Table, listing_options, print_json, say
from patchlight.testbed.errors import PatchlightError

_KINDS = ("partition", "placement", "order", "topology", "elasticity")


@click.group(cls=LazyGroup, prefix="policy ", context_settings={"show_default": True})
def policy() -> None:
    """List, show, test, train and export policies.

    A policy is written NAME, FILE.py:CLASS or FILE.onnx, with parameters after colons, like
    constant:8 or random:seed=3. See docs/policies.md.
    """


for _command in COMMANDS:
    policy.add_command(_command)


@policy.command("list")
@click.option("--kind", type=click.Choice(_KINDS), help="Only this kind.")
@listing_options
def list_policies(kind: Any, as_json: bool) -> None:
    """The policies that have a name."""
    from patchlight.controller.policies.registry import DEFAULTS, policies

    rows = []
    for found in policies(kind):
        row: dict[str, Any] = {"kind": found.kind, "name": found.name, "origin": found.origin}
        default = DEFAULTS[found.kind] == found.name
        row |= {"about": "", "parameters": [], "default": default}
        try:
            row["about"] = found.about.replace("``", "")
            row["parameters"] = found.parameters_in_words
        except PatchlightError as error:
            # One that is broken must not hide the others.
            row["about"] = f"cannot be loaded: {error.message}"
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    more = (Column("parameters", wide=True), Column("where from", wide=True))
    table = Table("kind", Column("name", whole=True), "what it does", *more)
    last = None
    for row in rows:
        if last not in (None, row["kind"]):
            table.end_section()
        last = row["kind"]
        name = f"{row['name']} (default)" if row["default"] else row["name"]
        table.add_row(row["kind"], name, row["about"], ", ".join(row["parameters"]), row["origin"])
    table.print()


@policy.command()
@click.argument("name", metavar="POLICY", shell_complete=complete_policy)
@lab_option("Also what a learned policy of any lab would miss in this one.", "lab")
@listing_options
def show(name: str, lab: str | None, as_json: bool) -> None:
    """What POLICY does, its parameters, and where it comes from; of a learned one its card.

    With --lab also which inputs of a learned policy the lab would not have, and what of the lab is
    outside the range that it was tested in.
    """
    from patchlight.controller.policies.contract import METHODS
    from patchlight.controller.policies.registry import find

    found = find(name)
    card = getattr(found.factory, "card", None)
    as_data = asdict(card) if card is not None else None
    source = _source(found.factory)
    answer = {
        "kind": found.kind,
        "name": found.name,
        "origin": found.origin,
        "method": METHODS[found.kind],
        "parameters": found.parameters_in_words,
        "given": dict(found.given),
        "documentation": found.documentation,
        "source": source,
        "card": as_data,
    }
    said_by = click.get_current_context().get_parameter_source("lab")
    is_meant = card is not None or said_by is not click.core.ParameterSource.ENVIRONMENT
    fit = fit_of(found, offline_lab(lab)) if lab is not None and is_meant else None
    if fit is not None:
        answer["lab"] = fit
    if as_json:
        print_json(answer)
        return
    say(f"{found.name}: {found.kind} policy, {found.origin}")
    for what, shown in (("parameters", ", ".join(found.parameters_in_words)), ("source", source)):
        if shown:
            say(f"{what}: {shown}")
    if found.documentation:
        say("\n" + found.documentation)
    if as_data is not None:
        say("\ncard:")
        print_json(as_data)
    if fit is not None:
        say_fit(fit)


def _source(factory: Any) -> str | None:
    """File and line of its class."""
    named = factory if inspect.isclass(factory) else type(factory)
    try:
        return f"{inspect.getsourcefile(named)}:{inspect.getsourcelines(named)[1]}"
    except (OSError, TypeError):
        return None

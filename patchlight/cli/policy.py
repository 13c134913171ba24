"""``patchlight policy``: the policies that exist, that decide in a lab, and their decisions."""

import inspect
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from patchlight.console import connection, options
from patchlight.console import rendering as out
from patchlight.console.commands import kept
from patchlight.console.shared import LazyGroup, lab_option
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.rules import ABILITIES, KINDS

if TYPE_CHECKING:
    from patchlight.client.client import ControllerClient
    from patchlight.controller.policies.registry import PolicyRecipe

# Policies that come with Patchlight, though they are installed like those of others.
_INSTALLED = "installed, patchlight."


@click.group(
    cls=LazyGroup,
    prefix="policy ",
    context_settings={"show_default": True},
)
def policy() -> None:
    """Show, choose, compare and train policies.

    Write a policy as NAME, FILE.py:CLASS or FILE.onnx, with parameters after colons:
    constant:8, random:seed=3. See docs/policies.md.
    """


@policy.command()
@options.kinds_of_policies
@click.option(
    "--interleave",
    type=click.Choice(["on", "off"]),
    help="Let jobs that share links send in turns where that helps.",
)
@out.listing_options
@connection.with_client
def use(
    client: "ControllerClient",
    as_json: bool,
    **chosen: str | None,
) -> None:
    """Change the policies of a running lab; without options print the present ones.

    They decide from the next job on; running jobs are unaffected. The choice overrides the lab
    file until the controller starts with other options. A policy in a file is a program: only root
    or the user who runs the controller may choose it.
    """
    wanted: dict[str, Any] = {
        kind: options.is_on(said)
        if kind in ABILITIES
        else options.absolute(said)
        for kind, said in chosen.items()
        if said
    }
    words = client.use_policies(wanted) if wanted else client.policies()
    table = out.Table("kind", out.Column("policy", whole=True))
    for kind, name in words.items():
        is_on = "on" if name else "off"
        table.add_row(
            kind,
            is_on
            if kind in ABILITIES
            else str(name or "(not set; use --workers)"),
        )
    out.print_answer(words, table, as_json=as_json)


@policy.command()
@click.argument(
    "job",
    metavar="JOB",
    shell_complete=connection.complete_job,
)
@click.option(
    "--with",
    "other",
    metavar="POLICY",
    help="Ask this policy instead, for decisions of its kind.",
)
@out.listing_options
@connection.controller_options
def replay(
    job: str,
    other: str | None,
    as_json: bool,
    lab_name: str | None,
    address: str | None,
) -> None:
    """Repeat the decisions about JOB with their original inputs. Changes nothing. The table
    compares each answer with the decision at that time. An error in a policy is shown with file
    and line, an invalid answer with the reason.
    """
    from patchlight.cli.job.listing import find_job
    from patchlight.controller.jobs.cluster_view import arguments, plain
    from patchlight.controller.policies import guard
    from patchlight.controller.policies.contract import METHODS, PolicyKind
    from patchlight.controller.policies.registry import find, load_policy

    with connection.connect(lab_name, address) as client:
        job_id = find_job(client, job)
        own_graph = client.job(job_id).spec.graph
        decisions = client.decisions(job_id)
    lab = connection.lab_meant(lab_name, address)
    kind = None if other is None else find(other).kind
    rows: list[dict[str, Any]] = []
    for decision in decisions:
        if decision.kind not in METHODS or kind not in (
            None,
            decision.kind,
        ):
            continue
        of_kind = cast("PolicyKind", decision.kind)
        policy: Any = load_policy(other or decision.policy, of_kind)
        saw = arguments(
            of_kind,
            decision.saw,
            lab,
            own_graph,
        )
        again = None
        fault = None
        try:
            again = plain(guard.answer_of(policy, of_kind, *saw))
        except guard.PolicyFailed as failed:
            fault = str(failed)
        except Exception as error:
            fault = f"it raised {guard.raised(error)}"
        rows.append(
            {
                "kind": decision.kind,
                "policy": decision.policy,
                "decided": decision.answer,
                "asked": other or decision.policy,
                "answer": again,
                "fault": fault,
                "same": fault is None and again == decision.answer,
            }
        )
    table = out.Table(
        "kind",
        "policy",
        "decided",
        "asked again",
        out.Column("same", whole=True),
    )
    for row in rows:
        same = (
            out.Coloured("yes", "good")
            if row["same"]
            else out.Coloured("no", "caution")
        )
        answer = row["fault"] or _words(row["answer"])
        table.add_row(
            row["kind"],
            row["asked"],
            _words(row["decided"]),
            answer,
            same,
        )
    out.print_answer(rows, table, as_json=as_json)


def _words(answer: Any) -> str:
    if isinstance(answer, dict):
        parts = (
            f"{name}: {', '.join(each) if isinstance(each, list) else each}"
            for name, each in answer.items()
        )
        return "; ".join(parts) or "as it is"
    if isinstance(answer, list):
        return "GPUs " + ", ".join(map(str, answer))
    return "wait" if answer is None else str(answer)


def _list(kind: Any, as_json: bool) -> None:
    from patchlight.controller.policies.registry import DEFAULTS, policies

    ours = ("built in", "learned, shipped", _INSTALLED)
    everything = policies()
    modules = [
        p.origin.split()[1]
        for p in everything
        if p.origin.startswith(_INSTALLED)
    ]
    packages = {
        "patchlight.controller.policies",
        *(m.rpartition(".")[0] for m in modules),
    }
    known = kept(
        "policies",
        sorted(packages),
        lambda: {
            f"{p.kind}.{p.name}": _row(p)
            for p in everything
            if p.origin.startswith(ours)
        },
    )
    rows = []
    for found in everything if kind is None else policies(kind):
        row = known.get(f"{found.kind}.{found.name}") or _row(found)
        rows.append({**row, "default": DEFAULTS[found.kind] == found.name})
    more = (
        out.Column("parameters", wide=True),
        out.Column("origin", wide=True),
    )
    table = out.Table(
        "kind",
        out.Column("name", whole=True),
        "description",
        *more,
    )
    last = None
    for row in rows:
        if last not in (None, row["kind"]):
            table.end_section()
        last = row["kind"]
        name = f"{row['name']} (default)" if row["default"] else row["name"]
        table.add_row(
            row["kind"],
            name,
            row["about"],
            ", ".join(row["parameters"]),
            row["origin"],
        )
    out.print_answer(rows, table, as_json=as_json)


@policy.command()
@click.argument(
    "name",
    metavar="[POLICY]",
    required=False,
    shell_complete=options.complete_policy,
)
@lab_option(
    "Also show which inputs of a learned policy this lab lacks.", "lab"
)
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    help="List only this kind.",
)
@out.listing_options
def show(
    name: str | None,
    lab: str | None,
    kind: Any,
    as_json: bool,
) -> None:
    """Show what POLICY does, its parameters and origin; without POLICY list all.

    For a learned policy this includes its card and, with --lab, the inputs that the lab lacks and
    the values outside the tested range.
    """
    if name is None:
        _list(kind, as_json)
        return
    if kind is not None:
        raise click.UsageError("--kind filters the list: leave POLICY out")
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
    is_meant = (
        card is not None
        or said_by is not click.core.ParameterSource.ENVIRONMENT
    )
    fit = (
        fit_of(found, connection.offline_lab(lab))
        if lab is not None and is_meant
        else None
    )
    if fit is not None:
        answer["lab"] = fit
    if as_json:
        out.print_json(answer)
        return
    out.say(f"{found.name}: {found.kind} policy, {found.origin}")
    for what, shown in (
        ("parameters", ", ".join(found.parameters_in_words)),
        ("source", source),
    ):
        if shown:
            out.say(f"{what}: {shown}")
    if found.documentation:
        out.say("\n" + found.documentation)
    if as_data is not None:
        out.say("\ncard:")
        out.print_json(as_data)
    if fit is not None:
        say_fit(fit)


def _row(found: "PolicyRecipe") -> dict[str, Any]:
    row = {"kind": found.kind, "name": found.name, "origin": found.origin}
    try:
        said = {
            "about": found.about.replace("``", ""),
            "parameters": found.parameters_in_words,
        }
    except PatchlightError as error:
        # One that is broken must not hide the others.
        said = {
            "about": f"cannot be loaded: {error.message}",
            "parameters": [],
        }
    return {**row, **said}


def _source(factory: Any) -> str | None:
    """File and line of its class."""
    named = factory if inspect.isclass(factory) else type(factory)
    try:
        return f"{inspect.getsourcefile(named)}:{inspect.getsourcelines(named)[1]}"
    except (OSError, TypeError):
        return None


def fit_of(found: "PolicyRecipe", lab_name: str) -> dict[str, Any]:
    """How a learned policy fits a lab; ``BadInput`` if it does not, or is not learned."""
    from patchlight.controller.jobs.cluster_view import WiredLab
    from patchlight.controller.policies.files import (
        FROM_JOBS,
        missing_inputs,
        outside_range,
    )
    from patchlight.testbed.labfile.reader import load_lab

    policy: Any = found.factory
    if getattr(policy, "card", None) is None:
        raise BadInput(
            f"{found.name} is not a learned policy, and --lab needs one",
            hint="leave --lab out",
        )
    lab = load_lab(lab_name)
    policy.check_fits(WiredLab(lab, lab.initial_maps).shape, lab)
    return {
        "lab": lab.name,
        "missing": missing_inputs(lab),
        "outside": outside_range(
            getattr(policy.card, "tested_range", {}), lab
        ),
        "from_jobs": list(FROM_JOBS),
    }


def say_fit(fit: dict[str, Any]) -> None:
    """The same for people."""
    out.say(f"\nin lab {fit['lab']}:")
    for what, lines in (
        ("missing", fit["missing"]),
        ("not tested", fit["outside"]),
    ):
        for line in lines or ["nothing"]:
            out.say(f"  {what}: {line}")
    out.say("\nwhat it observes of jobs there:")
    for line in fit["from_jobs"]:
        out.say(f"  {line}")

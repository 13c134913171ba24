"""Options with which a lab is given its policies."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from patchlight.cli.completion import complete_policy
from patchlight.cli.numbers import ANY

Command = TypeVar("Command", bound=Callable[..., Any])

_POLICIES = {
    "--placement": "Which GPUs a job gets.  [default: consolidated]",
    "--order": "Which waiting job is next.  [default: fifo]",
    "--topology": "Which circuits are lit for a job that does not say.  [default: keep]",
    "--partition": "How many workers a job gets that leaves it open.  [default: it may not]",
    "--elasticity": "Which of these get other numbers while they run.  [default: rigid]",
}
_OPTIONS = (
    *(
        click.option(name, metavar="POLICY", shell_complete=complete_policy, help=text)
        for name, text in _POLICIES.items()
    ),
    click.option(
        "--policy-deadline",
        type=ANY,
        metavar="SECONDS",
        help="After this the default decides in a policy's place.  [default: 1]",
    ),
)


def kinds_of_policies(command: Command) -> Command:
    """Adds the options of the five kinds alone, without saying what holds by default."""
    for name, text in reversed(_POLICIES.items()):
        about = text.partition("  [")[0]
        option = click.option(name, metavar="POLICY", shell_complete=complete_policy, help=about)
        command = option(command)
    return command


def policy_options(command: Command) -> Command:
    """Adds an option for each kind, and ``--policy-deadline``.

    A POLICY is a name, FILE.py:CLASS or FILE.onnx.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_policies(options: dict[str, Any], lab_name: str | None = None) -> Any:
    """Takes these options out, and gives what they say as a ``PolicyChoice``; files by full path.

    ``BadInput`` if one of the policies cannot be had, or does not fit the lab of that name.
    """
    from patchlight.controller.jobs.cluster_view import WiredLab
    from patchlight.controller.jobs.policy_set import PolicyChoice, PolicySet
    from patchlight.controller.policies.contract import KINDS
    from patchlight.testbed.labfile.reader import load_lab

    given: dict[str, Any] = {kind: absolute(said) for kind in KINDS if (said := options.pop(kind))}
    deadline_s = options.pop("policy_deadline")
    if deadline_s is not None:
        given["deadline_s"] = deadline_s
    choice = PolicyChoice(**given)
    if given:  # Here, where somebody reads what is wrong.
        lab = load_lab(lab_name) if lab_name else None
        shape = WiredLab(lab, lab.initial_maps).shape if lab else None
        PolicySet(choice, lambda fault: None, shape, lab).close()
    return choice


def absolute(policy: str) -> str:
    """A policy file by its full path: the controller may run in another folder."""
    from pathlib import Path

    from patchlight.controller.policies.contract import KINDS

    kind, colon, named = policy.partition(":")
    if kind not in KINDS:
        kind, colon, named = "", "", policy
    head, dot, rest = named.partition(".py")
    if not dot:
        head, dot, rest = named.partition(".onnx")
    return f"{kind}{colon}{Path(head + dot).absolute()}{rest}" if dot else policy

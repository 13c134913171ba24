"""Options with which a lab is given its policies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from patchlight.console.completion import complete_policy
from patchlight.console.numbers import ANY
from patchlight.testbed.lab.queueing import KINDS, PolicyChoice, full_path

Command = TypeVar("Command", bound=Callable[..., Any])

_POLICIES = {
    "--placement": "Which GPUs a job gets.  [default: consolidated]",
    "--order": "Which waiting job is next.  [default: fifo]",
    "--topology": "Which circuits are lit for a job that does not say.  [default: keep]",
    "--partition": "How many workers a job gets that leaves it open.  [default: it may not]",
    "--elasticity": "Which of these get other numbers while they run.  [default: rigid]",
}
_DEFRAGMENT = click.option(
    "--defragment",
    type=click.Choice(["on", "off"]),
    help="Whether light moves under running jobs by itself, where that gains more than it costs.",
)
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
    _DEFRAGMENT,
)


def kinds_of_policies(command: Command) -> Command:
    """Adds the options of the kinds and ``--defragment``, without saying what holds by default."""
    command = _DEFRAGMENT(command)
    for name, text in reversed(_POLICIES.items()):
        about = text.partition("  [")[0]
        option = click.option(name, metavar="POLICY", shell_complete=complete_policy, help=about)
        command = option(command)
    return command


def policy_options(command: Command) -> Command:
    """Adds an option for each kind, ``--policy-deadline`` and ``--defragment``.

    What is not given is as the lab file has it.

    A POLICY is a name, FILE.py:CLASS or FILE.onnx.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_policies(options: dict[str, Any], lab_name: str | None = None) -> PolicyChoice:
    """Takes these options out, and gives what they say; files by full path.

    ``BadInput`` if a policy that they or the file of the lab of that name want cannot be had, or
    does not fit that lab.
    """
    from patchlight.controller.jobs.cluster_view import WiredLab
    from patchlight.controller.jobs.policy_set import PolicySet
    from patchlight.testbed.labfile.reader import load_lab

    given: dict[str, Any] = {kind: absolute(said) for kind in KINDS if (said := options.pop(kind))}
    choice = PolicyChoice(
        deadline_s=options.pop("policy_deadline"),
        defragment=is_on(options.pop("defragment")),
        **given,
    )
    lab = load_lab(lab_name) if lab_name else None
    wanted = choice.over(lab.policies) if lab else choice
    if wanted.said:  # Here, where somebody reads what is wrong.
        shape = WiredLab(lab, lab.initial_maps).shape if lab else None
        PolicySet(wanted, lambda fault: None, shape, lab).close()
    return choice


def is_on(said: str | None) -> bool | None:
    """What ``--defragment`` says."""
    return None if said is None else said == "on"


def absolute(policy: str) -> str:
    """A policy file by its full path: the controller may run in another folder."""
    return full_path(policy, Path.cwd())

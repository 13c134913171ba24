"""Option types for numbers with units, and the options that choose policies."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from patchlight.console.shared import SharedOption
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import KINDS, PolicyChoice, full_path

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_policy(
    context: click.Context,
    parameter: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Policies by name, of one kind if the parameter is called like it; and files."""
    from patchlight.controller.policies.registry import policies

    before, comma, last = incomplete.rpartition(",")
    kind: Any = parameter.name if parameter.name in KINDS else None
    names = dict.fromkeys(found.name for found in policies(kind))
    items = [
        CompletionItem(before + comma + n) for n in names if n.startswith(last)
    ]
    return [*items, CompletionItem(incomplete, type="file")]


class FiniteFloat(click.FloatRange):
    """A range without ``nan`` and infinities, which Python reads as numbers."""

    name = "number"

    def _describe_range(self) -> str:
        return (
            ""
            if self.min is None and self.max is None
            else super()._describe_range()
        )

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        """The number; a usage error for anything else."""
        if isinstance(value, str) and not value.isascii():
            self.fail(f"{value!r} is not a number", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class Quantity(click.ParamType[Any]):
    """A number with its unit."""

    name = "quantity"

    def __init__(self, parse: Callable[[object], float]) -> None:
        self._parse = parse

    def convert(
        self,
        value: Any,
        param: Any,
        ctx: Any,
    ) -> Any:
        """The value that ``parse`` returns; a usage error where it refuses the text."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except BadInput as error:
            self.fail(error.message, param, ctx)


AT_LEAST_0 = FiniteFloat(min=0)
ANY = FiniteFloat()


POLICIES = {
    "--placement": ("Choose the GPUs of a job.", "consolidated"),
    "--order": ("Choose the next waiting job.", "fifo"),
    "--topology": (
        "Choose circuits for a job without a topology.",
        "keep",
    ),
    "--partition": (
        "Choose the number of workers for a job without one.",
        "none; those jobs are refused",
    ),
    "--elasticity": ("Resize running jobs.", "rigid"),
}


def kinds_of_policies(
    command: Command,
    *others: Any,
    defaults: bool = False,
) -> Command:
    """Add the options of the kinds, these ``others`` and ``--defragment``.

    With ``defaults`` they are those that ``patchlight policy use --help`` describes.
    """
    declare = partial(
        click.option,
        cls=SharedOption,
        of="policy use" if defaults else None,
    )
    options = [
        declare(
            name,
            metavar="POLICY",
            shell_complete=complete_policy,
            help=f"{about}  [default policy: {default}]",
        )
        for name, (about, default) in POLICIES.items()
    ]
    defragment = declare(
        "--defragment",
        type=click.Choice(["on", "off"]),
        help="Move circuits of running jobs where the gain exceeds the cost.",
    )
    for option in reversed((*options, *others, defragment)):
        command = option(command)
    return command


def policy_options(command: Command) -> Command:
    """Add an option for each kind, ``--policy-deadline`` and ``--defragment``.

    The lab file has the values of those that are not given. A POLICY is a name, FILE.py:CLASS or
    FILE.onnx.
    """
    deadline = click.option(
        "--policy-deadline",
        type=ANY,
        metavar="SECONDS",
        help="Time limit, after which the default policy decides.  [default: 1]",
    )
    return kinds_of_policies(command, deadline, defaults=True)


def chosen_policies(
    options: dict[str, Any], lab_name: str | None = None
) -> PolicyChoice:
    """Take these options out, and return the choice; files by full path.

    ``BadInput`` if a policy that they or the file of the lab of that name want cannot be had, or
    does not fit that lab.
    """
    from patchlight.controller.jobs.cluster_view import WiredLab
    from patchlight.controller.jobs.policy_set import PolicySet
    from patchlight.testbed.labfile.reader import load_lab

    given: dict[str, Any] = {
        kind: absolute(said) for kind in KINDS if (said := options.pop(kind))
    }
    choice = PolicyChoice(
        deadline_s=options.pop("policy_deadline"),
        defragment=is_on(options.pop("defragment")),
        **given,
    )
    lab = load_lab(lab_name) if lab_name else None
    wanted = choice.over(lab.policies) if lab else choice
    if wanted.said:  # Here, where a user reads the error.
        shape = WiredLab(lab, lab.initial_maps).shape if lab else None
        PolicySet(
            wanted,
            lambda fault: None,
            shape,
            lab,
        ).close()
    return choice


def is_on(said: str | None) -> bool | None:
    """The value of ``--defragment``."""
    return None if said is None else said == "on"


def absolute(policy: str) -> str:
    """A policy file by its full path: the controller may run in another folder."""
    return full_path(policy, Path.cwd())

"""Options that many commands share: numbers with units, results, and scheduling."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from patchlight.console.shared import SharedOption
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import KINDS, Allowance, Discipline, PolicyChoice, full_path
from patchlight.testbed.units import parse_time

Command = TypeVar("Command", bound=Callable[..., Any])


def complete_policy(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Policies by name, of one kind if the parameter is called like it; and files."""
    from patchlight.controller.policies.registry import policies

    before, comma, last = incomplete.rpartition(",")
    kind: Any = parameter.name if parameter.name in KINDS else None
    names = dict.fromkeys(found.name for found in policies(kind))
    items = [CompletionItem(before + comma + n) for n in names if n.startswith(last)]
    return [*items, CompletionItem(incomplete, type="file")]


class FiniteFloat(click.FloatRange):
    """A range without ``nan`` and infinities, which Python reads as numbers."""

    name = "number"

    def _describe_range(self) -> str:
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
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

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that ``parse`` returns; a usage error where it refuses the text."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except BadInput as error:
            self.fail(error.message, param, ctx)


AT_LEAST_0 = FiniteFloat(min=0)
ANY = FiniteFloat()


def results_option(
    default: str, what: str = "Where the results go."
) -> Callable[[Command], Command]:
    """``--output`` for a folder; ``default`` describes the folder that is used without it."""
    return click.option(
        "--output",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"{what}  [default: {default}]",
    )


profiles_option: Callable[[Command], Command] = click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    help="Folder with PipeDream's five profiles, or a clone of PipeDream.  [default: the cache, "
    "else the built-in computed ones]",
)

# -- how a queue works, and what users may have ------------------------------------------------

# The option, and the field of an allowance that it fills.
_FIELDS = {"quota": "gpus", "most_jobs": "jobs", "gpu_hours": "gpu_hours", "share": "share"}
# The option, and the field of a discipline that it fills.
_SETTINGS = {
    "preempt": "preempt",
    "quantum": "quantum_s",
    "backfill": "backfill",
    "backfill_depth": "backfill_depth",
    "quota_window": "quota_window_s",
    "half_life": "half_life_s",
}
_TIME: dict[str, Any] = {"type": Quantity(parse_time), "metavar": "TIME"}


def _of_user(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """``("8", "alice=4")`` → ``{"": 8, "alice": 4}``."""
    field = _FIELDS[str(parameter.name)]
    whole = field in ("gpus", "jobs")
    found: dict[str, float] = {}
    for text in values:
        user, _, amount = text.rpartition("=")
        if field == "share" and not user:
            raise click.BadParameter(f"{text!r}: expected USER=N", context, parameter)
        if user in found:
            raise click.BadParameter(f"{user or 'each user'} is there twice", context, parameter)
        try:
            found[user] = int(amount) if whole else float(amount)
        except ValueError as error:
            what = "a whole number" if whole else "a number"
            raise click.BadParameter(
                f"{text!r}: expected {what}, or USER={what}", context, parameter
            ) from error
    return found


def _amounts(name: str, about: str, metavar: str = "[USER=]N") -> Any:
    about = f"{about}; may be repeated."
    return click.option(name, multiple=True, metavar=metavar, callback=_of_user, help=about)


def _settled(name: str, about: str, usual: str, **how: Any) -> Any:
    """An option that goes before the lab file; ``usual`` holds where neither has a value."""
    return click.option(
        name, default=None, help=f"{about}  [default: as in --lab, else {usual}]", **how
    )


QUEUE_OPTIONS = (
    _settled("--preempt/--no-preempt", "Waiting jobs take the GPUs of those behind them.", "no"),
    _settled("--quantum", "Seconds that a job runs before it is preempted.", "360", type=float),
    _settled("--backfill/--no-backfill", "Jobs behind may start if they hold up nobody.", "no"),
    _settled(
        "--backfill-depth", "How many of them are looked at.", "100", type=click.IntRange(min=1)
    ),
    _amounts("--quota", "Most GPUs of each user, or of one, at once"),
    _amounts("--most-jobs", "Most jobs of each user, or of one, that wait or run"),
    _amounts("--gpu-hours", "GPU-hours of each user, or of one, in a window"),
    _settled("--quota-window", "How long GPU-hours are for.", "7d", **_TIME),
    _amounts("--share", "With --order fair-share: a user's share, else 1", "USER=N"),
    _settled(
        "--half-life",
        "With --order fair-share: after how long what users had counts half as much.",
        "7d",
        **_TIME,
    ),
)


def taken_discipline(given: dict[str, Any], usual: Discipline) -> dict[str, Any]:
    """Take these options out of ``given``: a ``Discipline``'s fields, ``usual`` where not given."""
    found = {field.name: getattr(usual, field.name) for field in fields(Discipline)}
    for option, name in _SETTINGS.items():
        if (value := given.pop(option)) is not None:
            found[name] = value
    users = {"": usual.each_user, **dict(usual.users)}
    for option, field in _FIELDS.items():
        for user, amount in given.pop(option).items():
            users[user] = replace(users.get(user, Allowance()), **{field: amount})
    found["each_user"] = users.pop("")
    found["users"] = tuple(sorted(users.items()))
    return found


# -- which policies decide ---------------------------------------------------------------------

_POLICIES = {
    "--placement": ("Which GPUs a job gets.", "consolidated"),
    "--order": ("Which waiting job is next.", "fifo"),
    "--topology": ("Which circuits a job gets that names no topology.", "keep"),
    "--partition": (
        "How many workers a job gets that names no number.",
        "none, such jobs are refused",
    ),
    "--elasticity": ("Which running jobs get more or fewer workers.", "rigid"),
}


def kinds_of_policies(command: Command, *others: Any, defaults: bool = False) -> Command:
    """Add the options of the kinds, these ``others`` and ``--defragment``.

    With ``defaults`` they are those that ``patchlight policy use --help`` describes.
    """
    declare = partial(click.option, cls=SharedOption, of="policy use" if defaults else None)
    options = [
        declare(
            name,
            metavar="POLICY",
            shell_complete=complete_policy,
            help=f"{about}  [default policy: {default}]",
        )
        for name, (about, default) in _POLICIES.items()
    ]
    defragment = declare(
        "--defragment",
        type=click.Choice(["on", "off"]),
        help="Move circuits of running jobs where that gains more than it costs.",
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
        help="Time after which the default policy decides instead.  [default: 1]",
    )
    return kinds_of_policies(command, deadline, defaults=True)


def chosen_policies(options: dict[str, Any], lab_name: str | None = None) -> PolicyChoice:
    """Take these options out, and return the choice; files by full path.

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
    if wanted.said:  # Here, where a user reads the error.
        shape = WiredLab(lab, lab.initial_maps).shape if lab else None
        PolicySet(wanted, lambda fault: None, shape, lab).close()
    return choice


def is_on(said: str | None) -> bool | None:
    """The value of ``--defragment``."""
    return None if said is None else said == "on"


def absolute(policy: str) -> str:
    """A policy file by its full path: the controller may run in another folder."""
    return full_path(policy, Path.cwd())


def left_to_the_lab(policies: PolicyChoice) -> tuple[dict[str, Any], dict[str, Any]]:
    """The policies and settings that a lab's file has and no option of this command does."""
    from patchlight.controller.policies.cheapest import LOOKED_AT_EVERY_S

    def is_said(option: str) -> bool:
        source = click.get_current_context().get_parameter_source(option)
        return source is not ParameterSource.DEFAULT

    named: dict[str, Any] = {
        kind: (name,)
        for kind in KINDS
        if not is_said(kind) and (name := getattr(policies, kind)) is not None
    }
    settings: dict[str, Any] = {}
    if policies.minimum_gain_s is not None:
        settings["minimum_gain_s"] = policies.minimum_gain_s
    if policies.defragment and not is_said("defragment_s"):
        every_s = policies.defragment_every_s
        settings["defragment_s"] = LOOKED_AT_EVERY_S if every_s is None else every_s
    return named, settings

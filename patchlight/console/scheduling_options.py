"""Options of scheduling: how a queue works, what users may have, and which policies decide.

What is not given is as a lab's file has it, if there is a lab.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from patchlight.console.connection import complete_policy
from patchlight.console.options import ANY, Quantity
from patchlight.testbed.lab.queueing import KINDS, Allowance, Discipline, PolicyChoice, full_path
from patchlight.testbed.units import parse_time

Command = TypeVar("Command", bound=Callable[..., Any])

# The option, and the field of an allowance that it fills.
_FIELDS = {"quota": "gpus", "most_jobs": "jobs", "gpu_hours": "gpu_hours", "share": "share"}
_WHOLE = ("gpus", "jobs")


def _of_user(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """``("8", "alice=4")`` → ``{"": 8, "alice": 4}``."""
    field = _FIELDS[str(parameter.name)]
    found: dict[str, float] = {}
    for text in values:
        user, _, amount = text.rpartition("=")
        if field == "share" and not user:
            raise click.BadParameter(f"{text!r}: expected USER=N", context, parameter)
        if user in found:
            raise click.BadParameter(f"{user or 'each user'} is there twice", context, parameter)
        try:
            found[user] = int(amount) if field in _WHOLE else float(amount)
        except ValueError as error:
            what = "a whole number" if field in _WHOLE else "a number"
            raise click.BadParameter(
                f"{text!r}: expected {what}, or USER={what}", context, parameter
            ) from error
    return found


_COUNT = click.IntRange(min=1)
_TIME: dict[str, Any] = {"type": Quantity(parse_time), "metavar": "TIME"}


def _amounts(name: str, about: str, metavar: str = "[USER=]N") -> Any:
    about = f"{about}; may be repeated."
    return click.option(name, multiple=True, metavar=metavar, callback=_of_user, help=about)


def _settled(name: str, about: str, usual: str, **how: Any) -> Any:
    """An option that goes before what the lab's file says; ``usual`` is for where neither does."""
    return click.option(
        name, default=None, help=f"{about}  [default: as in --lab, else {usual}]", **how
    )


# The option, and the field of a discipline that it fills.
_SETTINGS = {
    "preempt": "preempt",
    "quantum": "quantum_s",
    "backfill": "backfill",
    "backfill_depth": "backfill_depth",
    "quota_window": "quota_window_s",
    "half_life": "half_life_s",
}

QUEUE_OPTIONS = (
    _settled("--preempt/--no-preempt", "Waiting jobs take the GPUs of those behind them.", "no"),
    _settled("--quantum", "Seconds that a job runs before it is preempted.", "360", type=float),
    _settled("--backfill/--no-backfill", "Jobs behind may start if they hold up nobody.", "no"),
    _settled("--backfill-depth", "How many of them are looked at.", "100", type=_COUNT),
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
    """A ``Discipline``'s fields as these options say, else as ``usual``; taken out of ``given``."""
    found = {field.name: getattr(usual, field.name) for field in fields(Discipline)}
    for option, name in _SETTINGS.items():
        if (value := given.pop(option)) is not None:
            found[name] = value
    amounts = {field: given.pop(option) for option, field in _FIELDS.items()}
    users = {"": usual.each_user, **dict(usual.users)}
    for field, by_user in amounts.items():
        for user, amount in by_user.items():
            users[user] = replace(users.get(user, Allowance()), **{field: amount})
    found["each_user"] = users.pop("")
    found["users"] = tuple(sorted(users.items()))
    return found


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


def left_to_the_lab(policies: PolicyChoice) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a lab's file says of policies and no option of the present command does.

    First the policies, as options give them; then settings of a simulation, by field.
    """
    from patchlight.controller.policies.cheapest import LOOKED_AT_EVERY_S

    context = click.get_current_context()

    def is_said(option: str) -> bool:
        return context.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT

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

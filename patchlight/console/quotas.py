"""Options of a queue: backfilling, preemption, what users may have, and how time counts.

What is not said is as a lab's file has it, if there is a lab.
"""

from dataclasses import fields, replace
from typing import Any

import click

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.queueing import Allowance, Discipline
from patchlight.testbed.units import parse_time

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


def _time(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_time(text)
    except BadInput as error:
        raise click.BadParameter(error.message, context, parameter) from error


_COUNT = click.IntRange(min=1)
_TIME: dict[str, Any] = {"type": str, "callback": _time, "metavar": "TIME"}


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

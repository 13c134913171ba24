"""Options that say what users may have of a queue: ``--quota alice=8``, and how time counts."""

from typing import Any

import click

from patchlight.testbed.errors import BadInput
from patchlight.testbed.queueing import Allowance
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


def _time(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        return parse_time(text)
    except BadInput as error:
        raise click.BadParameter(error.message, context, parameter) from error


def _amounts(name: str, about: str, metavar: str = "[USER=]N") -> Any:
    about = f"{about}; may be repeated."
    return click.option(name, multiple=True, metavar=metavar, callback=_of_user, help=about)


QUOTA_OPTIONS = (
    _amounts("--quota", "Most GPUs of each user, or of one, at once"),
    _amounts("--most-jobs", "Most jobs of each user, or of one, that wait or run"),
    _amounts("--gpu-hours", "GPU-hours of each user, or of one, in a window"),
    click.option(
        "--quota-window", default="7d", callback=_time, help="How long GPU-hours are for."
    ),
    _amounts("--share", "With --order fair-share: a user's share, else 1", "USER=N"),
    click.option(
        "--half-life",
        default="7d",
        callback=_time,
        help="With --order fair-share: after how long what users had counts half as much.",
    ),
)


def taken_allowances(given: dict[str, Any]) -> dict[str, Any]:
    """What of a ``Discipline`` these options say; they are taken out of ``given``."""
    said = {field: given.pop(option) for option, field in _FIELDS.items()}
    named: dict[str, dict[str, Any]] = {user: {} for amounts in said.values() for user in amounts}
    for field, amounts in said.items():
        for user, amount in amounts.items():
            named[user][field] = amount
    each = Allowance(**named.pop("", {}))
    return {
        "each_user": each,
        "users": tuple((user, Allowance(**fields)) for user, fields in sorted(named.items())),
        "quota_window_s": given.pop("quota_window"),
        "half_life_s": given.pop("half_life"),
    }

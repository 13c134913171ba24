"""The keys of a lab file under ``queue:``, each with its type: how its jobs wait."""

from typing import Any

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import (
    FieldType,
    ListOf,
    Number,
    Text,
    Whole,
    YesNo,
    plain,
    quantity,
)
from patchlight.testbed.io.groups import Fields, Group, Key, required
from patchlight.testbed.lab.queueing import BOUNDS, Allowance, Discipline

_TIMES = {
    "quantum": "quantum_s",
    "half_life": "half_life_s",
    "quota_window": "quota_window_s",
    "keep_for": "keep_for_s",
}


def queue_group(user_name: Text) -> Group:
    """The group of keys; ``user_name`` is what a user may be called."""
    allowed = (
        Key("share", _number("share", "a share"), "how much counts as fair", default="1"),
        Key("gpus", _whole("gpus", "a number of GPUs"), "the most at once", default="no limit"),
        Key("jobs", _whole("jobs", "a number of jobs"), "the most that wait or run", "no limit"),
        Key(
            "gpu_hours",
            _number("gpu_hours", "GPU-hours"),
            "after so many in a window none of the user's jobs starts until the next",
            default="no limit",
        ),
    )
    return Group(
        "how jobs wait",
        Key(
            "backfill",
            YesNo("whether jobs behind may start"),
            "whether jobs behind the next one start where they do not put it off",
            default="false",
        ),
        Key(
            "backfill_depth",
            _whole("backfill_depth", "a number of jobs"),
            "how many of them are looked at",
            default="100",
        ),
        Key(
            "preempt",
            YesNo("whether jobs are preempted"),
            "whether the next job takes the GPUs of running ones that come after it",
            default="false",
        ),
        Key("quantum", _time("quantum_s", "6min"), "how long a job runs before that", "6min"),
        Key(
            "half_life",
            _time("half_life_s", "7d"),
            "with order fair-share, after how long what users had counts half as much",
            default="7d",
        ),
        Key("quota_window", _time("quota_window_s", "7d"), "how long GPU-hours are for", "7d"),
        Key(
            "each_user",
            Group("what each user may have", *allowed),
            "what each user may have",
            example="{gpus: 4, jobs: 100}",
        ),
        Key(
            "users",
            ListOf(
                Group("a user", required("name", user_name, "the login", "alice"), *allowed),
                "users",
            ),
            "what some users may have instead",
            default="none",
            example="[{name: alice, share: 2, gpus: 6}]",
        ),
        Key(
            "keep_jobs",
            _whole("keep_jobs", "a number of jobs"),
            "so many jobs that have ended are remembered, the latest",
            default="10000",
        ),
        Key(
            "keep_for",
            _time("keep_for_s", "90d"),
            "how long a job that has ended, and whatever else happened, is remembered",
            default="no limit",
        ),
    )


def discipline_of(fields: Fields) -> Discipline:
    """What a file without mistakes says under ``queue:``."""
    said = {_TIMES.get(key, key): value for key, value in plain(fields).items()}
    if "each_user" in said:
        said["each_user"] = Allowance(**said["each_user"])
    if "users" in said:
        said["users"] = tuple((user.pop("name"), Allowance(**user)) for user in said["users"])
    return Discipline(**said)


def queue_document(queue: Discipline) -> dict[str, Any]:
    """The keys that say the same in a file; those that have their default are left out."""
    usual = Discipline()
    written: dict[str, Any] = {}
    for key in ("backfill", "backfill_depth", "preempt", "keep_jobs", *_TIMES):
        field = _TIMES.get(key, key)
        value = getattr(queue, field)
        if value != getattr(usual, field):
            written[key] = units.write_time(value) if key in _TIMES else value
    if queue.each_user != usual.each_user:
        written["each_user"] = _allowed(queue.each_user)
    if queue.users:
        written["users"] = [{"name": name, **_allowed(each)} for name, each in queue.users]
    return written


def _allowed(allowance: Allowance) -> dict[str, Any]:
    said = {key: getattr(allowance, key) for key in ("share", "gpus", "jobs", "gpu_hours")}
    return {key: value for key, value in said.items() if value is not None}


def _whole(name: str, what: str) -> FieldType:
    bounds = BOUNDS[name]
    return Whole(what, int(bounds.least), int(bounds.most))


def _number(name: str, what: str) -> FieldType:
    bounds = BOUNDS[name]
    return Number(what, above=bounds.least, highest=bounds.most)


def _time(name: str, example: str) -> FieldType:
    least, most, _ = BOUNDS[name]

    def take(text: str) -> float:
        time_s = units.parse_time(text)
        if least <= time_s <= most:
            return time_s
        raise BadInput(f"{text!r} is out of bounds: expected {least:g} s to {most:g} s")

    return quantity(take, units.TIME, "a time", example)

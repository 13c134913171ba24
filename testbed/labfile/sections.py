"""Defines the keys of a lab file for access, the queue, policies, and limits of workers."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar

from pydantic.fields import FieldInfo

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io.keys import (
    Keys,
    Text,
    YesNo,
    choice,
    key,
    listing,
    needed,
    number,
    printable,
    quantity,
    whole,
)
from patchlight.testbed.lab import rules
from patchlight.testbed.labfile.values import UserName

_ROLE_NAME = choice("a role", str(rules.Role.NOBODY), *rules.ROLES)
_Role = Annotated[
    rules.Role,
    replace(
        _ROLE_NAME,
        take=lambda text: rules.Role.named(str(_ROLE_NAME.take(text))),
    ),
]


class AccessKeys(Keys, title="roles"):
    """The roles of the users of the controller's machine."""

    makes = rules.Access

    group: UserName = key("the group of the lab's members")
    members: _Role = key("the role of its members")
    others: _Role = key("the role of the machine's other users")


def _whole(name: str, what: str) -> FieldInfo:
    bounds = rules.BOUNDS[name]
    return whole(what, int(bounds.least), int(bounds.most))


def _number(name: str, what: str) -> FieldInfo:
    bounds = rules.BOUNDS[name]
    return number(
        what,
        gt=bounds.least,
        le=bounds.most,
    )


def _time_of(name: str, example: str) -> Text:
    least, most, _ = rules.BOUNDS[name]

    def take(text: str) -> float:
        time_s = units.parse_time(text)
        if least <= time_s <= most:
            return time_s
        raise BadInput(
            f"{text!r} is out of bounds: expected {least:g} s to {most:g} s"
        )

    return quantity(
        take,
        units.TIME,
        "a time",
        example,
    )


Poll = Annotated[float, _time_of("poll_s", "1s")]


class AllowanceKeys(Keys, title="the limits of each user"):
    """What each user may have."""

    makes: ClassVar[Callable[..., Any]] = rules.Allowance

    share: Annotated[float, _number("share", "a share")] = key(
        "weight under the order policy fair-share", "1"
    )
    gpus: Annotated[int, _whole("gpus", "a number of GPUs")] = key(
        "the most GPUs at once", "no limit"
    )
    jobs: Annotated[int, _whole("jobs", "a number of jobs")] = key(
        "the most jobs that wait or run", "no limit"
    )
    gpu_hours: Annotated[float, _number("gpu_hours", "GPU-hours")] = key(
        "the most in a quota window", "no limit"
    )


class _Named(Keys):
    name: UserName = needed("the login", "alice")


def _user_limits(name: str, **allowed: Any) -> tuple[str, rules.Allowance]:
    return name, rules.Allowance(**allowed)


class UserKeys(AllowanceKeys, _Named, title="a user"):
    """What a user may have by name."""

    makes = _user_limits
    like = rules.Allowance

    @staticmethod
    def said(value: Any) -> dict[str, Any]:
        """The login and the limits."""
        return {"name": value[0], **asdict(value[1])}


class QueueKeys(Keys, title="how jobs wait"):
    """The queue's rules."""

    makes = rules.Discipline
    block = True

    backfill: YesNo = key(
        "whether later jobs may start if that does not delay the next one"
    )
    backfill_depth: Annotated[int, _whole("backfill_depth", "a number")] = key(
        "the number of jobs that are considered"
    )
    preempt: YesNo = key(
        "whether the next job takes GPUs of jobs that come after it"
    )
    quantum_s: Annotated[float, _time_of("quantum_s", "6min")] = key(
        "the time that a job runs before that", "6min"
    )
    half_life_s: Annotated[float, _time_of("half_life_s", "7d")] = key(
        "fair-share: half-life of past usage", "7d"
    )
    quota_window_s: Annotated[float, _time_of("quota_window_s", "7d")] = key(
        "the window of GPU-hours", "7d"
    )
    each_user: AllowanceKeys = key(
        "the limits of each user", example="{gpus: 4, jobs: 100}"
    )
    users: Annotated[tuple[UserKeys, ...], listing("users")] = key(
        "the limits of single users, by name",
        "none",
        "[{name: alice, share: 2, gpus: 6}]",
    )
    keep_jobs: Annotated[int, _whole("keep_jobs", "a number of jobs")] = key(
        "the number of ended jobs that are kept"
    )
    keep_for_s: Annotated[float, _time_of("keep_for_s", "90d")] = key(
        "the time that history is kept", "no limit"
    )


def _time(field: str, example: str) -> Text:
    def take(text: str) -> float:
        said: dict[str, Any] = {field: units.parse_time(text)}
        rules.PolicyChoice(**said)  # refuses values out of bounds
        return float(said[field])

    return quantity(
        take,
        units.TIME,
        "a time",
        example,
    )


_Policy = Annotated[
    str,
    Text(
        "a policy",
        printable(
            1000,
            "is not a policy: expected a name, FILE.py:CLASS or FILE.onnx",
        ),
        {"minLength": 1, "maxLength": 1000},
        example="regroup",
    ),
]


def _policy(kind: str) -> Any:
    return key(f"the {kind} policy: a name, FILE.py:CLASS or FILE.onnx")


class PoliciesKeys(Keys, title="the policies of the lab"):
    """Which policies decide, and how often."""

    makes = rules.PolicyChoice
    block = True

    partition: _Policy = _policy("partition")
    placement: _Policy = _policy("placement")
    order: _Policy = _policy("order")
    topology: _Policy = _policy("topology")
    elasticity: _Policy = _policy("elasticity")
    deadline_s: Annotated[float, _time("deadline_s", "1s")] = key(
        "time limit, after which the default policy decides", "1s"
    )
    defragment: YesNo = key(
        "change circuits of running jobs when that helps", "false"
    )
    defragment_every_s: Annotated[
        float, _time("defragment_every_s", "10min")
    ] = key("its interval", "10min")
    minimum_gain_s: Annotated[float, _time("minimum_gain_s", "10s")] = key(
        "the least total gain", "10s"
    )
    interleave: YesNo = key("jobs that share links send in turns", "false")


_USER = r"^[A-Za-z_][A-Za-z0-9_.-]{0,31}$"


def _folder(text: str) -> str:
    path = text.removesuffix(rules.WRITABLE)
    parts = path.split("/")
    if (
        path.startswith("/")
        and path.strip("/")
        and path.isprintable()
        and ".." not in parts
    ):
        return text
    example = f"'/srv/data', or '/srv/data{rules.WRITABLE}' to write there"
    raise BadInput(
        f"{short(text)!r} is not a folder of the servers: expected one like {example}"
    )


def _user(text: str) -> str:
    if re.match(_USER, text):
        return text
    raise BadInput(
        f"{short(text)!r} is not a user: expected dynamic, root or another name"
    )


def _memory(text: str) -> int:
    size = units.parse_size(text)
    if 16 * 2**20 <= size <= 2**44:
        return size
    raise BadInput(
        f"{short(text)!r} is out of bounds: expected 16MiB to 16TiB"
    )


_Folder = Annotated[
    str,
    Text(
        "a folder",
        _folder,
        {"pattern": "^/"},
        example="/srv/data",
    ),
]
_Pattern = Annotated[
    str,
    Text(
        "a pattern of images",
        printable(
            255, "is not an image pattern: expected one like 'pytorch/*'"
        ),
        {"minLength": 1},
        example="pytorch/*",
    ),
]


class WorkersKeys(Keys, title="limits of jobs' workers"):
    """What workers may use."""

    makes = rules.WorkerPolicy
    block = True

    images: Annotated[tuple[_Pattern, ...], listing("patterns")] = key(
        "allowed container images", "any", "[pytorch/*]"
    )
    mounts: Annotated[tuple[_Folder, ...], listing("folders")] = key(
        f"the servers' folders that workers may read; with {rules.WRITABLE} they may also write "
        f"there, as checkpoints require",
        "none",
        '[/srv/data, "/srv/checkpoints:rw"]',
    )
    memory_bytes: Annotated[
        int,
        quantity(
            _memory,
            units.SIZE,
            "a size of memory",
            "64GB",
        ),
    ] = key("the memory limit of one worker", "no limit")
    cpus: Annotated[
        float,
        number(
            "a number of CPUs",
            ge=0.01,
            le=4096,
        ),
    ] = key("the limit of a worker", "no limit", "16")
    processes: Annotated[int, whole("a number of processes", 16, 2**22)] = key(
        "the most processes and threads of a worker", "1024", "4096"
    )
    user: Annotated[
        str,
        Text(
            "a user of the servers",
            _user,
            {"pattern": _USER},
            example="trainer",
        ),
    ] = key(
        "the user that workers run as: a user of the servers, or dynamic: a separate one for "
        "each person who submits jobs"
    )

"""Defines the keys of a lab file for access, the queue, policies, and limits of workers."""

import re
from dataclasses import asdict, replace
from typing import Any

from patchlight.testbed import units
from patchlight.testbed.errors import BadInput, short
from patchlight.testbed.io.fields import (
    Group,
    Key,
    ListOf,
    Text,
    Whole,
    choice,
    required,
)
from patchlight.testbed.io.forms import Number, YesNo, printable, quantity
from patchlight.testbed.lab import rules
from patchlight.testbed.labfile.values import USER_NAME

_ROLE_NAME = choice("a role", str(rules.Role.NOBODY), *rules.ROLES)
_ROLE = replace(
    _ROLE_NAME, take=lambda text: rules.Role.named(str(_ROLE_NAME.take(text)))
)
ACCESS = Group(
    "who may do what",
    Key("group", USER_NAME, "the group of the lab's members"),
    Key("members", _ROLE, "the role of its members"),
    Key("others", _ROLE, "the role of the machine's other users"),
    model=rules.Access,
)


def _whole(name: str, what: str) -> Whole:
    bounds = rules.BOUNDS[name]
    return Whole(what, int(bounds.least), int(bounds.most))


def _number(name: str, what: str) -> Number:
    bounds = rules.BOUNDS[name]
    return Number(
        what,
        above=bounds.least,
        highest=bounds.most,
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


POLL = _time_of("poll_s", "1s")
_ALLOWED = (
    Key(
        "share",
        _number("share", "a share"),
        "weight under the order policy fair-share",
        "1",
    ),
    Key(
        "gpus",
        _whole("gpus", "a number of GPUs"),
        "the most at once",
        default="no limit",
    ),
    Key(
        "jobs",
        _whole("jobs", "a number of jobs"),
        "the most that wait or run",
        "no limit",
    ),
    Key(
        "gpu_hours",
        _number("gpu_hours", "GPU-hours"),
        "the most in a quota window",
        "no limit",
    ),
)
QUEUE = Group(
    "how jobs wait",
    Key(
        "backfill",
        YesNo(),
        "whether later jobs may start if they do not delay the next one",
    ),
    Key(
        "backfill_depth",
        _whole("backfill_depth", "a number"),
        "how many jobs are considered",
    ),
    Key(
        "preempt",
        YesNo(),
        "whether the next job takes GPUs of jobs that come after it",
    ),
    Key(
        "quantum",
        _time_of("quantum_s", "6min"),
        "how long a job runs before that",
        "6min",
    ),
    Key(
        "half_life",
        _time_of("half_life_s", "7d"),
        "fair-share: half-life of past usage",
        "7d",
    ),
    Key(
        "quota_window",
        _time_of("quota_window_s", "7d"),
        "the window of GPU-hours",
        "7d",
    ),
    Key(
        "each_user",
        Group("the limits of each user", *_ALLOWED, model=rules.Allowance),
        "the limits of each user",
        example="{gpus: 4, jobs: 100}",
    ),
    Key(
        "users",
        ListOf(
            Group(
                "a user",
                required(
                    "name",
                    USER_NAME,
                    "the login",
                    "alice",
                ),
                *_ALLOWED,
                make=lambda name, **allowed: (
                    name,
                    rules.Allowance(**allowed),
                ),
                said=lambda user: {"name": user[0], **asdict(user[1])},
            ),
            "users",
        ),
        "the limits of named users instead",
        default="none",
        example="[{name: alice, share: 2, gpus: 6}]",
    ),
    Key(
        "keep_jobs",
        _whole("keep_jobs", "a number of jobs"),
        "how many ended jobs are kept",
    ),
    Key(
        "keep_for",
        _time_of("keep_for_s", "90d"),
        "how long history is kept",
        "no limit",
    ),
    model=rules.Discipline,
    block=True,
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


_POLICY = printable(
    1000, "is not a policy: expected a name, FILE.py:CLASS or FILE.onnx"
)
POLICY = Text(
    "a policy",
    _POLICY,
    {"minLength": 1, "maxLength": 1000},
    example="regroup",
)
POLICIES = Group(
    "the policies of the lab",
    *(
        Key(
            kind,
            POLICY,
            f"the {kind} policy: a name, FILE.py:CLASS or FILE.onnx",
        )
        for kind in rules.KINDS
    ),
    Key(
        "deadline",
        _time("deadline_s", "1s"),
        "then the default policy decides instead",
        "1s",
    ),
    Key(
        "defragment",
        YesNo(),
        "circuits change under running jobs when that gains",
        "false",
    ),
    Key(
        "defragment_every",
        _time("defragment_every_s", "10min"),
        "its interval",
        "10min",
    ),
    Key(
        "minimum_gain",
        _time("minimum_gain_s", "10s"),
        "the least total gain",
        default="10s",
    ),
    Key(
        "interleave",
        YesNo(),
        "jobs that share links send in turns",
        "false",
    ),
    model=rules.PolicyChoice,
    block=True,
)


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
    example = f"'/srv/data', or '/srv/data{rules.WRITABLE}' to write to"
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


_FOLDER = Text(
    "a folder",
    _folder,
    {"pattern": "^/"},
    example="/srv/data",
)
_IMAGES = printable(
    255, "is not an image pattern: expected one like 'pytorch/*'"
)
_PATTERN = Text(
    "a pattern of images",
    _IMAGES,
    {"minLength": 1},
    example="pytorch/*",
)
WORKERS = Group(
    "limits of jobs' workers",
    Key(
        "images",
        ListOf(_PATTERN, "patterns"),
        "allowed container images",
        "any",
        "[pytorch/*]",
    ),
    Key(
        "mounts",
        ListOf(_FOLDER, "folders"),
        f"the servers' folders that workers may see; with {rules.WRITABLE} also write to, as "
        "checkpoints require",
        default="none",
        example='[/srv/data, "/srv/checkpoints:rw"]',
    ),
    Key(
        "memory",
        quantity(
            _memory,
            units.SIZE,
            "a size of memory",
            "64GB",
        ),
        "the most memory of a server that one worker may use",
        default="no limit",
    ),
    Key(
        "cpus",
        Number("a number of CPUs", 0.01, 4096),
        "the limit of a worker",
        "no limit",
        "16",
    ),
    Key(
        "processes",
        Whole("a number of processes", 16, 2**22),
        "the most processes and threads of a worker",
        default="1024",
        example="4096",
    ),
    Key(
        "user",
        Text(
            "a user of the servers",
            _user,
            {"pattern": _USER},
            example="trainer",
        ),
        "the user that workers run as: a user of the servers, or dynamic, one for each person "
        "who submits jobs",
    ),
    model=rules.WorkerPolicy,
    block=True,
)

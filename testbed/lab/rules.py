"""The rules of a lab: how jobs wait, which policies decide, and who may do what."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from patchlight.testbed.errors import BadInput


class NumberBounds(NamedTuple):
    """The least and the most that a number may be; ``least`` itself may not be with ``open``."""

    least: float
    most: float
    open: bool = False


BOUNDS: Mapping[str, NumberBounds] = {
    "backfill_depth": NumberBounds(1, 100_000),
    "quantum_s": NumberBounds(0.001, 10**12),
    "half_life_s": NumberBounds(1, 10**12),
    "quota_window_s": NumberBounds(1, 10**12),
    "keep_jobs": NumberBounds(0, 10**9),
    "keep_for_s": NumberBounds(1, 10**12),
    "share": NumberBounds(0, 10**6, open=True),
    "gpus": NumberBounds(1, 1_000_000),
    "jobs": NumberBounds(1, 1_000_000),
    "gpu_hours": NumberBounds(0, 10**9, open=True),
}
"""Of each number in a ``Discipline`` and an ``Allowance``."""


class WaitReason(StrEnum):
    """Why a job that waits was not started."""

    NO_GPUS = "no-gpus"
    """Too few GPUs are free that it can run on."""
    NO_PLACE = "no-place"
    """The placement policy finds no place for it, or the partition policy lets it wait."""
    NO_CIRCUIT = "no-circuit"
    """Its GPUs cannot be joined by light."""
    OUT_OF_REACH = "out-of-reach"
    """Hosts that it needs, or a circuit switch on their way, do not answer."""
    BEHIND = "behind"
    """It is not its turn yet."""
    UNREACHABLE = "unreachable"
    """No number of GPUs meets its requirement."""
    QUOTA = "quota"
    """Its user has as much as one user may have."""
    DEPENDENCY = "dependency"
    """Other jobs have to be done first, or one of them failed."""
    HELD = "held"
    """Its user holds it back."""

    @property
    def is_passed(self) -> bool:
        """Whether the jobs behind such a job may start though it comes before them."""
        return self in _PASSED


_PASSED = frozenset(
    {
        WaitReason.OUT_OF_REACH,
        WaitReason.UNREACHABLE,
        WaitReason.QUOTA,
        WaitReason.DEPENDENCY,
        WaitReason.HELD,
    }
)


class Waiting(NamedTuple):
    """Why a job waits, and the same in words.

    ``is_blocked``: others pass it, and it does not start by itself when GPUs become free.
    """

    reason: WaitReason
    words: str = ""
    is_blocked: bool = False


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a user may have; ``None``: as everybody, and without a limit.

    ``share`` is the weight under the order policy *fair-share* (``None``: 1). ``gpus`` is the most
    at once, ``jobs`` the most that wait or run. After ``gpu_hours`` in a window of
    ``quota_window_s``, no job of the user starts until the next window.
    """

    share: float | None = None
    gpus: int | None = None
    jobs: int | None = None
    gpu_hours: float | None = None

    def __post_init__(self) -> None:
        _check_bounds(self)

    @property
    def is_limited(self) -> bool:
        """Whether it is a quota at all, and no share alone."""
        return not (self.gpus is self.jobs is self.gpu_hours is None)


@dataclass(frozen=True, slots=True)
class Discipline:
    """How a queue is run, in the lab and in the simulator.

    Without ``backfill`` the next job in order holds up all behind it. With it, jobs behind may
    start if they will have ended when the first one can start, or leave it enough GPUs (EASY;
    Mu'alem and Feitelson, TPDS 2001); ``backfill_depth`` of them are looked at.

    With ``preempt`` a waiting job takes the GPUs of jobs that are behind it in order and have
    run for ``quantum_s``; it is looked again every ``quantum_s`` while jobs wait.

    What users had counts half as much for *fair-share* after ``half_life_s``. ``each_user`` is
    what every user may have, ``users`` what the named ones may have instead, as pairs.

    A lab remembers the latest ``keep_jobs`` jobs that have ended, and each no longer than
    ``keep_for_s`` (``None``: without an end).
    ``BadInput`` for a value that is out of bounds.
    """

    backfill: bool = False
    backfill_depth: int = 100
    preempt: bool = False
    quantum_s: float = 360.0
    half_life_s: float = 7 * 86400.0
    quota_window_s: float = 7 * 86400.0
    each_user: Allowance = field(default_factory=Allowance)
    users: tuple[tuple[str, Allowance], ...] = ()
    keep_jobs: int = 10_000
    keep_for_s: float | None = None

    def __post_init__(self) -> None:
        _check_bounds(self)
        names = [name for name, _ in self.users]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadInput(f"user {twice[0]} is named twice: expected each user once")

    def allowance(self, user: str) -> Allowance:
        """What a user may have; what is not said of this one is what everybody may have."""
        own = dict(self.users).get(user)
        if own is None:
            return self.each_user
        said = {f.name: v for f in fields(own) if (v := getattr(own, f.name)) is not None}
        return replace(self.each_user, **said)

    @property
    def has_quotas(self) -> bool:
        """Whether what any user may have is limited."""
        return self.each_user.is_limited or any(each.is_limited for _, each in self.users)


def _check_bounds(settings: Allowance | Discipline) -> None:
    for name in (each.name for each in fields(settings)):
        value, bounds = getattr(settings, name), BOUNDS.get(name)
        if value is None or bounds is None:
            continue
        least, most, is_open = bounds
        if not (least < value if is_open else least <= value) or value > most:
            unit = " s" if name.endswith("_s") else ""
            said = f"{'more than' if is_open else 'at least'} {least:,}"
            raise BadInput(
                f"{name} cannot be {value}{unit}: expected {said} and at most {most:,}{unit}"
            )


USUAL_QUEUE = Discipline()
PolicyKind = Literal["partition", "placement", "order", "topology", "elasticity"]
KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """One source's choice of policies; ``None``: not chosen there. ``BadInput`` if out of bounds.

    A policy is a name for ``patchlight.controller.policies.registry.find``, empty for none. One
    without an answer after ``deadline_s`` is skipped. With ``defragment``, circuits change under
    running jobs when a job has ended and every ``defragment_every_s``, where that is predicted to
    gain more than ``minimum_gain_s`` over all jobs.
    """

    placement: str | None = None
    order: str | None = None
    topology: str | None = None
    partition: str | None = None
    elasticity: str | None = None
    deadline_s: float | None = None
    defragment: bool | None = None
    defragment_every_s: float | None = None
    minimum_gain_s: float | None = None

    def __post_init__(self) -> None:
        for name, what in (
            ("deadline_s", "a policy's deadline is"),
            ("defragment_every_s", "light is looked at every"),
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{what} {value} s: expected more than 0 s")
        gain_s = self.minimum_gain_s
        if gain_s is not None and not 0 <= gain_s < math.inf:
            raise BadInput(f"the least gain is {gain_s} s: expected 0 s or more")

    def of(self, kind: PolicyKind) -> str | None:
        """The policy of a kind."""
        return cast(str | None, getattr(self, kind))

    @property
    def said(self) -> dict[str, Any]:
        """What is said here, by field."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def over(self, other: "PolicyChoice") -> "PolicyChoice":
        """What is said here, and what the other says where nothing is."""
        return replace(other, **self.said)

    def beside(self, folder: Path) -> "PolicyChoice":
        """The same; policy files by their full path, from this folder on."""
        named: dict[str, Any] = {
            kind: full_path(name, folder) for kind in KINDS if (name := self.of(kind))
        }
        return replace(self, **named)


NOTHING_SAID = PolicyChoice()


def full_path(policy: str, folder: Path) -> str:
    """A policy file by its full path, from a folder on; any other policy as it is written."""
    kind, colon, named = policy.partition(":")
    if kind not in KINDS:
        kind, colon, named = "", "", policy
    head, dot, rest = named.partition(".py")
    if not dot:
        head, dot, rest = named.partition(".onnx")
    return f"{kind}{colon}{(folder / (head + dot)).absolute()}{rest}" if dot else policy


class Role(IntEnum):
    """What a caller may do, each also what those before it may.

    A ``viewer`` looks. A ``user`` submits jobs, and stops their own. An ``operator`` changes
    circuits and all jobs. An ``admin`` creates tokens, reads the audit log, stops the controller,
    and lets it run their programs as policies.
    """

    NOBODY = 0
    VIEWER = 1
    USER = 2
    OPERATOR = 3
    ADMIN = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def named(cls, name: str) -> "Role":
        """The role of that name in a file or a request."""
        return cls[name.upper()]


ROLES = tuple(str(role) for role in Role if role)
"""The names of the roles that somebody can be given."""


@dataclass(frozen=True)
class Access:
    """What users of the controller's machine may do, as the kernel says who they are.

    Root, the user who runs the controller, and who did so by ``sudo`` are admins; the others are
    ``members`` if they are in the ``group``, else ``others``.
    """

    group: str = "patchlight"
    members: Role = Role.OPERATOR
    others: Role = Role.VIEWER


_JUMP = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?")


class JumpHost(NamedTuple):
    """A host that connections go through; ``user`` is ``None`` where it is the server's."""

    host: str
    port: int
    user: str | None


@dataclass(frozen=True, slots=True)
class SshAccess:
    """Where a server's ``sshd`` answers, whom to log in as, and which host key it has.

    ``address`` ``None``: the agent's host. ``user``, ``identity`` (a private key file) ``None``:
    the SSH client decides. ``host_key`` is a fingerprint (``SHA256:…``), ``None``: ``known_hosts``
    has it; ``legacy`` allows old algorithms. ``jump`` is ``[user@]host[:port]`` to go through.
    """

    address: str | None = None
    port: int = 22
    user: str | None = None
    identity: str | None = None
    host_key: str | None = None
    jump: str | None = None
    jump_host_key: str | None = None
    legacy: bool = False

    @property
    def jump_host(self) -> JumpHost | None:
        """The host to go through, if there is one."""
        match = _JUMP.fullmatch(self.jump or "")
        if match is None:
            return None
        return JumpHost(match["v6"] or match["host"], int(match["port"] or 22), match["user"])


DYNAMIC = "dynamic"
"""As a worker's user: one for each person who submits jobs."""
WRITABLE = ":rw"
"""What a folder ends in that workers may write to."""


@dataclass(frozen=True, slots=True)
class WorkerPolicy:
    """What a worker may have of its server; ``None``: no limit of the lab.

    Its image fits one of the patterns ``images`` (``pytorch/*``). It mounts folders below
    ``mounts``, and writes only below those that end in ``:rw``, checkpoints too. ``user`` is whom
    it runs as: a user of the servers, or ``dynamic``, one for each person who submits jobs.
    """

    images: tuple[str, ...] | None = None
    mounts: tuple[str, ...] = ()
    memory_bytes: int | None = None
    cpus: float | None = None
    user: str = DYNAMIC

    def allows_image(self, image: str) -> bool:
        """Whether a container may be of it."""
        return self.images is None or any(fnmatchcase(image, each) for each in self.images)

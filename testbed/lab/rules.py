"""Models the rules of a lab: queueing, policies, and access."""

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
    """The bounds of a number; with ``open``, ``least`` itself is excluded."""

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
    "poll_s": NumberBounds(0.1, 60),
    "share": NumberBounds(0, 10**6, open=True),
    "gpus": NumberBounds(1, 1_000_000),
    "jobs": NumberBounds(1, 1_000_000),
    "gpu_hours": NumberBounds(0, 10**9, open=True),
}
"""The bounds of each number in a ``Discipline`` and an ``Allowance``, and of a lab's ``poll``."""


class WaitReason(StrEnum):
    """Why a waiting job was not started."""

    NO_GPUS = "no-gpus"
    """Too few suitable GPUs are free."""
    NO_PLACE = "no-place"
    """The placement policy finds no hosts for it, or the partition policy lets it wait."""
    NO_CIRCUIT = "no-circuit"
    """Circuits cannot connect its GPUs."""
    OUT_OF_REACH = "out-of-reach"
    """Some of its hosts, or a circuit switch between them, do not answer."""
    BEHIND = "behind"
    """It is not its turn yet."""
    UNREACHABLE = "unreachable"
    """No number of GPUs meets its requirement."""
    QUOTA = "quota"
    """Its user has reached a limit."""
    DEPENDENCY = "dependency"
    """Other jobs must be done first, or one of them failed."""
    HELD = "held"
    """Its user holds it back."""

    @property
    def is_passed(self) -> bool:
        """Whether later jobs may start before such a job."""
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
    """Why a job waits, also as text.

    ``is_blocked``: others may overtake it, and free GPUs alone do not start it.
    """

    reason: WaitReason
    words: str = ""
    is_blocked: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class Allowance:
    """A user's limits; ``None``: the general rule, without a limit.

    ``share`` is the weight under the order policy *fair-share* (``None``: 1). ``gpus`` is the most
    GPUs at once, ``jobs`` the most jobs that wait or run. After ``gpu_hours`` in a window of
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
        """Whether it has a limit, not only a share."""
        return not (self.gpus is self.jobs is self.gpu_hours is None)


@dataclass(
    frozen=True,
    slots=True,
)
class Discipline:
    """How a queue is run, in the lab and in the simulator.

    Without ``backfill`` the next job in order blocks all later ones. With it, up to
    ``backfill_depth`` later jobs may start if they end before the first one can start, or leave it
    enough GPUs (EASY; Mu'alem and Feitelson, TPDS 2001).

    With ``preempt`` a waiting job takes the GPUs of jobs that come later in order and have run for
    ``quantum_s``; this is checked every ``quantum_s`` while jobs wait.

    For *fair-share*, past usage counts half after ``half_life_s``. ``each_user`` limits every user;
    ``users`` replaces it for named ones.

    The latest ``keep_jobs`` ended jobs are kept, for at most ``keep_for_s`` (``None``: unlimited).
    ``BadInput`` for a value out of bounds.
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
            raise BadInput(
                f"user {twice[0]} appears twice: expected each user once"
            )

    def allowance(self, user: str) -> Allowance:
        """A user's limits; what is not set for the user follows the general rule."""
        own = dict(self.users).get(user)
        if own is None:
            return self.each_user
        said = {
            f.name: v
            for f in fields(own)
            if (v := getattr(own, f.name)) is not None
        }
        return replace(self.each_user, **said)

    @property
    def has_quotas(self) -> bool:
        """Whether any user has a limit."""
        return self.each_user.is_limited or any(
            each.is_limited for _, each in self.users
        )


def _check_bounds(settings: Allowance | Discipline) -> None:
    for name in (each.name for each in fields(settings)):
        value = getattr(settings, name)
        bounds = BOUNDS.get(name)
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
PolicyKind = Literal[
    "partition", "placement", "order", "topology", "elasticity"
]
KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
ABILITIES = "defragment", "interleave"
"""What the controller does for running jobs if it is chosen, whatever the policies."""


@dataclass(
    frozen=True,
    slots=True,
)
class PolicyChoice:
    """One source's choice of policies; ``None``: not chosen there. ``BadInput`` if out of bounds.

    A policy is a name for ``patchlight.controller.policies.registry.find``, empty for none. A
    policy that takes longer than ``deadline_s`` is skipped. With ``defragment``, circuits change
    under running jobs when a job has ended and every ``defragment_every_s``, if the predicted gain
    over all jobs exceeds ``minimum_gain_s``. With ``interleave``, jobs that share links send in
    turns.
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
    interleave: bool | None = None

    def __post_init__(self) -> None:
        for name, what in (
            ("deadline_s", "a policy's deadline is"),
            ("defragment_every_s", "the interval of rewiring is"),
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{what} {value} s: expected more than 0 s")
        gain_s = self.minimum_gain_s
        if gain_s is not None and not 0 <= gain_s < math.inf:
            raise BadInput(
                f"the least gain is {gain_s} s: expected 0 s or more"
            )

    def of(self, kind: PolicyKind) -> str | None:
        """The policy of a kind."""
        return cast(str | None, getattr(self, kind))

    @property
    def said(self) -> dict[str, Any]:
        """The fields that are set."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value for name, value in named.items() if value is not None
        }

    def over(self, other: "PolicyChoice") -> "PolicyChoice":
        """These choices, completed from another source."""
        return replace(other, **self.said)

    def beside(self, folder: Path) -> "PolicyChoice":
        """The same; relative paths of policy files start from this folder."""
        named: dict[str, Any] = {
            kind: full_path(name, folder)
            for kind in KINDS
            if (name := self.of(kind))
        }
        return replace(self, **named)


NOTHING_SAID = PolicyChoice()


def full_path(policy: str, folder: Path) -> str:
    """A policy file by its full path, relative to a folder; other policies unchanged."""
    kind, colon, named = policy.partition(":")
    if kind not in KINDS:
        kind = ""
        colon = ""
        named = policy
    head, dot, rest = named.partition(".py")
    if not dot:
        head, dot, rest = named.partition(".onnx")
    return (
        f"{kind}{colon}{(folder / (head + dot)).absolute()}{rest}"
        if dot
        else policy
    )


class Role(IntEnum):
    """What a caller may do; each role includes the previous ones.

    A ``viewer`` reads. A ``user`` submits jobs and stops their own. An ``operator`` changes
    circuits and all jobs. An ``admin`` creates tokens, reads the audit log, stops the controller,
    and may run their own programs as policies.
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
"""The names of the roles that can be given."""


@dataclass(frozen=True)
class Access:
    """What local users may do, identified by the kernel.

    Root, the user who runs the controller, and its ``sudo`` user are admins; the others are
    ``members`` if they are in the ``group``, else ``others``.
    """

    group: str = "patchlight"
    members: Role = Role.OPERATOR
    others: Role = Role.VIEWER


_JUMP = re.compile(
    r"(?:(?P<user>[^@]+)@)?(?:\[(?P<v6>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?"
)


class JumpHost(NamedTuple):
    """A jump host; ``user`` ``None``: the same as at the server."""

    host: str
    port: int
    user: str | None


@dataclass(
    frozen=True,
    slots=True,
)
class Snmp:
    """SNMP of a packet switch: version 2c with a community, or version 3 with a ``user``. Secrets
    are in environment variables; privacy is AES-128, authentication by this hash."""

    address: str
    community_env: str | None = None
    user: str | None = None
    auth: str = "sha256"
    auth_env: str | None = None
    priv_env: str | None = None


SNMP_HASHES = ("sha256", "sha512", "sha", "md5")


@dataclass(
    frozen=True,
    slots=True,
)
class SshAccess:
    """Where a server's ``sshd`` listens, the login, and its host key.

    ``address`` ``None``: the agent's host. ``user``, ``identity`` (a private key file) ``None``:
    the SSH client decides. ``host_key`` is a fingerprint (``SHA256:…``), ``None``: use
    ``known_hosts``; ``legacy`` allows old algorithms. ``jump`` is ``[user@]host[:port]``.
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
        """The jump host, if any."""
        match = _JUMP.fullmatch(self.jump or "")
        if match is None:
            return None
        return JumpHost(
            match["v6"] or match["host"],
            int(match["port"] or 22),
            match["user"],
        )


DYNAMIC = "dynamic"
"""As a worker's user: one user per job owner."""
WRITABLE = ":rw"
"""Suffix of folders that workers may write to."""


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerPolicy:
    """What a worker may have of its server; ``None``: no limit.

    Its image matches one of the patterns ``images`` (``pytorch/*``). It mounts folders below
    ``mounts``, and writes only below those with the suffix ``:rw``, including checkpoints. ``user``
    is the user it runs as: one of the servers' users, or ``dynamic``, one per job owner.
    ``processes`` includes threads: DDP with 16 data loaders has 70, a fork bomb all of them.
    """

    images: tuple[str, ...] | None = None
    mounts: tuple[str, ...] = ()
    memory_bytes: int | None = None
    cpus: float | None = None
    user: str = DYNAMIC
    processes: int = 1024

    def allows_image(self, image: str) -> bool:
        """Whether containers may use this image."""
        return self.images is None or any(
            fnmatchcase(image, each) for each in self.images
        )
